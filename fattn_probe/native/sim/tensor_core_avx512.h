// The tensor cores' arithmetic on processors with AVX-512: the same bits as tensor_core.h, several times as fast.
#pragma once

#include <cstdint>

namespace simt {

// Whether this processor has what the functions below need (AVX-512 F, BW, VL, DQ).
bool has_avx512();

// As the functions of tensor_core.h. False, with nothing written, where an operand is an infinity or a NaN.
bool mma_f16_accumulate_f32_avx512(int K, const uint32_t (*a)[32], const uint32_t (*b)[32], const uint32_t (*c)[32],
                                   uint32_t (*d)[32]);
bool mma_f16_accumulate_f16_avx512(int K, const uint32_t (*a)[32], const uint32_t (*b)[32], const uint32_t (*c)[32],
                                   uint32_t (*d)[32]);

} // namespace simt
