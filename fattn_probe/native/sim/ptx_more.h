// PTX instructions that llama.cpp's attention kernels do not use. An immediate or a special register in the text is
// part of the function's name: `cp.async.wait_group 1;` is cp_async_wait_group_1 (build/rewrite_asm.py).
#pragma once

#include "half_bits.h"
#include "ptx.h"

namespace simt {
namespace ptx {

// C and D in separate registers: runs the instruction that has the same registers for both, on a copy of C.
template <class D, class A, class B, class C>
SIMT_PART void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(D &d0, D &d1, D &d2, D &d3, const A &a0, const A &a1,
                                                                 const A &a2, const A &a3, const B &b0, const B &b1,
                                                                 const C &c0, const C &c1, const C &c2, const C &c3) {
    D c[4] = {c0, c1, c2, c3};
    mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(c[0], c[1], c[2], c[3], a0, a1, a2, a3, b0, b1);
    d0 = c[0], d1 = c[1], d2 = c[2], d3 = c[3];
}
template <class D, class A, class B, class C>
SIMT_PART void mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32(D &d0, D &d1, D &d2, D &d3, const A &a0, const A &a1,
                                                                const B &b0, const C &c0, const C &c1, const C &c2,
                                                                const C &c3) {
    D c[4] = {c0, c1, c2, c3};
    mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32(c[0], c[1], c[2], c[3], a0, a1, b0);
    d0 = c[0], d1 = c[1], d2 = c[2], d3 = c[3];
}
template <class D, class A, class B, class C>
SIMT_PART void mma_sync_aligned_m16n8k8_row_col_f16_f16_f16_f16(D &d0, D &d1, const A &a0, const A &a1, const B &b0,
                                                                const C &c0, const C &c1) {
    D c[2] = {c0, c1};
    mma_sync_aligned_m16n8k8_row_col_f16_f16_f16_f16(c[0], c[1], a0, a1, b0);
    d0 = c[0], d1 = c[1];
}
template <class D, class A, class B, class C>
SIMT_PART void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(D &d0, D &d1, D &d2, D &d3, const A &a0, const A &a1,
                                                                   const A &a2, const A &a3, const B &b0, const B &b1,
                                                                   const C &c0, const C &c1, const C &c2, const C &c3) {
    D c[4] = {c0, c1, c2, c3};
    mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(c[0], c[1], c[2], c[3], a0, a1, a2, a3, b0, b1);
    d0 = c[0], d1 = c[1], d2 = c[2], d3 = c[3];
}
template <class D, class A, class B, class C>
SIMT_PART void mma_sync_aligned_m16n8k16_row_col_f16_f16_f16_f16(D &d0, D &d1, const A &a0, const A &a1, const A &a2,
                                                                 const A &a3, const B &b0, const B &b1, const C &c0,
                                                                 const C &c1) {
    D c[2] = {c0, c1};
    mma_sync_aligned_m16n8k16_row_col_f16_f16_f16_f16(c[0], c[1], a0, a1, a2, a3, b0, b1);
    d0 = c[0], d1 = c[1];
}

// The number of bytes written and, after it, the number read; the rest become 0.
inline void copy_some(uint32_t shared, const void *global, int bytes) {
    copy_async(shared_pointer(shared), global, static_cast<size_t>(bytes));
}
inline void copy_some(uint32_t shared, const void *global, int bytes, int read) {
    copy_async(shared_pointer(shared), global, static_cast<size_t>(bytes), static_cast<size_t>(read));
}
template <class... Sizes>
void cp_async_cg_shared_global(uint32_t shared, const void *global, int bytes, Sizes... read) {
    copy_some(shared, global, bytes, read...);
}
template <class... Sizes>
void cp_async_ca_shared_global(uint32_t shared, const void *global, int bytes, Sizes... read) {
    copy_some(shared, global, bytes, read...);
}
inline void cp_async_cg_shared_global_16(uint32_t shared, const void *global, int read) {
    copy_some(shared, global, 16, read);
}
template <class... Read> void cp_async_ca_shared_global_4(uint32_t shared, const void *global, Read... read) {
    copy_some(shared, global, 4, read...);
}
template <class... Read> void cp_async_ca_shared_global_8(uint32_t shared, const void *global, Read... read) {
    copy_some(shared, global, 8, read...);
}
template <class... Read> void cp_async_ca_shared_global_16(uint32_t shared, const void *global, Read... read) {
    copy_some(shared, global, 16, read...);
}
inline void griddepcontrol_wait() { wait_for_kernels(); }
inline void griddepcontrol_launch_dependents() { trigger_dependents(); }
inline void cp_async_commit_group() { commit_copies(); }
inline void cp_async_wait_group(int left) { wait_for_copies(static_cast<uint32_t>(left)); }
inline void cp_async_wait_group_0() { cp_async_wait_group(0); }
inline void cp_async_wait_group_1() { cp_async_wait_group(1); }
inline void cp_async_wait_group_2() { cp_async_wait_group(2); }
inline void cp_async_wait_group_3() { cp_async_wait_group(3); }

template <class T> void mov_u32_laneid(T &lane) { lane = static_cast<T>(self->lane); }
template <class T> void mov_u32_warpid(T &warp) { warp = static_cast<T>(self->warp->index); }

template <class T> void cvt_rn_bf16_f32(T &result, float x) { result = static_cast<T>(bfloat_of_float(x)); }
inline void ex2_approx_f32(float &result, float x) { result = ex2_approx(x); }
inline void lg2_approx_f32(float &result, float x) { result = lg2_approx(x); }
inline void rcp_approx_f32(float &result, float x) { result = rcp_approx(x); }
inline void tanh_approx_f32(float &result, float x) { result = tanh_approx(x); }
template <class T> void prmt_b32(T &result, uint32_t a, uint32_t b, uint32_t selector) {
    result = static_cast<T>(__byte_perm(a, b, selector));
}

} // namespace ptx
} // namespace simt
