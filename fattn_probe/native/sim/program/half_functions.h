// f16 and bf16 functions that llama.cpp's attention kernels do not use (CUDA Math API). Every operation rounds once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#define SIMT_NARROW(type, of_float)                                                                                    \
    inline type __hsub(const type &a, const type &b) { return of_float(float(a) - float(b)); }                         \
    inline type __hdiv(const type &a, const type &b) { return of_float(float(a) / float(b)); }                         \
    inline type __hneg(const type &a) { return of_float(-float(a)); }                                                  \
    inline bool __heq(const type &a, const type &b) { return float(a) == float(b); }                                   \
    inline bool __hne(const type &a, const type &b) { return float(a) != float(b); }                                   \
    inline bool __hlt(const type &a, const type &b) { return float(a) < float(b); }                                    \
    inline bool __hle(const type &a, const type &b) { return float(a) <= float(b); }                                   \
    inline bool __hgt(const type &a, const type &b) { return float(a) > float(b); }                                    \
    inline bool __hge(const type &a, const type &b) { return float(a) >= float(b); }                                   \
    inline type __hadd_rn(const type &a, const type &b) { return of_float(float(a) + float(b)); }                      \
    inline type __hsub_rn(const type &a, const type &b) { return of_float(float(a) - float(b)); }                      \
    inline type __hmul_rn(const type &a, const type &b) { return of_float(float(a) * float(b)); }                      \
    inline type hlog(const type &a) { return of_float(std::log(float(a))); }                                           \
    inline type hlog2(const type &a) { return of_float(std::log2(float(a))); }                                         \
    inline type hlog10(const type &a) { return of_float(std::log10(float(a))); }                                       \
    inline type hexp2(const type &a) { return of_float(std::exp2(float(a))); }                                         \
    inline type hexp10(const type &a) { return of_float(std::pow(10.0f, float(a))); }                                  \
    inline type hsin(const type &a) { return of_float(std::sin(float(a))); }                                           \
    inline type hcos(const type &a) { return of_float(std::cos(float(a))); }                                           \
    inline type hrint(const type &a) { return of_float(std::nearbyint(float(a))); }                                    \
    inline type htrunc(const type &a) { return of_float(std::trunc(float(a))); }                                       \
    inline type hrcp(const type &a) { return of_float(1.0f / float(a)); }                                              \
    inline type hrsqrt(const type &a) { return of_float(1.0f / std::sqrt(float(a))); }                                 \
    inline type hfloor(const type &a) { return of_float(std::floor(float(a))); }                                       \
    inline type hceil(const type &a) { return of_float(std::ceil(float(a))); }
SIMT_NARROW(__half, __half)
SIMT_NARROW(__nv_bfloat16, __nv_bfloat16)
#undef SIMT_NARROW

#define SIMT_COMPARE(name, operation)                                                                                  \
    inline __half2 __h##name##2(const __half2 &a, const __half2 &b) {                                                  \
        return {__half(a.x operation b.x), __half(a.y operation b.y)};                                                 \
    }                                                                                                                  \
    inline bool __hb##name##2(const __half2 &a, const __half2 &b) { return a.x operation b.x && a.y operation b.y; }
SIMT_COMPARE(eq, ==)
SIMT_COMPARE(ne, !=)
SIMT_COMPARE(lt, <)
SIMT_COMPARE(le, <=)
SIMT_COMPARE(gt, >)
SIMT_COMPARE(ge, >=)
#undef SIMT_COMPARE

namespace simt {

// The neighbour of a half in a direction: up (1) or down (-1).
inline __half next_half(const __half &a, int direction) {
    if ((a.bits & 0x7FFF) == 0) {
        return __half::of_bits(direction > 0 ? 0x0001 : 0x8001);
    }
    const bool grows = (direction > 0) == ((a.bits & 0x8000) == 0);
    return __half::of_bits(static_cast<uint16_t>(a.bits + (grows ? 1 : -1)));
}

} // namespace simt

inline __half __float2half_rd(float value) {
    const __half near(value);
    return float(near) > value ? simt::next_half(near, -1) : near;
}
inline __half __float2half_ru(float value) {
    const __half near(value);
    return float(near) < value ? simt::next_half(near, 1) : near;
}
inline __half __float2half_rz(float value) { return value < 0.0f ? __float2half_ru(value) : __float2half_rd(value); }

inline __half2 __h2div(const __half2 &a, const __half2 &b) { return a / b; }
inline __half2 __hneg2(const __half2 &a) { return -a; }
inline __half2 h2sqrt(const __half2 &a) { return {hsqrt(a.x), hsqrt(a.y)}; }
inline __half __int2half_rn(int value) { return __half(value); }
inline __half __uint2half_rn(unsigned value) { return __half(value); }
inline __half __double2half(double value) { return __half(value); }
inline int __half2int_rn(const __half &value) { return static_cast<int>(std::nearbyint(float(value))); }
inline int __half2int_rz(const __half &value) { return static_cast<int>(float(value)); }
inline short __half_as_short(const __half &value) { return static_cast<short>(value.bits); }

inline __nv_bfloat16 __habs(const __nv_bfloat16 &a) { return std::fabs(float(a)); }
inline __nv_bfloat16 __hadd(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return float(a) + float(b); }
inline __nv_bfloat16 __hmul(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return float(a) * float(b); }
inline __nv_bfloat16 __hfma(const __nv_bfloat16 &a, const __nv_bfloat16 &b, const __nv_bfloat16 &c) {
    return std::fma(float(a), float(b), float(c)); // f32 holds the product exactly
}
inline __nv_bfloat16 __hmax(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return std::fmax(float(a), float(b)); }
inline __nv_bfloat16 __hmin(const __nv_bfloat16 &a, const __nv_bfloat16 &b) { return std::fmin(float(a), float(b)); }
inline __nv_bfloat16 hexp(const __nv_bfloat16 &a) { return std::exp(float(a)); }
inline __nv_bfloat16 hsqrt(const __nv_bfloat16 &a) { return std::sqrt(float(a)); }
inline __nv_bfloat16 __double2bfloat16(double value) { return __nv_bfloat16(value); }
inline __nv_bfloat16 __int2bfloat16_rn(int value) { return __nv_bfloat16(value); }
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) { return {__nv_bfloat16(low), __nv_bfloat16(high)}; }
inline __nv_bfloat162 __float2bfloat162_rn(float value) { return {__nv_bfloat16(value), __nv_bfloat16(value)}; }
inline __nv_bfloat162 __bfloat162bfloat162(const __nv_bfloat16 &value) { return {value, value}; }
inline __nv_bfloat162 __halves2bfloat162(const __nv_bfloat16 &low, const __nv_bfloat16 &high) { return {low, high}; }
#define SIMT_BOTH(name)                                                                                                \
    inline __nv_bfloat162 name##2(const __nv_bfloat162 &a, const __nv_bfloat162 &b) {                                  \
        return {name(a.x, b.x), name(a.y, b.y)};                                                                       \
    }
SIMT_BOTH(__hadd)
SIMT_BOTH(__hsub)
SIMT_BOTH(__hmul)
SIMT_BOTH(__hmax)
SIMT_BOTH(__hmin)
#undef SIMT_BOTH
inline __nv_bfloat162 __hfma2(const __nv_bfloat162 &a, const __nv_bfloat162 &b, const __nv_bfloat162 &c) {
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
inline __nv_bfloat16 &operator+=(__nv_bfloat16 &a, const __nv_bfloat16 &b) { return a = __hadd(a, b); }
inline __nv_bfloat16 &operator*=(__nv_bfloat16 &a, const __nv_bfloat16 &b) { return a = __hmul(a, b); }

// The larger or the smaller number, or a NaN if either is a NaN; a fused multiply-add, or 0 if that is negative.
#define SIMT_PAIRS(type, pair)                                                                                         \
    inline type __hmax_nan(const type &a, const type &b) {                                                             \
        return float(a) != float(a) ? a : float(b) != float(b) ? b : __hmax(a, b);                                     \
    }                                                                                                                  \
    inline type __hmin_nan(const type &a, const type &b) {                                                             \
        return float(a) != float(a) ? a : float(b) != float(b) ? b : __hmin(a, b);                                     \
    }                                                                                                                  \
    inline pair __hmax2_nan(const pair &a, const pair &b) { return {__hmax_nan(a.x, b.x), __hmax_nan(a.y, b.y)}; }     \
    inline pair __hmin2_nan(const pair &a, const pair &b) { return {__hmin_nan(a.x, b.x), __hmin_nan(a.y, b.y)}; }     \
    inline type __hfma_relu(const type &a, const type &b, const type &c) {                                             \
        const type sum = __hfma(a, b, c);                                                                              \
        return float(sum) < 0.0f ? type(0.0f) : sum;                                                                   \
    }                                                                                                                  \
    inline pair __hfma2_relu(const pair &a, const pair &b, const pair &c) {                                            \
        return {__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y)};                                               \
    }                                                                                                                  \
    inline pair h2rsqrt(const pair &a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }                                          \
    inline pair __habs2(const pair &a) { return {__habs(a.x), __habs(a.y)}; }
SIMT_PAIRS(__half, __half2)
SIMT_PAIRS(__nv_bfloat16, __nv_bfloat162)
#undef SIMT_PAIRS
