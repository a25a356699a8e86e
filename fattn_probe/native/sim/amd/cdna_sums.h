// How the matrix instructions of CDNA round sums, as the authors of MMA-Sim measured it on an MI100, an MI210 and an
// MI300X (Xie, Wang, Yang, Yang, arXiv 2511.10909). Each function takes a[k] of a row of A, b[k] of 8 columns of B, and
// the corresponding elements of C.
#pragma once

#include "factors.h"

#include <cmath>

namespace simt::amd {

// fma(a[k], b[k], c), one k after another; the compiler contracts the expression.
template <int K> Words in_order(const float *a, const Floats *b, Words c) {
    Floats sum = as<Floats>(c);
    for (int k = 0; k < K; k++) {
        sum += a[k] * b[k];
    }
    return as<Words>(sum);
}

// On CDNA2, a denormal becomes a zero of the same sign.
template <bool flushes> Floats flushed(Floats values) {
    const Ints bits = as<Ints>(values);
    return flushes ? as<Floats>((bits & 0x7F800000) == 0 ? bits & INT32_MIN : bits) : values;
}

// (a0*b0 + a1*b1) + (a2*b2 + a3*b3), or only the first bracket for two products, is added to c; then the next group.
// Each operation rounds.
template <int K, int group, bool flushes> Words in_pairs(const float *a, const Floats *b, Words c) {
    Floats sum = as<Floats>(flushes && (c & 0x7F800000) == 0 ? Words{} : c);
    const auto term = [&](int k) { return flushed<flushes>(a[k] * b[k] + Floats{}); };
    const auto pair = [&](int k) { return flushed<flushes>(term(k) + term(k + 1)); };
    for (int k = 0; k < K; k += group) {
        sum = flushed<flushes>(sum + (group == 2 ? pair(k) : flushed<flushes>(pair(k) + pair(k + 2))));
    }
    return as<Words>(sum);
}

inline Doubles floor_of(Doubles values) { // below 2^51
    const Doubles shift = Doubles{} + 0x1.8p52, near = values + shift - shift;
    return near > values ? near - 1.0 : near;
}

// The end of a fused sum: `sum` (of products, in units of 2^(exponent - 24)) and c are aligned to the larger exponent
// and rounded down, c to 24 bits after the point and the sum to 31. The result is rounded to nearest.
inline HalfOfFloats add_aligned(HalfOfInts sum, HalfOfInts exponent, HalfOfFloats c, HalfOfInts c_exponent) {
    const HalfOfInts most = larger(exponent, c_exponent);
    const Doubles products = floor_of(convert<Doubles>(sum) * power_of_two(exponent - most + 7));
    const Doubles addend = floor_of(convert<Doubles>(c) * power_of_two(24 - most));
    return convert<HalfOfFloats>((products + 128.0 * addend) * power_of_two(most - 31));
}

// A sum with infinity or NaN, or with products too large for f32.
inline float plain_sum(const ScaledNumber *a, const Scaled *b, int count, int column, float c) {
    double sum = c;
    float infinite = 0.0f;
    for (int k = 0; k < count; k++) {
        const double term = static_cast<double>(a[k].value) * static_cast<double>(b[k].value[column]);
        sum += term;
        infinite += std::fabs(term) >= 0x1p128 ? std::copysign(HUGE_VALF, static_cast<float>(term)) : 0.0f;
    }
    return std::isfinite(sum) ? infinite : static_cast<float>(sum);
}

constexpr int cdna_zero = -126; // the exponent of a zero

// Products are truncated to 24 bits after the point at the largest exponent (a product's exponent is the sum of its
// factors' exponents), and summed exactly; add_aligned() adds c. The next `group` of products follows.
template <int K, int group> Words fused(const ScaledNumber *a, const Scaled *b, Words c) {
    Floats sum = as<Floats>(c);
    for (int first = 0; first < K; first += group) {
        Ints exponent = Ints{} + 2 * cdna_zero;
        for (int k = first; k < first + group; k++) {
            exponent = larger(exponent, a[k].exponent + b[k].exponent);
        }
        const Ints c_exponent = exponents<cdna_zero>(sum, -126);
        Ints unusual = (as<Ints>(sum) & 0x7F800000) == 0x7F800000;
        Floats next;
        for (int part = 0; part < 2; part++) {
            const auto of_part = part_of<HalfOfInts>(exponent, part);
            const Doubles scale = power_of_two(24 - of_part);
            HalfOfInts total = {}, strange = part_of<HalfOfInts>(unusual, part);
            for (int k = first; k < first + group; k++) {
                const Doubles factor = convert<Doubles>(part_of<HalfOfFloats>(b[k].value, part));
                const Doubles term = static_cast<double>(a[k].value) * factor;
                strange |= convert<HalfOfInts>(!(term < 0x1p128 && term > -0x1p128));
                total += convert<HalfOfInts>(term * scale);
            }
            set_part(
                next, part,
                add_aligned(total, of_part, part_of<HalfOfFloats>(sum, part), part_of<HalfOfInts>(c_exponent, part)));
            set_part(unusual, part, strange);
        }
        for (int column = 0; column < columns; column++) {
            if (__builtin_expect(unusual[column] != 0, 0)) {
                next[column] = plain_sum(a + first, b + first, group, column, sum[column]);
            }
        }
        sum = next;
    }
    return as<Words>(sum);
}

} // namespace simt::amd
