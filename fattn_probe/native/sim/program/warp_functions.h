// Functions of a warp that llama.cpp's attention kernels do not use, and those without a mask (until CUDA 8; HIP's).
#pragma once

#include "../intrinsics.h"

#include <cstdint>
#include <cstring>

// Of a lane that does not call it, HIP and old CUDA give no value: the lanes at one place take part.
template <class T> inline T __shfl(T value, int source, int width = simt::warp_size, int line = __builtin_LINE()) {
    return __shfl_sync(__activemask(line), value, source, width);
}
template <class T>
inline T __shfl_up(T value, unsigned delta, int width = simt::warp_size, int line = __builtin_LINE()) {
    return __shfl_up_sync(__activemask(line), value, delta, width);
}
template <class T>
inline T __shfl_down(T value, unsigned delta, int width = simt::warp_size, int line = __builtin_LINE()) {
    return __shfl_down_sync(__activemask(line), value, delta, width);
}
template <class T> inline T __shfl_xor(T value, int offset, int width = simt::warp_size, int line = __builtin_LINE()) {
    return __shfl_xor_sync(__activemask(line), value, offset, width);
}
inline auto __ballot(int predicate, int line = __builtin_LINE()) {
    return __ballot_sync(__activemask(line), predicate);
}
inline int __any(int predicate, int line = __builtin_LINE()) { return __any_sync(__activemask(line), predicate); }
inline int __all(int predicate, int line = __builtin_LINE()) { return __all_sync(__activemask(line), predicate); }

namespace simt {

// The values of a mask's lanes, combined in the order of lanes.
template <class T, class Operation> T reduce(uint32_t mask, T value, Operation operation) {
    const T own = value;
    bool first = true;
    for (int lane = 0; lane < warp_size; lane++) {
        if (mask >> lane & 1) {
            const T other = __shfl_sync(mask, own, lane);
            value = first ? other : operation(value, other);
            first = false;
        }
    }
    return value;
}

// The lanes of a mask that have the same value.
template <class T> uint32_t match(uint32_t mask, T value) {
    uint32_t same = 0;
    for (int lane = 0; lane < warp_size; lane++) {
        if (mask >> lane & 1) {
            const T other = __shfl_sync(mask, value, lane);
            same |= static_cast<uint32_t>(memcmp(&other, &value, sizeof(T)) == 0) << lane;
        }
    }
    return same;
}

} // namespace simt

template <class T> inline T __reduce_min_sync(unsigned mask, T value) {
    return simt::reduce(mask, value, [](T a, T b) { return b < a ? b : a; });
}
template <class T> inline T __reduce_and_sync(unsigned mask, T value) {
    return simt::reduce(mask, value, [](T a, T b) { return a & b; });
}
template <class T> inline T __reduce_or_sync(unsigned mask, T value) {
    return simt::reduce(mask, value, [](T a, T b) { return a | b; });
}
template <class T> inline T __reduce_xor_sync(unsigned mask, T value) {
    return simt::reduce(mask, value, [](T a, T b) { return a ^ b; });
}
template <class T> inline unsigned __match_any_sync(unsigned mask, T value) { return simt::match(mask, value); }
template <class T> inline unsigned __match_all_sync(unsigned mask, T value, int *all) {
    const unsigned same = simt::match(mask, value);
    *all = same == mask;
    return *all ? mask : 0;
}
