// IEEE binary16 and bfloat16 as bits, converted with the host's instructions if it has them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace simt {

inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

#if defined(__F16C__)
inline float float_of_half(uint16_t bits) { return _cvtsh_ss(bits); }
inline uint16_t half_of_float(float value) {
    return _cvtss_sh(value, 0); // to nearest even
}
#else
inline float float_of_half(uint16_t bits) {
    __fp16 value;
    memcpy(&value, &bits, 2);
    return value;
}
inline uint16_t half_of_float(float value) {
    const __fp16 half = value;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
}
#endif

// Rounds once: first to float32 by rounding to odd (Boldo and Melquiond, "When double rounding is odd"), then to
// nearest even.
inline uint16_t half_of_double(double value) {
    float truncated = static_cast<float>(value);
    if (static_cast<double>(truncated) != value && !std::isnan(value) && !std::isinf(truncated)) {
        uint32_t bits = bits_of_float(truncated);
        if (std::fabs(static_cast<double>(truncated)) > std::fabs(value)) {
            bits--;
        }
        truncated = float_of_bits(bits | 1);
    }
    return half_of_float(truncated);
}

// a*b + c with one rounding. The float32 result is enough unless it is halfway between two halves, or a subnormal half.
inline uint16_t half_fma(uint16_t a, uint16_t b, uint16_t c) {
    const float sum = std::fma(float_of_half(a), float_of_half(b), float_of_half(c));
    const uint32_t bits = bits_of_float(sum);
    if (__builtin_expect((bits & 0x1FFF) == 0x1000 || (bits & 0x7FFFFFFF) < 0x38800000, 0)) {
        return half_of_double(std::fma(static_cast<double>(float_of_half(a)), static_cast<double>(float_of_half(b)),
                                       static_cast<double>(float_of_half(c))));
    }
    return half_of_float(sum);
}

inline float float_of_bfloat(uint16_t bits) { return float_of_bits(static_cast<uint32_t>(bits) << 16); }
inline uint16_t bfloat_of_float(float value) {
    const uint32_t bits = bits_of_float(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) {
        return 0x7FFF; // the NaN that the hardware makes
    }
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

} // namespace simt
