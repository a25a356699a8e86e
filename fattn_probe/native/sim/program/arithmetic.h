// Arithmetic of whole programs: functions that nvcc compiles differently without -use_fast_math, and intrinsics that
// llama.cpp's attention kernels do not use.
#pragma once

#include "../half_bits.h"
#include "../mathematics.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace simt {

// As nvcc 13 compiles them without -use_fast_math (its PTX): expf by ex2.approx of a remainder, logf by a polynomial.
namespace precise {

inline float expf(float x) {
    const float turns = std::fma(x, float_of_bits(0x3BBB989D), 0.5f); // x * log2(e) / 252 + 1/2
    const float part = turns > 0.0f ? std::fmin(turns, 1.0f) : 0.0f;
    const auto whole = static_cast<float>(std::floor(static_cast<double>(part) * 252.0 + 12582913.0));
    const float integer = whole - 12583039.0f;
    const float rest = std::fma(x, float_of_bits(0x32A57060), std::fma(x, float_of_bits(0x3FB8AA3B), -integer));
    return x != x ? x : ex2_approx(rest) * float_of_bits(bits_of_float(whole) << 23);
}

inline float logf(float x) {
    const bool small = x < 0x1p-126f;
    const float scaled = small ? x * 0x1p23f : x;
    const uint32_t bits = bits_of_float(scaled), exponent = (bits - 1059760811u) & 0xFF800000;
    const float power = std::fma(static_cast<float>(static_cast<int32_t>(exponent)), 0x1p-23f, small ? -23.0f : 0.0f);
    const float m = float_of_bits(bits - exponent) - 1.0f;
    float sum = float_of_bits(0xBE055027);
    for (const uint32_t next :
         {0x3E1039F6u, 0xBDF8CDCCu, 0x3E0F2955u, 0xBE2AD8B9u, 0x3E4CED0Bu, 0xBE7FFF22u, 0x3EAAAA78u, 0xBF000000u}) {
        sum = std::fma(sum, m, float_of_bits(next));
    }
    const float result = std::fma(power, float_of_bits(0x3F317218), std::fma(m * sum, m, m));
    return scaled == 0.0f ? -INFINITY : bits < 0x7F800000 ? result : std::fma(scaled, INFINITY, INFINITY);
}

inline float exp2f(float x) { return ex2_approx(x); }
inline float exp(float x) { return expf(x); }
inline double exp(double x) { return std::exp(x); }
inline float log(float x) { return logf(x); }
inline double log(double x) { return std::log(x); }

} // namespace precise

// clock(): an increasing number, because the simulator has no time.
inline long long ticks() {
    static SIMT_THREAD_LOCAL long long count;
    return ++count;
}

} // namespace simt

inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float sinpif(float x) { return static_cast<float>(std::sin(M_PI * static_cast<double>(x))); }
inline float cospif(float x) { return static_cast<float>(std::cos(M_PI * static_cast<double>(x))); }
inline float norm3df(float x, float y, float z) { return std::sqrt(x * x + y * y + z * z); }
inline float rnorm3df(float x, float y, float z) { return rsqrtf(x * x + y * y + z * z); }

// With the rounding mode in the name.
inline float __fsub_rn(float a, float b) { return __fadd_rn(a, -b); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frsqrt_rn(float a) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a))); }
inline double __dadd_rn(double a, double b) {
    volatile double sum = a + b; // never contracted
    return sum;
}
inline double __dmul_rn(double a, double b) {
    volatile double product = a * b;
    return product;
}
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline int __float2int_rz(float value) { return static_cast<int>(value); }
inline int __float2int_rd(float value) { return static_cast<int>(std::floor(value)); }
inline int __float2int_ru(float value) { return static_cast<int>(std::ceil(value)); }
inline unsigned __float2uint_rn(float value) { return static_cast<unsigned>(std::nearbyint(value)); }
inline unsigned __float2uint_rz(float value) { return static_cast<unsigned>(value); }
inline unsigned __float2uint_rd(float value) { return static_cast<unsigned>(std::floor(value)); }
inline float __int2float_rn(int value) { return static_cast<float>(value); }
inline float __uint2float_rn(unsigned value) { return static_cast<float>(value); }
inline int __double2int_rn(double value) { return static_cast<int>(std::nearbyint(value)); }
inline int __double2int_rz(double value) { return static_cast<int>(value); }
inline double __int2double_rn(int value) { return value; }
inline float __double2float_rn(double value) { return static_cast<float>(value); }

// Bits and integers.
inline unsigned long long __double_as_longlong(double value) {
    unsigned long long bits;
    memcpy(&bits, &value, 8);
    return bits;
}
inline double __longlong_as_double(long long bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}
inline double __hiloint2double(int high, int low) {
    return __longlong_as_double(static_cast<long long>(high) << 32 | static_cast<unsigned>(low));
}
inline int __double2hiint(double value) { return static_cast<int>(__double_as_longlong(value) >> 32); }
inline int __double2loint(double value) { return static_cast<int>(__double_as_longlong(value)); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __ffsll(long long a) { return __builtin_ffsll(a); }
inline int __clzll(long long a) { return a == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(a)); }
inline unsigned long long __brevll(unsigned long long a) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(a))) << 32 |
           __brev(static_cast<unsigned>(a >> 32));
}
inline int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xFFFFFF) * (b & 0xFFFFFF); }
inline unsigned __sad(int a, int b, unsigned c) { return c + static_cast<unsigned>(a > b ? a - b : b - a); }
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a > b ? a - b : b - a); }
inline int __hadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b) >> 1); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
template <class T> inline T __ldcg(const T *pointer) { return *pointer; }
template <class T> inline T __ldcs(const T *pointer) { return *pointer; }
template <class T> inline T __ldca(const T *pointer) { return *pointer; }
template <class T> inline void __stcg(T *pointer, T value) { *pointer = value; }
template <class T> inline void __stcs(T *pointer, T value) { *pointer = value; }
inline void __threadfence_system() { __threadfence(); }
