// Vectors of 8 numbers, as wide as AVX2's, and functions for these and for single numbers. In wider vectors, g++
// compares and selects elements one by one.
#pragma once

#include "half_bits.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#pragma GCC diagnostic ignored "-Wpsabi" // these vectors are passed only between functions of one file

namespace simt {

constexpr int columns = 8; // of a matrix, computed at once

typedef float Floats __attribute__((vector_size(4 * columns)));
typedef int32_t Ints __attribute__((vector_size(4 * columns)));
typedef uint32_t Words __attribute__((vector_size(4 * columns)));
typedef double Doubles __attribute__((vector_size(4 * columns)));
typedef int64_t Longs __attribute__((vector_size(4 * columns)));
typedef float HalfOfFloats __attribute__((vector_size(2 * columns)));
typedef int32_t HalfOfInts __attribute__((vector_size(2 * columns)));
typedef uint16_t Halves __attribute__((vector_size(2 * columns)));

template <class To, class From> inline To as(From value) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To result;
    memcpy(&result, &value, sizeof(To));
    return result;
}
template <class Part, class Whole> inline Part part_of(const Whole &whole, int i) {
    Part part;
    memcpy(&part, reinterpret_cast<const char *>(&whole) + i * sizeof(part), sizeof(part));
    return part;
}
template <class Part, class Whole> inline void set_part(Whole &whole, int i, const Part &part) {
    memcpy(reinterpret_cast<char *>(&whole) + i * sizeof(part), &part, sizeof(part));
}

template <class To, class From> inline To convert(From value) {
    if constexpr (std::is_arithmetic_v<From>) {
        return static_cast<To>(value);
    } else {
        return __builtin_convertvector(value, To);
    }
}

inline Floats floats_of(Halves halves) {
#if defined(__F16C__)
    return __builtin_ia32_vcvtph2ps256(as<HalfBits>(halves));
#else
    Floats values;
    for (int i = 0; i < columns; i++) {
        values[i] = float_of_half(halves[i]);
    }
    return values;
#endif
}

inline float power_of_two(int32_t exponent) { return as<float>((exponent + 127) << 23); }
inline Floats power_of_two(Ints exponent) { return as<Floats>((exponent + 127) << 23); }
inline Doubles power_of_two(Longs exponent) { return as<Doubles>((exponent + 1023) << 52); }
inline Doubles power_of_two(HalfOfInts exponent) { return power_of_two(convert<Longs>(exponent)); }

// Where the sign bit is set.
inline bool negative(float value) { return as<int32_t>(value) < 0; }
inline Ints negative(Floats values) { return as<Ints>(values) < 0; }
inline HalfOfInts negative(HalfOfFloats values) { return as<HalfOfInts>(values) < 0; }
inline HalfOfInts negative(Doubles values) { return convert<HalfOfInts>(as<Longs>(values) < 0); }

// The result of a comparison, as a mask that chooses between `Integers`.
template <class Integers, class Condition> inline auto mask(Condition condition) {
    if constexpr (std::is_arithmetic_v<Condition>) {
        return condition;
    } else {
        return convert<Integers>(condition);
    }
}

template <class Number> inline Number larger(Number a, Number b) { return a > b ? a : b; }
template <class Number> inline Number smaller(Number a, Number b) { return a < b ? a : b; }
template <class Reals> inline Reals magnitude(Reals value) { return value < 0 ? -value : value; }

} // namespace simt
