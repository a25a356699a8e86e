// The results of AMD's matrix instructions, on registers [register][lane]; `d` may be `c`.
//
// The positions of elements are from AMD's instruction set guides and its matrix instruction calculator.
// `fattn_probe/cases/device/amd_arithmetic.csv` lists the rounding of each instruction, and the source for it.
#pragma once

#include "../lanes.h"

#include <cstdint>

namespace simt::amd {

#if SIMT_GFX_NUMBER >= 0x1100 // RDNA3 and RDNA4
void wmma_f32_16x16x16_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
void wmma_f32_16x16x16_bf16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
void wmma_i32_16x16x16_iu8(bool a_signed, bool b_signed, bool clamp, const LaneWords *a, const LaneWords *b,
                           const LaneWords *c, LaneWords *d);
#if SIMT_GFX_NUMBER < 0x1200
// C and D have one f16 in each register, in the upper half if `high`; D's other half is copied from C.
void wmma_f16_16x16x16_f16(bool high, const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
#else
void wmma_f16_16x16x16_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
#endif

#elif SIMT_GFX_NUMBER == 0x908 || SIMT_GFX_NUMBER == 0x90a || SIMT_GFX_NUMBER == 0x942 // CDNA
void mfma_f32_16x16x4_f32(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
void mfma_f32_16x16x16_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
#if SIMT_GFX_NUMBER == 0x942
void mfma_f32_16x16x8_xf32(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
void mfma_i32_16x16x32_i8(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
void mfma_i32_32x32x16_i8(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
#else
void mfma_f32_16x16x8_bf16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
void mfma_i32_16x16x16_i8(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
void mfma_i32_32x32x8_i8(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
#endif
#if SIMT_GFX_NUMBER != 0x908
void mfma_f32_16x16x16_bf16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);
#endif
#endif

} // namespace simt::amd
