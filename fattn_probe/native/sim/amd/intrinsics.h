// AMD's instructions for one lane, under the names that llama.cpp uses: clang's built-in functions and inline assembly.
// Semantics: AMD's instruction set guides.
#pragma once

#include "dot2.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

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

// Hints to clang for ordering instructions; they do nothing here.
inline void __builtin_amdgcn_sched_barrier(int) {}
inline void __builtin_amdgcn_sched_group_barrier(int, int, int) {}

namespace simt::ptx {

inline void v_dot2_f32_f16(float &sum, const __half2 &a, const __half2 &b) {
    sum = amd::dot2(a.x.bits, b.x.bits, a.y.bits, b.y.bits, sum);
}

} // namespace simt::ptx
