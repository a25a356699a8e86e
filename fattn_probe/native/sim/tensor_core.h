// The arithmetic of tensor cores.
#pragma once

#include "lanes.h"

#include <cstdint>

namespace simt {

// D = A*B + C of one m16n8kK instruction on f16 (K = 8 or 16); operands [register][lane], as PTX lays fragments out.
//
// Rule (Fasi, Higham, Mikaitis, Pranesh, PeerJ CS 7:e330; Khattak and Mikaitis, arXiv 2512.07004): products are exact;
// a group of products and the accumulator are aligned to the largest exponent among them, where a product's exponent is
// the *sum of its factors' exponents*, not the exponent of the normalised product; each term is truncated to 24 bits
// plus `extra`, the sum is exact, and is truncated to 24 bits (f32) or rounded to nearest even (f16). On an H200 this
// agrees in every bit with 1,280,000 random results, f16 subnormals and exponents of +-20 included.
void mma_f16_accumulate_f32(int K, const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
void mma_f16_accumulate_f16(int K, const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
void mma_bf16_accumulate_f32(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);

// Volta's m8n8k4: four independent products in one instruction, one per quad pair of lanes.
void mma_m8n8k4_f32(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
void mma_m8n8k4_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);

} // namespace simt
