// The tensor cores' arithmetic on processors with AVX-512: the same bits as tensor_core.h, several times as fast.
#pragma once

#include "lanes.h"

#include <cstdint>

namespace simt {

// The number of products that are added at once, and of bits beyond 24 that take part, by generation.
#if SIMT_ARCH >= 900
constexpr int group = 16, extra = 2;
#elif SIMT_ARCH >= 800
constexpr int group = 8, extra = 1;
#else
constexpr int group = 4, extra = 0; // Volta; Turing is assumed to be the same
#endif

// Whether this processor has the instructions that the functions below need (AVX-512 F, BW, VL, DQ).
bool has_avx512();

// Like the functions of tensor_core.h. Returns false and writes nothing if an operand is an infinity or a NaN.
bool mma_f16_accumulate_f32_avx512(int K, const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
bool mma_f16_accumulate_f16_avx512(int K, const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);

} // namespace simt
