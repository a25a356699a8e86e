// The eight-bit formats (CUDA Math API, "FP8 Intrinsics"): ggml's block types use them for scales.
#pragma once

#include "cuda_bf16.h"
#include "cuda_fp16.h"

#include <cmath>
#include <cstdint>

using __nv_fp8_storage_t = uint8_t;
using __nv_fp8x2_storage_t = uint16_t;
using __nv_fp8x4_storage_t = uint32_t;

enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

namespace simt {

// The code of a number in a format with `fraction` bits of fraction, whose smallest normal number has the exponent
// `least` and whose largest number is `largest`: rounded once, to nearest even. A NaN becomes 0x7F. A number that
// rounds beyond `largest` becomes `largest`, or `beyond` without saturation.
template <int fraction, int least> uint8_t fp8_code(double value, double largest, __nv_saturation_t saturation) {
    const double size = std::fabs(value), half_step = std::ldexp(1.0, std::ilogb(largest) - fraction - 1);
    const int largest_code = fraction == 3 ? 0x7E : 0x7B;
    const uint8_t sign = std::signbit(value) ? 0x80 : 0;
    if (std::isnan(value)) {
        return 0x7F;
    }
    // E4M3's next code is NaN, which no tie reaches, because 448 is even. E5M2's is infinity, which a tie reaches.
    if (size > largest + half_step || (fraction == 2 && size == largest + half_step)) {
        return sign | static_cast<uint8_t>(saturation == __NV_SATFINITE ? largest_code : largest_code + 1);
    }
    const int exponent = size < std::ldexp(1.0, least) ? least : std::ilogb(size);
    const int scaled = static_cast<int>(std::nearbyint(std::ldexp(size, fraction - exponent))); // less if subnormal
    const int code = scaled + (exponent - least) * (1 << fraction);
    return sign | static_cast<uint8_t>(code < largest_code ? code : largest_code);
}

inline uint8_t fp8_of(double value, __nv_saturation_t saturation, __nv_fp8_interpretation_t format) {
    return format == __NV_E4M3 ? fp8_code<3, -6>(value, 448, saturation) : fp8_code<2, -14>(value, 57344, saturation);
}

// The exponent code of a number's magnitude, rounded up or towards zero to a power of two.
inline uint8_t power_of_two(double value, __nv_saturation_t saturation, cudaRoundMode rounding) {
    const double size = std::fabs(value);
    if (std::isnan(value)) {
        return 0xFF;
    }
    const int exponent = std::isinf(size) ? 128 : size < 0x1p-126 ? -127 : std::ilogb(size);
    const int up = rounding == cudaRoundPosInf && !std::isinf(size) && size > std::ldexp(1.0, exponent);
    const int code = exponent + up + 127, largest = saturation == __NV_SATFINITE ? 254 : 255;
    return static_cast<uint8_t>(code < largest ? code : largest);
}

inline uint16_t two_codes(uint8_t low, uint8_t high) { return static_cast<uint16_t>(low | high << 8); }

} // namespace simt

// E4M3: no infinity, NaN is 0x7F, the largest value 448.
struct __nv_fp8_e4m3 {
    __nv_fp8_storage_t __x;

    __nv_fp8_e4m3() = default;
    explicit __nv_fp8_e4m3(float value) : __x(simt::fp8_of(value, __NV_SATFINITE, __NV_E4M3)) {}
    operator float() const {
        const int exponent = __x >> 3 & 15, fraction = __x & 7;
        const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                         : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
        return (__x & 0x7F) == 0x7F ? NAN : __x & 0x80 ? -size : size;
    }
};

// E5M2: the upper half of an f16; the largest value is 57344.
struct __nv_fp8_e5m2 {
    __nv_fp8_storage_t __x;

    __nv_fp8_e5m2() = default;
    explicit __nv_fp8_e5m2(float value) : __x(simt::fp8_of(value, __NV_SATFINITE, __NV_E5M2)) {}
    operator float() const { return simt::float_of_half(static_cast<uint16_t>(__x << 8)); }
};

// E8M0: a power of two; 255 is NaN.
struct __nv_fp8_e8m0 {
    __nv_fp8_storage_t __x;

    __nv_fp8_e8m0() = default;
    explicit __nv_fp8_e8m0(float value) : __x(simt::power_of_two(value, __NV_SATFINITE, cudaRoundPosInf)) {}
    operator float() const { return __x == 255 ? NAN : std::ldexp(1.0f, __x - 127); }
};

inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t saturation,
                                                 __nv_fp8_interpretation_t format) {
    return simt::fp8_of(x, saturation, format);
}
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturation,
                                                __nv_fp8_interpretation_t format) {
    return simt::fp8_of(x, saturation, format);
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(const float2 &x, __nv_saturation_t saturation,
                                                     __nv_fp8_interpretation_t format) {
    return simt::two_codes(simt::fp8_of(x.x, saturation, format), simt::fp8_of(x.y, saturation, format));
}
inline __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(const __half_raw &x, __nv_saturation_t saturation,
                                                  __nv_fp8_interpretation_t format) {
    return simt::fp8_of(simt::float_of_half(x.x), saturation, format);
}
inline __nv_fp8x2_storage_t __nv_cvt_halfraw2_to_fp8x2(const __half2_raw &x, __nv_saturation_t saturation,
                                                       __nv_fp8_interpretation_t format) {
    return simt::two_codes(__nv_cvt_halfraw_to_fp8({x.x}, saturation, format),
                           __nv_cvt_halfraw_to_fp8({x.y}, saturation, format));
}
inline __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(const __nv_bfloat16_raw &x, __nv_saturation_t saturation,
                                                      __nv_fp8_interpretation_t format) {
    return simt::fp8_of(simt::float_of_bfloat(x.x), saturation, format);
}
inline __nv_fp8x2_storage_t __nv_cvt_bfloat16raw2_to_fp8x2(const __nv_bfloat162_raw &x, __nv_saturation_t saturation,
                                                           __nv_fp8_interpretation_t format) {
    return simt::two_codes(__nv_cvt_bfloat16raw_to_fp8({x.x}, saturation, format),
                           __nv_cvt_bfloat16raw_to_fp8({x.y}, saturation, format));
}
// f16 holds every number of both formats. A NaN becomes 0x7FFF, as in CUDA.
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t format) {
    __nv_fp8_e4m3 number;
    number.__x = x;
    const bool nan = (x & 0x7F) > (format == __NV_E4M3 ? 0x7E : 0x7C);
    const uint16_t bits = format == __NV_E4M3 ? simt::half_of_float(number) : static_cast<uint16_t>(x << 8);
    return {nan ? static_cast<uint16_t>(0x7FFF) : bits};
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t format) {
    return {__nv_cvt_fp8_to_halfraw(static_cast<uint8_t>(x), format).x,
            __nv_cvt_fp8_to_halfraw(static_cast<uint8_t>(x >> 8), format).x};
}

inline __nv_bfloat16_raw __nv_cvt_e8m0_to_bf16raw(__nv_fp8_storage_t x) {
    const int bits = x == 255 ? 0x7FFF : x == 0 ? 0x0040 : x << 7;
    return {static_cast<unsigned short>(bits)};
}
inline __nv_bfloat162_raw __nv_cvt_e8m0x2_to_bf162raw(__nv_fp8x2_storage_t x) {
    return {__nv_cvt_e8m0_to_bf16raw(static_cast<uint8_t>(x)).x,
            __nv_cvt_e8m0_to_bf16raw(static_cast<uint8_t>(x >> 8)).x};
}
inline __nv_fp8_storage_t __nv_cvt_double_to_e8m0(double x, __nv_saturation_t saturation, cudaRoundMode rounding) {
    return simt::power_of_two(x, saturation, rounding);
}
inline __nv_fp8_storage_t __nv_cvt_float_to_e8m0(float x, __nv_saturation_t saturation, cudaRoundMode rounding) {
    return simt::power_of_two(x, saturation, rounding);
}
inline __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_e8m0(const __nv_bfloat16_raw &x, __nv_saturation_t saturation,
                                                       cudaRoundMode rounding) {
    return simt::power_of_two(simt::float_of_bfloat(x.x), saturation, rounding);
}
inline __nv_fp8x2_storage_t __nv_cvt_double2_to_e8m0x2(const double2 &x, __nv_saturation_t saturation,
                                                       cudaRoundMode rounding) {
    return simt::two_codes(simt::power_of_two(x.x, saturation, rounding),
                           simt::power_of_two(x.y, saturation, rounding));
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_e8m0x2(const float2 &x, __nv_saturation_t saturation,
                                                      cudaRoundMode rounding) {
    return __nv_cvt_double2_to_e8m0x2({x.x, x.y}, saturation, rounding);
}
inline __nv_fp8x2_storage_t __nv_cvt_bfloat162raw_to_e8m0x2(const __nv_bfloat162_raw &x, __nv_saturation_t saturation,
                                                            cudaRoundMode rounding) {
    return __nv_cvt_float2_to_e8m0x2({simt::float_of_bfloat(x.x), simt::float_of_bfloat(x.y)}, saturation, rounding);
}
