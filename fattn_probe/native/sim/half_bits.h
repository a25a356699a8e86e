// IEEE binary16 and bfloat16 as bits, converted with the host's instructions if it has them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <smmintrin.h> // not <immintrin.h>, whose AVX-512 takes a second to read; hence the built-ins for F16C and FMA
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

// The two numbers of a half2 as floats, and back, in one instruction each; the other two are zero.
typedef float FloatPair __attribute__((vector_size(16)));

#if defined(__F16C__)
typedef short HalfBits __attribute__((vector_size(16)));

inline FloatPair floats_of_pair(uint32_t bits) {
    return __builtin_ia32_vcvtph2ps(HalfBits(_mm_cvtsi32_si128(static_cast<int>(bits))));
}
inline uint32_t pair_of_floats(FloatPair values) {
    return static_cast<uint32_t>(_mm_cvtsi128_si32(__m128i(__builtin_ia32_vcvtps2ph(values, 0))));
}
inline float float_of_half(uint16_t bits) {
    return __builtin_ia32_vcvtph2ps(HalfBits{static_cast<short>(bits), 0, 0, 0, 0, 0, 0, 0})[0];
}
inline uint16_t half_of_float(float value) {
    return static_cast<uint16_t>(__builtin_ia32_vcvtps2ph(FloatPair{value, 0, 0, 0}, 0)[0]); // to nearest even
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
inline FloatPair floats_of_pair(uint32_t bits) {
    return {float_of_half(static_cast<uint16_t>(bits)), float_of_half(static_cast<uint16_t>(bits >> 16)), 0, 0};
}
inline uint32_t pair_of_floats(FloatPair values) {
    return half_of_float(values[0]) | static_cast<uint32_t>(half_of_float(values[1])) << 16;
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

// half_fma for both numbers of a half2, one by one: rarely needed, so it is a separate function.
__attribute__((noinline, cold)) inline uint32_t pair_fma_exactly(uint32_t a, uint32_t b, uint32_t c) {
    const auto low = half_fma(static_cast<uint16_t>(a), static_cast<uint16_t>(b), static_cast<uint16_t>(c));
    const auto high =
        half_fma(static_cast<uint16_t>(a >> 16), static_cast<uint16_t>(b >> 16), static_cast<uint16_t>(c >> 16));
    return low | static_cast<uint32_t>(high) << 16;
}
#if defined(__F16C__) && defined(__FMA__)
// half_fma for both numbers, given the sums as floats; a sum that is itself a half is the correctly rounded result.
__attribute__((noinline, cold)) inline uint32_t pair_of_doubtful(__m128 sums, uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t halves = pair_of_floats(sums);
    const FloatPair back = floats_of_pair(halves);
    return back[0] == sums[0] && back[1] == sums[1] ? halves : pair_fma_exactly(a, b, c);
}
#endif
inline uint32_t pair_fma(uint32_t a, uint32_t b, uint32_t c) {
#if defined(__F16C__) && defined(__FMA__)
    const __m128 sum = __builtin_ia32_vfmaddps(floats_of_pair(a), floats_of_pair(b), floats_of_pair(c));
    // Rounding the sum once more can only be wrong if it is halfway between two halves: then, normal or subnormal, its
    // last 12 bits are zero. The other two lanes never equal the value that they are compared with.
    const __m128i last_bits = _mm_and_si128(_mm_castps_si128(sum), _mm_set1_epi32(0xFFF));
    const __m128i doubtful = _mm_cmpeq_epi32(last_bits, _mm_set_epi32(-1, -1, 0, 0));
    if (__builtin_expect(_mm_testz_si128(doubtful, doubtful), 1)) {
        return pair_of_floats(sum);
    }
    return pair_of_doubtful(sum, a, b, c);
#else
    return pair_fma_exactly(a, b, c);
#endif
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
