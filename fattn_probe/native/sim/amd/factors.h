// Factors of matrix instructions: their bits as numbers.
#pragma once

#include "../vectors.h"

namespace simt::amd {

// `smallest` is the exponent of the smallest normal number.
struct Half {
    static constexpr int bits = 16, smallest = -14;
    static Floats decode(Words words) { return floats_of(convert<Halves>(words)); }
    static Words encode(Floats values) { // rounded to nearest even
#if defined(__F16C__)
        return convert<Words>(as<Halves>(__builtin_ia32_vcvtps2ph256(values, 0)));
#else
        Halves halves;
        for (int i = 0; i < columns; i++) {
            halves[i] = half_of_float(values[i]);
        }
        return convert<Words>(halves);
#endif
    }
};
struct Bfloat {
    static constexpr int bits = 16, smallest = -126;
    static Floats decode(Words words) { return as<Floats>(words << 16); }
};
struct Float {
    static constexpr int bits = 32, smallest = -126;
    static Floats decode(Words words) { return as<Floats>(words); }
};
struct ShortFloat { // xf32: only 10 bits of the fraction count
    static constexpr int bits = 32, smallest = -126;
    static Floats decode(Words words) { return as<Floats>(words & ~0x1FFFu); }
};
template <bool is_signed> struct Byte {
    static constexpr int bits = 8;
    static Ints decode(Words words) { return is_signed ? as<Ints>(words << 24) >> 24 : as<Ints>(words & 0xFF); }
};

// A denormal factor becomes a zero: of the same sign with `keeps_sign`, otherwise positive.
template <class Type, bool keeps_sign> struct Flushed : Type {
    static Floats decode(Words words) {
        const Floats values = Type::decode(words);
        const float normal = Type::smallest == -14 ? 0x1p-14f : 0x1p-126f;
        const Ints bits = as<Ints>(values), zeros = keeps_sign ? bits & INT32_MIN : Ints{};
        return as<Floats>(values < normal && values > -normal ? zeros : bits);
    }
};

// A factor and its exponent as the adder sees it: a denormal has the exponent of the smallest normal number.
struct Scaled {
    Floats value;
    Ints exponent;
};
struct ScaledNumber {
    float value;
    int exponent;
};
template <int of_zero> inline Ints exponents(Floats values, int smallest) {
    const Ints bits = as<Ints>(values) & INT32_MAX;
    return bits == 0 ? Ints{} + of_zero : larger((bits >> 23) - 127, Ints{} + smallest);
}
template <class Type, int of_zero> struct WithExponent : Type {
    static Scaled decode(Words words) {
        const Floats values = Type::decode(words);
        return {values, exponents<of_zero>(values, Type::smallest)};
    }
};

} // namespace simt::amd
