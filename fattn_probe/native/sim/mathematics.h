// The special functions of device code under -use_fast_math: the hardware's approximations, bit for bit if measured
// (data/README.md), otherwise correctly rounded. For AMD GPUs, see amd/functions.h.
#pragma once

#if defined(SIMT_AMD)
#include "amd/functions.h"
#endif
#include "division.h"

#include <type_traits>

// Whether an expression is constant in its template instance. In a template argument, g++ decides this at that point;
// later, inside `if (mask)`, it would treat `mask` as known.
#define SIMT_IS_CONSTANT(...) std::bool_constant<(__builtin_constant_p(__VA_ARGS__))>::value

namespace simt {

float ex2_approx(float x);  // ex2.approx.ftz.f32, measured on Hopper
float rcp_approx(float x);  // rcp.approx.ftz.f32, measured on Hopper
float tanh_approx(float x); // tanh.approx.f32, measured on Hopper
float lg2_approx(float x);  // lg2.approx.ftz.f32, measured on Hopper

#if !defined(SIMT_AMD)
inline float exp2f(float x) { return ex2_approx(x); }
inline float expf(float x) { return ex2_approx(x * 1.4426950408889634f); }
inline float exp10f(float x) { return ex2_approx(x * 3.3219280948873623f); }
inline float log2f(float x) { return lg2_approx(x); }
inline float logf(float x) { return lg2_approx(x) * 0.6931471805599453f; }
inline float log10f(float x) { return lg2_approx(x) * 0.3010299956639812f; }
inline float powf(float x, float y) { return ex2_approx(y * lg2_approx(x)); }
inline float tanhf(float x) { return tanh_approx(x); }
#endif
// Of a number and a NaN, return the number, like max.f32 and min.f32; inline, unlike libm's functions.
inline float fmaxf(float a, float b) { return a < b || a != a ? b : a; }
inline float fminf(float a, float b) { return a > b || a != a ? b : a; }
float sinf(float x);
float cosf(float x);
float tanf(float x);
float sqrtf(float x);
float rsqrtf(float x);
inline float frcp_rn(float x) {
    return 1.0f / x; // __frcp_rn rounds as in IEEE 754, whatever the flags
}
inline float fdividef(float x, float y) { return x * rcp_approx(y); }

// sum + a*b, fused if all are float32.
template <typename T, typename A, typename B> inline T add(T sum, A a, B b) {
    if constexpr (std::is_same_v<T, float> && std::is_same_v<A, float> && std::is_same_v<B, float>) {
        return __builtin_fmaf(a, b, sum);
    } else {
        return sum + a * b;
    }
}
// sum + a*b if `sum` may be the product left*right of an earlier statement. Of two products, LLVM fuses the first
// (build/rewrite_products.py).
template <typename T, typename A, typename B> inline T add(bool is_product, T left, T right, T sum, A a, B b) {
    if constexpr (std::is_same_v<T, float>) {
        return is_product ? __builtin_fmaf(left, right, a * b) : add(sum, a, b);
    } else {
        return is_product ? T(left * right + T(a * b)) : T(sum + a * b);
    }
}
// sum + a*b for one of a thread's `elements`, where LLVM fuses if there are several.
template <typename T, typename A, typename B> inline T add_one_of(int elements, T sum, A a, B b) {
    if constexpr (std::is_same_v<T, float> && std::is_same_v<A, float> && std::is_same_v<B, float>) {
        return elements > 1 ? __builtin_fmaf(a, b, sum) : sum + __builtin_fmaf(a, b, -0.0f); // -0: rounds the product
    } else {
        return sum + a * b;
    }
}

} // namespace simt

using simt::rsqrtf;
