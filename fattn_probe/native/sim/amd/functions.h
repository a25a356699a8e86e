// The functions of device code as clang compiles them for AMD GPUs without -ffast-math: LLVM's expansion of expf, and
// AMD's device library. Assumed: v_exp_f32, v_rcp_f32, powf and the logarithms round correctly; AMD specifies that the
// instructions are accurate to 1 ulp.
#pragma once

#include "../half_bits.h"

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace simt {

inline float exp2f(float x) { return static_cast<float>(std::exp2(static_cast<double>(x))); }

inline float expf(float x) {
    // Each step rounds; products within a statement are fused only where the source says so.
    const float high = float_of_bits(0x3FB8AA3B), low = float_of_bits(0x32A5705F); // log2(e)
    const float turns = std::fma(x, high, -0.0f), whole = std::rint(turns);
    const float rest = (turns - whole) + std::fma(x, low, std::fma(x, high, -turns));
    if (__builtin_expect(!(x >= float_of_bits(0xC2CE8ED0) && x <= float_of_bits(0x42B17218)), 0)) {
        return x != x ? x : x < 0.0f ? 0.0f : HUGE_VALF;
    }
    const int power = static_cast<int>(whole), first = power < -64 ? power + 64 : power;
    const float scaled = exp2f(rest) * float_of_bits(static_cast<uint32_t>(first > 127 ? 254 : first + 127) << 23);
    return scaled * (power < -64 ? 0x1p-64f : first > 127 ? 2.0f : 1.0f);
}

inline float tanhf(float x) {
    const float size = std::fabs(x);
    if (size < 0.625f) {
        const float square = x * x;
        float sum = float_of_bits(0xBBBAC73D);
        for (const uint32_t next : {0x3CA908C9u, 0xBD5C1C4Eu, 0x3E088382u, 0xBEAAAA99u}) {
            sum = std::fma(sum, square, float_of_bits(next));
        }
        const float term = size * sum;
        return std::copysign(std::fma(square, term, size), x);
    }
    const float reciprocal = 1.0f / (1.0f + expf(size + size));
    return std::copysign(std::fma(reciprocal, -2.0f, 1.0f), x);
}

inline float exp10f(float x) { return static_cast<float>(std::pow(10.0, static_cast<double>(x))); }
inline float log2f(float x) { return static_cast<float>(std::log2(static_cast<double>(x))); }
inline float logf(float x) { return static_cast<float>(std::log(static_cast<double>(x))); }
inline float log10f(float x) { return static_cast<float>(std::log10(static_cast<double>(x))); }
inline float powf(float x, float y) {
    return static_cast<float>(std::pow(static_cast<double>(x), static_cast<double>(y)));
}

} // namespace simt
