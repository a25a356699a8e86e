// CUDA's device intrinsics (CUDA C++ Programming Guide, "C++ Language Extensions").
#pragma once

#include "check.h"
#include "check_sites.h"
#include "count.h"
#include "shuffle.h"
#include "warp.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace simt {

SIMT_UNCHECKED inline LaneMask ballot(LaneMask mask, bool predicate, const char *name) {
    note_site();
    if (__builtin_expect(!self->warp->whole(mask), 0)) {
        return ballot_in_group(mask, predicate, name);
    }
    Registers &registers = warp_instruction(
        name, [&](Registers &r, uint32_t lane) SIMT_PART { r.in[0][lane] = predicate; },
        [](Registers &r) SIMT_PART {
            count_instruction(Instruction::vote, 1);
            LaneMask votes = 0;
            for (int lane = 0; lane < warp_size; lane++) {
                votes |= (self->warp->alive >> lane & 1) ? LaneMask{r.in[0][lane]} << lane : 0;
            }
            memcpy(r.out[0], &votes, sizeof(votes));
        });
    LaneMask votes;
    memcpy(&votes, registers.out[0], sizeof(votes));
    return votes;
}

// __syncwarp(). A call that cannot throw and is not inlined does not end a basic block, so g++ fuses multiply-adds
// across the call, as nvcc does.
void sync_warp(LaneMask mask) noexcept;

// __syncthreads_or, _and, _count: a barrier that also adds up a predicate.
int sync_block_count(bool predicate, const char *file, int line);

} // namespace simt

inline void __syncwarp(simt::LaneMask mask = simt::full_mask) { simt::sync_warp(mask); }
inline simt::LaneMask __ballot_sync(simt::LaneMask mask, int predicate) {
    return simt::ballot(mask, predicate != 0, "vote.sync.ballot");
}
inline int __any_sync(simt::LaneMask mask, int predicate) {
    return simt::ballot(mask, predicate != 0, "vote.sync.any") != 0;
}
inline int __all_sync(simt::LaneMask mask, int predicate) {
    return simt::ballot(mask, predicate == 0, "vote.sync.all") == 0;
}
inline simt::LaneMask __activemask(int line = __builtin_LINE()) { return simt::active_mask(line); }
template <class T> inline T __reduce_add_sync(simt::LaneMask mask, T value) {
    return simt::butterfly(mask, value, simt::warp_size / 2, simt::warp_size, [](T a, T b) { return a + b; });
}
template <class T> inline T __reduce_max_sync(simt::LaneMask mask, T value) {
    return simt::butterfly(mask, value, simt::warp_size / 2, simt::warp_size, [](T a, T b) { return std::max(a, b); });
}
#define __syncthreads_or(predicate) (simt::sync_block_count((predicate) != 0, __FILE__, __LINE__) != 0)
#define __syncthreads_and(predicate) (simt::sync_block_count((predicate) == 0, __FILE__, __LINE__) == 0)
#define __syncthreads_count(predicate) simt::sync_block_count((predicate) != 0, __FILE__, __LINE__)

inline void __threadfence() { simt::note_fence(); }
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) {}
template <class T> inline T __ldg(const T *pointer) { return *pointer; }

// Integers.
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __clz(int a) { return a == 0 ? 32 : __builtin_clz(static_cast<unsigned>(a)); }
inline unsigned __brev(unsigned a) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++) {
        reversed |= (a >> i & 1) << (31 - i);
    }
    return reversed;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned choice = selector >> (4 * i);
        uint8_t byte = static_cast<uint8_t>(bytes >> (8 * (choice & 7)));
        if (choice & 8) {
            byte = byte & 0x80 ? 0xFF : 0; // the mode that replicates the sign
        }
        result |= static_cast<unsigned>(byte) << (8 * i);
    }
    return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline int __dp4a(int a, int b, int sum) {
    for (int i = 0; i < 4; i++) {
        sum += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
    }
    return sum;
}

namespace simt {

// Four bytes at a time, `operation(int8, int8) -> byte`.
template <class Operation> unsigned bytewise(unsigned a, unsigned b, Operation operation) {
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const int byte = operation(static_cast<int8_t>(a >> (8 * i)), static_cast<int8_t>(b >> (8 * i)));
        result |= static_cast<unsigned>(byte & 0xFF) << (8 * i);
    }
    return result;
}

} // namespace simt

#if !defined(SIMT_GFX) // AMD's compiler has none of these
inline unsigned __vsub4(unsigned a, unsigned b) {
    return simt::bytewise(a, b, [](int x, int y) { return x - y; });
}
inline unsigned __vadd4(unsigned a, unsigned b) {
    return simt::bytewise(a, b, [](int x, int y) { return x + y; });
}
inline unsigned __vsubss4(unsigned a, unsigned b) {
    return simt::bytewise(a, b, [](int x, int y) { return x - y < -128 ? -128 : x - y > 127 ? 127 : x - y; });
}
inline unsigned __vcmpeq4(unsigned a, unsigned b) {
    return simt::bytewise(a, b, [](int x, int y) { return x == y ? 0xFF : 0; });
}
inline unsigned __vcmpne4(unsigned a, unsigned b) {
    return simt::bytewise(a, b, [](int x, int y) { return x != y ? 0xFF : 0; });
}
#endif

// Bits and numbers.
inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline int __float_as_int(float value) { return static_cast<int>(__float_as_uint(value)); }
inline int __float2int_rn(float value) { return static_cast<int>(std::nearbyint(value)); }
inline float __saturatef(float value) { return value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) {
    volatile float product = a * b; // never contracted
    return product;
}
inline float __fadd_rn(float a, float b) {
    volatile float sum = a + b;
    return sum;
}

// min and max of mixed types, like CUDA's overloads for device code.
#undef min
#undef max
template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) {
    using C = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<C>) {
        return a > b || a != a ? static_cast<C>(b) : static_cast<C>(a); // the number, if the other is a NaN
    } else {
        return static_cast<C>(b) < static_cast<C>(a) ? static_cast<C>(b) : static_cast<C>(a);
    }
}
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) {
    using C = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<C>) {
        return a < b || a != a ? static_cast<C>(b) : static_cast<C>(a);
    } else {
        return static_cast<C>(a) < static_cast<C>(b) ? static_cast<C>(b) : static_cast<C>(a);
    }
}
