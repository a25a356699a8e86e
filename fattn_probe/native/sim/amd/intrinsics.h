// AMD's instructions, apart from those for matrices, under the names of clang's built-in functions and of the
// assembler. Semantics: AMD's instruction set guides.
#pragma once

#include "../intrinsics.h"
#include "dot2.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace simt::amd {

// v_dot4: four products of bytes, and a sum that may saturate.
inline int dot4(bool a_signed, int a, bool b_signed, int b, int sum, bool clamp) {
    const auto byte = [](bool is_signed, int word, int i) {
        return is_signed ? static_cast<int8_t>(word >> (8 * i)) : static_cast<uint8_t>(word >> (8 * i));
    };
    int64_t exact = sum;
    for (int i = 0; i < 4; i++) {
        exact += byte(a_signed, a, i) * byte(b_signed, b, i);
    }
    return static_cast<int>(clamp ? std::clamp<int64_t>(exact, INT32_MIN, INT32_MAX) : exact);
}

} // namespace simt::amd

inline int __builtin_amdgcn_sdot4(int a, int b, int sum, bool clamp) {
    return simt::amd::dot4(true, a, true, b, sum, clamp);
}
inline int __builtin_amdgcn_sudot4(bool a_signed, int a, bool b_signed, int b, int sum, bool clamp) {
    return simt::amd::dot4(a_signed, a, b_signed, b, sum, clamp);
}

// v_perm_b32: each byte of the selector chooses one of the eight bytes of `high` and `low` (0 to 7), the sign of every
// second byte (8 to 11), 0 (12) or 0xFF.
inline uint32_t __builtin_amdgcn_perm(uint32_t high, uint32_t low, uint32_t selector) {
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t choice = selector >> (8 * i) & 0xFF;
        const auto sign = [&] { return bytes >> (16 * (choice - 8) + 15) & 1 ? 0xFF : 0; };
        const uint32_t byte = choice < 8     ? bytes >> (8 * choice) & 0xFF
                              : choice < 12  ? sign()
                              : choice == 12 ? 0
                                             : 0xFF;
        result |= byte << (8 * i);
    }
    return result;
}

// v_med3_f32: the median; the least number, if one is a NaN.
inline float __builtin_amdgcn_fmed3f(float a, float b, float c) {
    const bool is_nan = a != a || b != b || c != c;
    const float most = fmaxf(fmaxf(a, b), c), others = most == a ? fmaxf(b, c) : fmaxf(a, most == b ? c : b);
    return is_nan ? fminf(fminf(a, b), c) : others;
}

// Values of other lanes. As for __shfl, the active lanes are those that come to the same line.
inline int __builtin_amdgcn_readfirstlane(int value, int line = __builtin_LINE()) {
    const simt::LaneMask active = __activemask(line);
    return __shfl_sync(active, value, static_cast<int>(simt::lowest_lane(active)));
}
// ds_bpermute_b32: the address counts bytes and wraps around; an inactive lane gives 0.
inline int __builtin_amdgcn_ds_bpermute(int address, int value, int line = __builtin_LINE()) {
    const simt::LaneMask active = __activemask(line);
    const int from = address >> 2 & (simt::warp_size - 1);
    const bool has_value = active >> from & 1;
    const int found = __shfl_sync(active, value, has_value ? from : static_cast<int>(simt::self->lane));
    return has_value ? found : 0;
}

// A wave is in lockstep. s_barrier alone does not order memory on a GPU as it does here: it needs fences.
inline void __builtin_amdgcn_wave_barrier(int line = __builtin_LINE()) { __syncwarp(__activemask(line)); }
inline void __builtin_amdgcn_s_barrier(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    simt::sync_block(file, line);
}
inline void __builtin_amdgcn_fence(unsigned, std::string_view scope) {
    const bool within_a_block = !scope.empty() && scope != "one-as" && scope.substr(0, 5) != "agent";
    return within_a_block ? __threadfence_block() : __threadfence();
}

// Hints for ordering instructions, and waits; they do nothing here.
inline void __builtin_amdgcn_sched_barrier(int) {}
inline void __builtin_amdgcn_sched_group_barrier(int, int, int) {}
inline void __builtin_amdgcn_s_setprio(int) {}
inline void __builtin_amdgcn_s_waitcnt(int) {}

namespace simt::ptx {

template <class... Operands> void s_nop(const Operands &...) {} // s_waitcnt and s_setprio too (rewrite_asm.py)

inline void v_dot2_f32_f16(float &sum, const __half2 &a, const __half2 &b) {
    sum = amd::dot2(a.x.bits, b.x.bits, a.y.bits, b.y.bits, sum);
}

} // namespace simt::ptx
