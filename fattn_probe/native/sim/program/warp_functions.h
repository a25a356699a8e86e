// Warp functions that llama.cpp's attention kernels do not use, and warp functions without a mask (CUDA 8, HIP).
#pragma once

#include "../intrinsics.h"

#include <cstdint>
#include <cstring>

// In HIP and old CUDA, a lane that does not call the function has no value: only the lanes at the same place take part.
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
template <class T, class Operation> T reduce(LaneMask mask, T value, Operation operation) {
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
template <class T> LaneMask match(LaneMask mask, T value) {
    LaneMask same = 0;
    for (int lane = 0; lane < warp_size; lane++) {
        if (mask >> lane & 1) {
            const T other = __shfl_sync(mask, value, lane);
            same |= static_cast<LaneMask>(memcmp(&other, &value, sizeof(T)) == 0) << lane;
        }
    }
    return same;
}

} // namespace simt

template <class T> inline T __reduce_min_sync(simt::LaneMask mask, T value) {
    return simt::reduce(mask, value, [](T a, T b) { return b < a ? b : a; });
}
template <class T> inline T __reduce_and_sync(simt::LaneMask mask, T value) {
    return simt::reduce(mask, value, [](T a, T b) { return a & b; });
}
template <class T> inline T __reduce_or_sync(simt::LaneMask mask, T value) {
    return simt::reduce(mask, value, [](T a, T b) { return a | b; });
}
template <class T> inline T __reduce_xor_sync(simt::LaneMask mask, T value) {
    return simt::reduce(mask, value, [](T a, T b) { return a ^ b; });
}
template <class T> inline simt::LaneMask __match_any_sync(simt::LaneMask mask, T value) {
    return simt::match(mask, value);
}
template <class T> inline simt::LaneMask __match_all_sync(simt::LaneMask mask, T value, int *all) {
    const simt::LaneMask same = simt::match(mask, value);
    *all = same == mask;
    return *all ? mask : 0;
}
