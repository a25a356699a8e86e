// The eight-bit formats that ggml's block types use for scales (CUDA Math API, "FP8 Intrinsics").
#pragma once

#include "cuda_bf16.h"

#include <cmath>
#include <cstdint>

using __nv_fp8_storage_t = uint8_t;

// E4M3: no infinity, NaN is 0x7F, the largest value 448; conversion rounds to nearest even and saturates.
struct __nv_fp8_e4m3 {
    __nv_fp8_storage_t __x;

    __nv_fp8_e4m3() = default;
    explicit __nv_fp8_e4m3(float value) : __x(encode(value)) {}
    operator float() const {
        const int exponent = __x >> 3 & 15, fraction = __x & 7;
        const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                         : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
        return (__x & 0x7F) == 0x7F ? NAN : __x & 0x80 ? -size : size;
    }

  private:
    static uint8_t encode(float value) {
        const uint8_t sign = std::signbit(value) ? 0x80 : 0;
        const float size = std::fabs(value);
        if (std::isnan(value)) {
            return 0x7F;
        }
        if (size >= 448.0f) {
            return sign | 0x7E;
        }
        const int exponent = size < 0x1p-6f ? -6 : std::ilogb(size);
        const float scaled = std::nearbyint(std::ldexp(size, 3 - exponent)); // 8..16, or less if subnormal
        const int code = static_cast<int>(scaled) + (size < 0x1p-6f ? 0 : (exponent + 6) * 8);
        return sign | static_cast<uint8_t>(code);
    }
};

// E8M0: a power of two.
inline __nv_bfloat16_raw __nv_cvt_e8m0_to_bf16raw(__nv_fp8_storage_t x) {
    const int bits = x == 255 ? 0x7FFF : x == 0 ? 0x0040 : x << 7;
    return {static_cast<unsigned short>(bits)};
}
