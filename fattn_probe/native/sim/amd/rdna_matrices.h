// The sums of RDNA matrix instructions: the steps of rdna_sums.h in sequence.
#pragma once

#include "rdna_sums.h"

namespace simt::amd {

constexpr bool rdna3 = SIMT_GFX_NUMBER < 0x1200;
constexpr int step = rdna3 ? 2 : 4; // products

template <class Reals> struct Part; // of the columns
template <> struct Part<Floats> {
    using Integers = Ints;
    using Singles = Floats;
    static constexpr int count = 1;
};
template <> struct Part<Doubles> {
    using Integers = HalfOfInts;
    using Singles = HalfOfFloats;
    static constexpr int count = 2;
};

// Rounds to f32 with rounding to odd, so that rounding to f16 afterwards equals rounding once (half_of_double()).
inline Floats rounded_to_odd(Ints total) {
    const Floats near = convert<Floats>(total);
    const Ints bits = as<Ints>(near), error = total - convert<Ints>(near); // an integer below 2^30
    const Ints outwards = (error ^ bits) >= 0 ? Ints{} + 1 : Ints{} - 1;
    return as<Floats>(bits + (error != 0 && (bits & 1) == 0 ? outwards : Ints{}));
}

// c after a step, in f32, or in f16 if `packed`.
template <bool packed, class Reals, class Integers, class Singles>
Singles after_step(const Reals (&terms)[step], const Integers (&exponents)[step], Singles c, Integers c_exponent) {
    constexpr int least = packed ? -14 : -126;
    const auto wide = convert<Reals>(c);
    Units<Integers> sum;
    if constexpr (rdna3) {
        sum = add_units(terms, exponents, wide, packed ? larger(c_exponent, Integers{} + least) : c_exponent);
    } else {
        sum = add_pairs(terms, exponents, wide, larger(c_exponent, Integers{} + least), least);
    }
    const Reals unit = power_of_two(sum.grid);
    Reals value;
    if constexpr (packed) {
        value = rounded_to_odd(sum.total) * unit;
    } else if constexpr (rdna3) { // a result that is denormal after rounding to 24 bits becomes zero
        value = convert<Reals>(convert<Singles>(sum.total)) * unit;
        value = magnitude(value) < 0x1p-126f ? Reals{} : value;
    } else {
        value = convert<Reals>(sum.total) * unit;
    }
    Singles result = convert<Singles>(value);
    if constexpr (rdna3) {
        result = sum.total != 0 && negative(c) ? -result : result;
    }
    if constexpr (packed) {
        result = Half::decode(Half::encode(result));
    }
    Integers largest = exponents[0];
    for (const Integers &exponent : exponents) {
        largest = larger(largest, exponent);
    }
    return largest < rdna_zero / 2 ? c + Singles{} : result; // no product: c, and -0 becomes 0
}

// `Type` is Half or Bfloat; C and D are f16 if `packed`, in the lower halves of the words.
template <class Reals, int K, bool packed> Words in_steps(const ScaledNumber *a, const Scaled *b, Words c) {
    using Integers = typename Part<Reals>::Integers;
    using Singles = typename Part<Reals>::Singles;
    Floats sum = packed ? Half::decode(c & 0xFFFF) : as<Floats>(c);
    for (int first = 0; first < K; first += step) {
        if (rdna3 && !packed) {
            sum = as<Floats>((as<Ints>(sum) & 0x7F800000) == 0 ? as<Ints>(sum) & INT32_MIN : as<Ints>(sum));
        }
        const Ints c_exponent = exponents<rdna_zero>(sum, -126);
        Ints unusual = sum - sum != 0.0f;
        Floats next;
        for (int part = 0; part < Part<Reals>::count; part++) {
            Reals terms[step];
            Integers of_terms[step], strange = part_of<Integers>(unusual, part);
            for (int i = 0; i < step; i++) {
                const auto factor = convert<Reals>(part_of<Singles>(b[first + i].value, part));
                terms[i] = a[first + i].value * factor;
                of_terms[i] = a[first + i].exponent + part_of<Integers>(b[first + i].exponent, part);
                strange |= convert<Integers>(terms[i] - terms[i] != 0.0f);
            }
            set_part(
                next, part,
                after_step<packed>(terms, of_terms, part_of<Singles>(sum, part), part_of<Integers>(c_exponent, part)));
            set_part(unusual, part, strange);
        }
        for (int column = 0; column < columns; column++) {
            if (__builtin_expect(unusual[column] != 0, 0)) { // infinities and NaNs propagate as in any sum
                double plain = sum[column];
                for (int i = first; i < first + step; i++) {
                    plain += static_cast<double>(a[i].value) * static_cast<double>(b[i].value[column]);
                }
                next[column] = static_cast<float>(plain);
            }
        }
        sum = next;
    }
    return packed ? Half::encode(sum) : as<Words>(sum);
}

} // namespace simt::amd
