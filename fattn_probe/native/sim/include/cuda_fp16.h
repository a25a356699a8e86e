// f16 for device code compiled as C++: CUDA's names and semantics (CUDA Math API, "Half Precision"), using the host's
// conversion instructions. Every operation rounds once. An added product is fused with the sum, as ptxas fuses it.
#pragma once

#include "../half_bits.h"
#include "../mathematics.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#define __CUDA_ALIGN__(n) __attribute__((aligned(n)))

struct __half_raw {
    unsigned short x;
};
struct __half2_raw {
    unsigned short x, y;
};

struct __half {
    uint16_t bits;

    __half() = default;
    __half(const __half_raw &raw) : bits(raw.x) {}
    __half(float value) : bits(simt::half_of_float(value)) {}
    __half(double value) : bits(simt::half_of_double(value)) {}
    __half(int value) : bits(simt::half_of_double(value)) {}
    __half(unsigned value) : bits(simt::half_of_double(value)) {}
    __half(long value) : bits(simt::half_of_double(static_cast<double>(value))) {}
    __half(unsigned long value) : bits(simt::half_of_double(static_cast<double>(value))) {}
    operator float() const { return simt::float_of_half(bits); }
#if defined(SIMT_COUNT)
    // For a class that is copied as bytes, g++ compiles a stored `condition ? this : that` as two stores, one per
    // outcome. nvcc emits one store.
    __half(const __half &other) = default;
    __half &operator=(const __half &other) {
        bits = other.bits;
        return *this;
    }
#endif

    static __half of_bits(uint16_t bits) {
        __half half;
        half.bits = bits;
        return half;
    }
};

struct alignas(4) __half2 {
    __half x, y;

    __half2() = default;
    __half2(const __half2_raw &raw) : x(__half_raw{raw.x}), y(__half_raw{raw.y}) {}
    __half2(const __half &low, const __half &high) {
        *this = of_bits(low.bits | static_cast<uint32_t>(high.bits) << 16);
    }

#if defined(SIMT_COUNT)
    __half2(const __half2 &other) = default;
    __half2 &operator=(const __half2 &other) { // one store, not one for each half
        memcpy(static_cast<void *>(this), &other, sizeof(other));
        return *this;
    }
#endif

    static __half2 of_bits(uint32_t bits) {
        __half2 pair;
        memcpy(static_cast<void *>(&pair), &bits, sizeof(bits));
        return pair;
    }
    static __half2 of_floats(simt::FloatPair values) { return of_bits(simt::pair_of_floats(values)); }
    uint32_t bits() const {
        uint32_t bits;
        memcpy(&bits, this, sizeof(bits));
        return bits;
    }
    simt::FloatPair floats() const { return simt::floats_of_pair(bits()); }
};

using half = __half;
using half2 = __half2;

namespace simt {

// The result of a half product, not yet rounded: adding to it makes a fused multiply-add.
struct HalfProduct {
    __half a, b;
    __half rounded() const { return __half(float_of_half(a.bits) * float_of_half(b.bits)); }
    operator __half() const { return rounded(); }
    operator float() const { return float_of_half(rounded().bits); }
};
struct Half2Product { // as bits: g++ would split a pair into its halves
    uint32_t a, b;
    operator __half2() const { return __half2::of_floats(floats_of_pair(a) * floats_of_pair(b)); }
};

inline __half fused(const __half &a, const __half &b, const __half &c) {
    return __half::of_bits(half_fma(a.bits, b.bits, c.bits));
}
inline __half2 fused(const Half2Product &product, const __half2 &c) {
    return __half2::of_bits(pair_fma(product.a, product.b, c.bits()));
}

} // namespace simt

inline simt::HalfProduct operator*(const __half &a, const __half &b) { return {a, b}; }
inline __half operator+(const __half &a, const __half &b) { return __half(float(a) + float(b)); }
inline __half operator+(const simt::HalfProduct &a, const __half &b) { return simt::fused(a.a, a.b, b); }
inline __half operator+(const __half &a, const simt::HalfProduct &b) { return simt::fused(b.a, b.b, a); }
inline __half operator+(const simt::HalfProduct &a, const simt::HalfProduct &b) { return a + b.rounded(); }
inline __half operator-(const __half &a, const __half &b) { return __half(float(a) - float(b)); }
inline __half operator/(const __half &a, const __half &b) { return __half(float(a) / float(b)); }
inline __half operator-(const __half &a) { return __half::of_bits(a.bits ^ 0x8000); }
inline __half &operator+=(__half &a, const __half &b) { return a = a + b; }
inline __half &operator+=(__half &a, const simt::HalfProduct &b) { return a = a + b; }
inline __half &operator-=(__half &a, const __half &b) { return a = a - b; }
inline __half &operator*=(__half &a, const __half &b) { return a = a * b; }
inline bool operator==(const __half &a, const __half &b) { return float(a) == float(b); }
inline bool operator!=(const __half &a, const __half &b) { return float(a) != float(b); }
inline bool operator<(const __half &a, const __half &b) { return float(a) < float(b); }
inline bool operator>(const __half &a, const __half &b) { return float(a) > float(b); }
inline bool operator<=(const __half &a, const __half &b) { return float(a) <= float(b); }
inline bool operator>=(const __half &a, const __half &b) { return float(a) >= float(b); }

inline simt::Half2Product operator*(const __half2 &a, const __half2 &b) { return {a.bits(), b.bits()}; }
inline __half2 operator+(const __half2 &a, const __half2 &b) { return __half2::of_floats(a.floats() + b.floats()); }
inline __half2 operator+(const simt::Half2Product &a, const __half2 &b) { return simt::fused(a, b); }
inline __half2 operator+(const __half2 &a, const simt::Half2Product &b) { return simt::fused(b, a); }
inline __half2 operator+(const simt::Half2Product &a, const simt::Half2Product &b) { return simt::fused(a, b); }
inline __half2 operator-(const __half2 &a, const __half2 &b) { return __half2::of_floats(a.floats() - b.floats()); }
inline __half2 operator-(const __half2 &a) { return __half2::of_bits(a.bits() ^ 0x80008000); }
inline __half2 operator/(const __half2 &a, const __half2 &b) { return {a.x / b.x, a.y / b.y}; }
inline __half2 &operator+=(__half2 &a, const __half2 &b) { return a = a + b; }
inline __half2 &operator+=(__half2 &a, const simt::Half2Product &b) { return a = a + b; }
inline __half2 &operator-=(__half2 &a, const __half2 &b) { return a = a - b; }
inline __half2 &operator*=(__half2 &a, const __half2 &b) { return a = a * b; }

inline __half __float2half(float value) { return __half(value); }
inline __half __float2half_rn(float value) { return __half(value); }
inline float __half2float(const __half &value) { return float(value); }
inline __half2 __floats2half2_rn(float low, float high) { return __half2::of_floats(simt::FloatPair{low, high, 0, 0}); }
inline __half2 __float22half2_rn(const float2 &value) {
    return __half2::of_floats(simt::FloatPair{value.x, value.y, 0, 0});
}
inline float2 __half22float2(const __half2 &value) {
    uint32_t bits = value.bits();
    asm volatile("" : "+r"(bits)); // g++ would drop a read of a mask whose value does not matter
    const simt::FloatPair values = simt::floats_of_pair(bits);
    return {values[0], values[1]};
}
inline __half2 make_half2(const __half &low, const __half &high) { return {low, high}; }
inline __half2 __halves2half2(const __half &low, const __half &high) { return {low, high}; }
inline __half2 __half2half2(const __half &value) { return __half2::of_bits(value.bits * 0x10001u); }
inline __half2 __float2half2_rn(float value) { return __half2half2(__half(value)); }
inline __half __low2half(const __half2 &value) { return value.x; }
inline __half __high2half(const __half2 &value) { return value.y; }
inline float __low2float(const __half2 &value) { return float(value.x); }
inline float __high2float(const __half2 &value) { return float(value.y); }
inline __half2 __low2half2(const __half2 &value) { return {value.x, value.x}; }
inline __half2 __high2half2(const __half2 &value) { return {value.y, value.y}; }
inline __half2 __lows2half2(const __half2 &a, const __half2 &b) { return {a.x, b.x}; }
inline __half2 __highs2half2(const __half2 &a, const __half2 &b) { return {a.y, b.y}; }
inline unsigned short __half_as_ushort(const __half &value) { return value.bits; }
inline __half __ushort_as_half(unsigned short bits) { return __half::of_bits(bits); }

inline __half __hadd(const __half &a, const __half &b) { return a + b; }
inline __half __hmul(const __half &a, const __half &b) { return a * b; }
inline __half __hfma(const __half &a, const __half &b, const __half &c) { return simt::fused(a, b, c); }
inline __half2 __hadd2(const __half2 &a, const __half2 &b) { return a + b; }
inline __half2 __hsub2(const __half2 &a, const __half2 &b) { return a - b; }
inline __half2 __hmul2(const __half2 &a, const __half2 &b) { return a * b; }
inline __half2 __hfma2(const __half2 &a, const __half2 &b, const __half2 &c) { return simt::fused(a * b, c); }
inline __half __hmax(const __half &a, const __half &b) { // the number, if the other is a NaN
    return float(a) != float(a) || float(a) < float(b) ? b : a;
}
inline __half __hmin(const __half &a, const __half &b) { return float(a) != float(a) || float(a) > float(b) ? b : a; }
inline __half2 __hmax2(const __half2 &a, const __half2 &b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
inline __half2 __hmin2(const __half2 &a, const __half2 &b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
inline __half __habs(const __half &a) { return __half::of_bits(a.bits & 0x7FFF); }
inline bool __hisnan(const __half &a) { return float(a) != float(a); }
inline int __hisinf(const __half &a) { return a.bits == 0x7C00 ? 1 : a.bits == 0xFC00 ? -1 : 0; }
inline unsigned __hgt2_mask(const __half2 &a, const __half2 &b) {
    return (a.x > b.x ? 0xFFFFu : 0) | (a.y > b.y ? 0xFFFF0000u : 0);
}

// cuda_fp16.hpp: ex2.approx of the float32 product with log2(e), rounded, and four values corrected.
inline __half hexp(const __half &a) {
    switch (a.bits) {
    case 0x1F79:
    case 0x25CF: {
        const __half near(simt::ex2_approx(float(a) * 1.4426950408889634f));
        return near + __half::of_bits(0x9400);
    }
    case 0xC13B:
        return __half(simt::ex2_approx(float(a) * 1.4426950408889634f)) + __half::of_bits(0x0400);
    case 0xC1EF:
        return __half(simt::ex2_approx(float(a) * 1.4426950408889634f)) + __half::of_bits(0x0200);
    default:
        return __half(simt::ex2_approx(float(a) * 1.4426950408889634f));
    }
}
inline __half2 h2exp(const __half2 &a) { return {hexp(a.x), hexp(a.y)}; }
inline __half hsqrt(const __half &a) { return __half(simt::sqrtf(float(a))); }
