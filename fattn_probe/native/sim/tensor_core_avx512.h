// The tensor cores' arithmetic on processors with AVX-512: the same bits as tensor_core.h, several times as fast.
#pragma once

#include "lanes.h"

#include <cstdint>

namespace simt {

// Whether this processor has what the functions below need (AVX-512 F, BW, VL, DQ).
bool has_avx512();

// As the functions of tensor_core.h. False, with nothing written, where an operand is an infinity or a NaN.
bool mma_f16_accumulate_f32_avx512(int K, const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
bool mma_f16_accumulate_f16_avx512(int K, const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);

} // namespace simt
