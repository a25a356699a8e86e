// bfloat16 for device code compiled as C++ (CUDA Math API, "Bfloat16 Precision").
#pragma once

#include "../half_bits.h"

#include <cuda_runtime.h>

struct __nv_bfloat16_raw {
    unsigned short x;
};

struct __nv_bfloat162_raw {
    unsigned short x, y;
};

struct __nv_bfloat16 {
    uint16_t bits;

    __nv_bfloat16() = default;
    __nv_bfloat16(const __nv_bfloat16_raw &raw) : bits(raw.x) {}
    __nv_bfloat16(float value) : bits(simt::bfloat_of_float(value)) {}
    __nv_bfloat16(double value) : bits(simt::bfloat_of_float(static_cast<float>(value))) {}
    __nv_bfloat16(int value) : bits(simt::bfloat_of_float(static_cast<float>(value))) {}
    operator float() const { return simt::float_of_bfloat(bits); }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;

    __nv_bfloat162() = default;
    __nv_bfloat162(const __nv_bfloat162_raw &raw) : x(__nv_bfloat16_raw{raw.x}), y(__nv_bfloat16_raw{raw.y}) {}
    __nv_bfloat162(const __nv_bfloat16 &low, const __nv_bfloat16 &high) : x(low), y(high) {}
};

using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline float __bfloat162float(const __nv_bfloat16 &value) { return float(value); }
inline __nv_bfloat16 __float2bfloat16(float value) { return __nv_bfloat16(value); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return __nv_bfloat16(value); }
inline __nv_bfloat162 __float22bfloat162_rn(const float2 &value) {
    return {__nv_bfloat16(value.x), __nv_bfloat16(value.y)};
}
inline float2 __bfloat1622float2(const __nv_bfloat162 &value) { return {float(value.x), float(value.y)}; }
inline __nv_bfloat162 make_bfloat162(const __nv_bfloat16 &low, const __nv_bfloat16 &high) { return {low, high}; }
inline __nv_bfloat16 __low2bfloat16(const __nv_bfloat162 &value) { return value.x; }
inline __nv_bfloat16 __high2bfloat16(const __nv_bfloat162 &value) { return value.y; }
inline float __low2float(const __nv_bfloat162 &value) { return float(value.x); }
inline float __high2float(const __nv_bfloat162 &value) { return float(value.y); }
