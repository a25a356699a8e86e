// Special functions as clang compiles HIP's, without -ffast-math: expf as LLVM expands it for AMDGPU
// (AMDGPULegalizerInfo, legalizeFExp), tanhf as ROCm's device library has it (ocml, tanhF.cl).
//
// AMD says of v_exp_f32 and v_rcp_f32 that they are within 1 ulp; here both are correctly rounded.
#pragma once

#include "../half_bits.h"

#include <cmath>

namespace simt {

// 2^x for |x| < 1
inline float exp_instruction(float x) { return static_cast<float>(std::exp2(static_cast<double>(x))); }

inline float expf(float x) {
    const float log2_e = float_of_bits(0x3FB8AA3B);
    const float turns = __builtin_fmaf(x, log2_e, -0.0f); // -0: rounds the product, which is not contracted
    const float whole = std::rint(turns);
    const float rest = __builtin_fmaf(x, float_of_bits(0x32A5705F), __builtin_fmaf(x, log2_e, -turns));
    const float power = std::ldexp(exp_instruction((turns - whole) + rest), static_cast<int>(whole));
    return x != x ? x : x < float_of_bits(0xC2CE8ED0) ? 0.0f : x > float_of_bits(0x42B17218) ? HUGE_VALF : power;
}

inline float tanhf(float x) {
    const float y = std::fabs(x);
    if (y < 0.625f) {
        const float square = y * y;
        float sum = float_of_bits(0xBBBAC73D);
        for (const uint32_t next : {0x3CA908C9u, 0xBD5C1C4Eu, 0x3E088382u, 0xBEAAAA99u}) {
            sum = __builtin_fmaf(square, sum, float_of_bits(next));
        }
        return std::copysign(__builtin_fmaf(square, __builtin_fmaf(y, sum, -0.0f), y), x);
    }
    return std::copysign(__builtin_fmaf(-2.0f, 1.0f / (expf(2.0f * y) + 1.0f), 1.0f), x);
}

} // namespace simt
