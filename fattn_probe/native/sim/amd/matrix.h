// The clang builtins for AMD matrix instructions that llama.cpp's mma.cuh uses. Each architecture has only those that
// clang accepts for it.
#pragma once

#include "../ahead.h" // MatrixWork
#include "../check_quick.h"
#include "../check_sites.h"
#include "../count.h"
#include "../warp.h"
#include "matrix_cores.h"
#include "vector.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

namespace simt::amd {

template <class T> SIMT_PART inline void deposit(LaneWords *words, uint32_t lane, const T &operand) {
    uint32_t own[sizeof(T) / 4];
    memcpy(own, &operand, sizeof(T));
    for (size_t i = 0; i < sizeof(T) / 4; i++) {
        words[i][lane] = own[i];
    }
}

// D = A*B + C by all lanes of the warp; `work(a, b, c, d)` computes D from their registers.
template <class AB, class CD, class Work>
SIMT_UNCHECKED CD matrix_instruction(const char *name, const AB &a, const AB &b, const CD &c, Work work) {
    constexpr int of_a = sizeof(AB) / 4, of_c = sizeof(CD) / 4;
    constexpr int of_copies = checking && SIMT_GFX_NUMBER >= 0x1100 && SIMT_GFX_NUMBER < 0x1200 ? 2 * of_a : 0;
    static_assert(2 * of_a + of_c <= most_operands && of_c <= most_results, "room in Registers");
    note_site();
    check_registers(AccessKind::read, a, b, c);
    Registers &registers = warp_instruction(
        name,
        [&](Registers &r, uint32_t lane) SIMT_PART {
            deposit(r.in, lane, c);
            deposit(r.in + of_c, lane, a);
            deposit(r.in + of_c + of_a, lane, b);
        },
        [=](Registers &r) SIMT_PART {
            count_matrix_product(name);
            work(r.in + of_c, r.in + of_c + of_a, r.in, r.out);
        });
    for (int i = of_c; i < of_c + of_copies; i++) {
        check_copy(name, registers.in[i]);
    }
    uint32_t own[of_c];
    for (int i = 0; i < of_c; i++) {
        own[i] = registers.out[i][self->lane];
    }
    CD d;
    memcpy(static_cast<void *>(&d), own, sizeof(d));
    return d;
}

template <int N> using FloatVector = ext_vector<float, N>;
template <int N> using HalfVector = ext_vector<__half, N>;
template <int N> using BfloatVector = ext_vector<__nv_bfloat16, N>;

} // namespace simt::amd

#if SIMT_GFX_NUMBER >= 0x1100
namespace simt::amd {
// A and B of iu8 are any vectors of 32-bit words with `bytes` bytes. With `clamp`, an overflow saturates.
template <size_t bytes, class AB, class CD>
SIMT_PART inline CD wmma_iu8(bool a_signed, const AB &a, bool b_signed, const AB &b, const CD &c, bool clamp) {
    static_assert(sizeof(AB) == bytes && sizeof(CD) == 32, "as clang demands");
    const auto work = [=](const LaneWords *x, const LaneWords *y, const LaneWords *old, LaneWords *made) {
        wmma_i32_16x16x16_iu8(a_signed, b_signed, clamp, x, y, old, made);
    };
    return matrix_instruction("v_wmma_i32_16x16x16_iu8", a, b, c, work);
}
} // namespace simt::amd
#endif

#if SIMT_GFX_NUMBER >= 0x1200
SIMT_PART inline simt::amd::FloatVector<8>
__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(const simt::amd::HalfVector<8> &a, const simt::amd::HalfVector<8> &b,
                                                 const simt::amd::FloatVector<8> &c) {
    return simt::amd::matrix_instruction("v_wmma_f32_16x16x16_f16", a, b, c, simt::amd::wmma_f32_16x16x16_f16);
}
SIMT_PART inline simt::amd::FloatVector<8> __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(
    const simt::amd::BfloatVector<8> &a, const simt::amd::BfloatVector<8> &b, const simt::amd::FloatVector<8> &c) {
    return simt::amd::matrix_instruction("v_wmma_f32_16x16x16_bf16", a, b, c, simt::amd::wmma_f32_16x16x16_bf16);
}
SIMT_PART inline simt::amd::HalfVector<8>
__builtin_amdgcn_wmma_f16_16x16x16_f16_w32_gfx12(const simt::amd::HalfVector<8> &a, const simt::amd::HalfVector<8> &b,
                                                 const simt::amd::HalfVector<8> &c) {
    return simt::amd::matrix_instruction("v_wmma_f16_16x16x16_f16", a, b, c, simt::amd::wmma_f16_16x16x16_f16);
}
template <class AB, class CD>
SIMT_PART inline CD __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(bool a_signed, const AB &a, bool b_signed,
                                                                     const AB &b, const CD &c, bool clamp) {
    return simt::amd::wmma_iu8<8>(a_signed, a, b_signed, b, c, clamp);
}
#elif SIMT_GFX_NUMBER >= 0x1100
SIMT_PART inline simt::amd::FloatVector<8>
__builtin_amdgcn_wmma_f32_16x16x16_f16_w32(const simt::amd::HalfVector<16> &a, const simt::amd::HalfVector<16> &b,
                                           const simt::amd::FloatVector<8> &c) {
    return simt::amd::matrix_instruction("v_wmma_f32_16x16x16_f16", a, b, c, simt::amd::wmma_f32_16x16x16_f16);
}
SIMT_PART inline simt::amd::FloatVector<8>
__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(const simt::amd::BfloatVector<16> &a, const simt::amd::BfloatVector<16> &b,
                                            const simt::amd::FloatVector<8> &c) {
    return simt::amd::matrix_instruction("v_wmma_f32_16x16x16_bf16", a, b, c, simt::amd::wmma_f32_16x16x16_bf16);
}
// Element 2*i + high of C and D is a result; the other elements are copied from C.
SIMT_PART inline simt::amd::HalfVector<16>
__builtin_amdgcn_wmma_f16_16x16x16_f16_w32(const simt::amd::HalfVector<16> &a, const simt::amd::HalfVector<16> &b,
                                           const simt::amd::HalfVector<16> &c, bool high) {
    const auto work = [=](const simt::LaneWords *x, const simt::LaneWords *y, const simt::LaneWords *old,
                          simt::LaneWords *made) { simt::amd::wmma_f16_16x16x16_f16(high, x, y, old, made); };
    return simt::amd::matrix_instruction("v_wmma_f16_16x16x16_f16", a, b, c, work);
}
template <class AB, class CD>
SIMT_PART inline CD __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(bool a_signed, const AB &a, bool b_signed, const AB &b,
                                                               const CD &c, bool clamp) {
    return simt::amd::wmma_iu8<16>(a_signed, a, b_signed, b, c, clamp);
}
#elif SIMT_GFX_NUMBER == 0x908 || SIMT_GFX_NUMBER == 0x90a || SIMT_GFX_NUMBER == 0x942
namespace simt::amd {
// MFMA can reuse a block of A or lanes of B (cbsz, abid, blgp); llama.cpp does not use this.
template <class AB, class CD>
SIMT_PART inline CD mfma(const char *name, MatrixWork work, const AB &a, const AB &b, const CD &c, int cbsz, int abid,
                         int blgp) {
    if (__builtin_expect((cbsz | abid | blgp) != 0, 0)) {
        report_unsupported("an MFMA instruction that broadcasts A or B", __FILE__, __LINE__);
    }
    return matrix_instruction(name, a, b, c, work);
}
} // namespace simt::amd

SIMT_PART inline simt::amd::FloatVector<4> __builtin_amdgcn_mfma_f32_16x16x4f32(float a, float b,
                                                                                const simt::amd::FloatVector<4> &c,
                                                                                int cbsz, int abid, int blgp) {
    return simt::amd::mfma("v_mfma_f32_16x16x4_f32", simt::amd::mfma_f32_16x16x4_f32, a, b, c, cbsz, abid, blgp);
}
SIMT_PART inline simt::amd::FloatVector<4> __builtin_amdgcn_mfma_f32_16x16x16f16(const simt::amd::HalfVector<4> &a,
                                                                                 const simt::amd::HalfVector<4> &b,
                                                                                 const simt::amd::FloatVector<4> &c,
                                                                                 int cbsz, int abid, int blgp) {
    return simt::amd::mfma("v_mfma_f32_16x16x16_f16", simt::amd::mfma_f32_16x16x16_f16, a, b, c, cbsz, abid, blgp);
}
#if SIMT_GFX_NUMBER == 0x942
SIMT_PART inline simt::amd::FloatVector<4> __builtin_amdgcn_mfma_f32_16x16x8_xf32(const simt::amd::FloatVector<2> &a,
                                                                                  const simt::amd::FloatVector<2> &b,
                                                                                  const simt::amd::FloatVector<4> &c,
                                                                                  int cbsz, int abid, int blgp) {
    return simt::amd::mfma("v_mfma_f32_16x16x8_xf32", simt::amd::mfma_f32_16x16x8_xf32, a, b, c, cbsz, abid, blgp);
}
template <class CD>
SIMT_PART inline CD __builtin_amdgcn_mfma_i32_16x16x32_i8(int64_t a, int64_t b, const CD &c, int cbsz, int abid,
                                                          int blgp) {
    static_assert(sizeof(CD) == 16, "as clang demands");
    return simt::amd::mfma("v_mfma_i32_16x16x32_i8", simt::amd::mfma_i32_16x16x32_i8, a, b, c, cbsz, abid, blgp);
}
template <class CD>
SIMT_PART inline CD __builtin_amdgcn_mfma_i32_32x32x16_i8(int64_t a, int64_t b, const CD &c, int cbsz, int abid,
                                                          int blgp) {
    static_assert(sizeof(CD) == 64, "as clang demands");
    return simt::amd::mfma("v_mfma_i32_32x32x16_i8", simt::amd::mfma_i32_32x32x16_i8, a, b, c, cbsz, abid, blgp);
}
#else
SIMT_PART inline simt::amd::FloatVector<4> __builtin_amdgcn_mfma_f32_16x16x8bf16(const simt::amd::BfloatVector<2> &a,
                                                                                 const simt::amd::BfloatVector<2> &b,
                                                                                 const simt::amd::FloatVector<4> &c,
                                                                                 int cbsz, int abid, int blgp) {
    return simt::amd::mfma("v_mfma_f32_16x16x8_bf16", simt::amd::mfma_f32_16x16x8_bf16, a, b, c, cbsz, abid, blgp);
}
template <class CD>
SIMT_PART inline CD __builtin_amdgcn_mfma_i32_16x16x16i8(int a, int b, const CD &c, int cbsz, int abid, int blgp) {
    static_assert(sizeof(CD) == 16, "as clang demands");
    return simt::amd::mfma("v_mfma_i32_16x16x16_i8", simt::amd::mfma_i32_16x16x16_i8, a, b, c, cbsz, abid, blgp);
}
template <class CD>
SIMT_PART inline CD __builtin_amdgcn_mfma_i32_32x32x8i8(int a, int b, const CD &c, int cbsz, int abid, int blgp) {
    static_assert(sizeof(CD) == 64, "as clang demands");
    return simt::amd::mfma("v_mfma_i32_32x32x8_i8", simt::amd::mfma_i32_32x32x8_i8, a, b, c, cbsz, abid, blgp);
}
#endif
#if SIMT_GFX_NUMBER != 0x908
SIMT_PART inline simt::amd::FloatVector<4>
__builtin_amdgcn_mfma_f32_16x16x16bf16_1k(const simt::amd::BfloatVector<4> &a, const simt::amd::BfloatVector<4> &b,
                                          const simt::amd::FloatVector<4> &c, int cbsz, int abid, int blgp) {
    return simt::amd::mfma("v_mfma_f32_16x16x16_bf16", simt::amd::mfma_f32_16x16x16_bf16, a, b, c, cbsz, abid, blgp);
}
#endif
#endif
