// HIP's f8 types: CUDA's types, and CDNA3's variant of e4m3.
#pragma once

#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>

#define __hip_fp8_e4m3 __nv_fp8_e4m3

// e4m3 with a bias of 8: no infinity and no negative zero, whose bits are the only NaN.
struct __hip_fp8_e4m3_fnuz {
    uint8_t __x;

    operator float() const {
        const int exponent = __x >> 3 & 0xF, mantissa = __x & 7;
        const float size = std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa + 8),
                                      (exponent == 0 ? 1 : exponent) - 8 - 3);
        return __x == 0x80 ? NAN : __x & 0x80 ? -size : size;
    }
};
