// The special functions of device code under -use_fast_math: the hardware's approximations, bit for bit where they
// were measured (data/README.md), correctly rounded where not.
#pragma once

#include "division.h"

namespace simt {

float ex2_approx(float x);  // ex2.approx.ftz.f32, measured on Hopper
float rcp_approx(float x);  // rcp.approx.ftz.f32, measured on Hopper
float tanh_approx(float x); // tanh.approx.f32, measured on Hopper
float lg2_approx(float x);  // lg2.approx.ftz.f32, measured on Hopper

inline float exp2f(float x) { return ex2_approx(x); }
inline float expf(float x) { return ex2_approx(x * 1.4426950408889634f); }
inline float exp10f(float x) { return ex2_approx(x * 3.3219280948873623f); }
inline float log2f(float x) { return lg2_approx(x); }
inline float logf(float x) { return lg2_approx(x) * 0.6931471805599453f; }
inline float log10f(float x) { return lg2_approx(x) * 0.3010299956639812f; }
inline float powf(float x, float y) { return ex2_approx(y * lg2_approx(x)); }
inline float tanhf(float x) { return tanh_approx(x); }
// Of a number and a NaN the number, as max.f32 and min.f32; inline, where libm's are calls.
inline float fmaxf(float a, float b) { return a < b || a != a ? b : a; }
inline float fminf(float a, float b) { return a > b || a != a ? b : a; }
float sinf(float x);
float cosf(float x);
float tanf(float x);
float sqrtf(float x);
float rsqrtf(float x);
inline float frcp_rn(float x) {
    return 1.0f / x; // __frcp_rn is IEEE's, whatever the flags
}
inline float fdividef(float x, float y) { return x * rcp_approx(y); }

} // namespace simt

using simt::rsqrtf;
