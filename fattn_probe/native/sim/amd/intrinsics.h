#pragma once
#include <cstdint>
inline int __builtin_amdgcn_sdot4(int a, int b, int c, bool) {
    for (int i = 0; i < 4; i++)
        c += int8_t(a >> (8 * i)) * int8_t(b >> (8 * i));
    return c;
}
inline int __builtin_amdgcn_sudot4(bool, int a, bool, int b, int c, bool) {
    return __builtin_amdgcn_sdot4(a, b, c, false);
}
inline void __builtin_amdgcn_sched_group_barrier(int, int, int) {}

inline uint32_t __builtin_amdgcn_perm(uint32_t a, uint32_t b, uint32_t select) {
    const uint64_t bytes = static_cast<uint64_t>(a) << 32 | b;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t s = select >> (8 * i) & 0xFF;
        uint32_t byte = s >= 13   ? 0xFF
                        : s == 12 ? 0
                        : s >= 8  ? ((bytes >> (16 * (s - 8) + 15) & 1) ? 0xFF : 0)
                                  : (bytes >> (8 * s) & 0xFF);
        result |= byte << (8 * i);
    }
    return result;
}
namespace simt::ptx {
inline void v_dot2_f32_f16(float &sum, __half2 a, __half2 b) {
    sum = __half2float(a.x) * __half2float(b.x) + __half2float(a.y) * __half2float(b.y) + sum;
}
} // namespace simt::ptx
