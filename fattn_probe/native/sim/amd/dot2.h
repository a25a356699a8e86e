// v_dot2_f32_f16: two products of f16 and a sum in f32.
#pragma once

#include "../half_bits.h"
#include "rdna_sums.h"

#include <cmath>

namespace simt::amd {

#if SIMT_GFX_NUMBER >= 0x1100
inline float dot2(uint16_t a0, uint16_t b0, uint16_t a1, uint16_t b1, float sum) {
    const auto exponent = [](uint16_t bits) {
        return (bits & 0x7FFF) == 0 ? rdna_zero : larger(bits >> 10 & 31, 1) - 15;
    };
    const float terms[] = {float_of_half(a0) * float_of_half(b0), float_of_half(a1) * float_of_half(b1)};
    const int32_t exponents[] = {exponent(a0) + exponent(b0), exponent(a1) + exponent(b1)};
    const auto field = static_cast<int32_t>(as<uint32_t>(sum) >> 23 & 255);
    if (__builtin_expect(field == 255 || (terms[0] - terms[0]) + (terms[1] - terms[1]) != 0.0f, 0)) {
        return sum + terms[0] + terms[1]; // infinities and NaNs propagate as in any sum
    }
    constexpr bool rdna3 = SIMT_GFX_NUMBER < 0x1200;
    const float c = rdna3 && field == 0 ? as<float>(as<uint32_t>(sum) & 0x80000000) : sum;
    if (larger(exponents[0], exponents[1]) < rdna_zero / 2) {
        return c + 0.0f; // no product: c, and -0 becomes 0
    }
    if constexpr (rdna3) {
        const Units<int32_t> made = add_units(terms, exponents, c, field == 0 ? rdna_zero : field - 127);
        const float result = static_cast<float>(made.total) * power_of_two(made.grid);
        return made.total != 0 && negative(c) ? -result : result;
    } else {
        const Units<int32_t> made = add_pairs(terms, exponents, c, larger(field, 1) - 127, -126);
        return static_cast<float>(made.total) * power_of_two(made.grid);
    }
}
#else
// Follows the pseudocode of AMD's guides and rounds each operation; this GPU's actual rounding is not published. A
// denormal sum becomes 0, both before and after the operation, in any mode of the kernel (LLVM, SIISelLowering.cpp).
inline float dot2(uint16_t a0, uint16_t b0, uint16_t a1, uint16_t b1, float sum) {
    const auto without_denormal = [](float value) { return std::fabs(value) < 0x1p-126f ? 0.0f : value; };
    const float first = std::fma(float_of_half(a0), float_of_half(b0), without_denormal(sum));
    return without_denormal(std::fma(float_of_half(a1), float_of_half(b1), first));
}
#endif

} // namespace simt::amd
