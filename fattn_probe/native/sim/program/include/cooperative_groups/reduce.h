// cooperative_groups::reduce of tiles and coalesced lanes.
#pragma once

#include "../cooperative_groups.h"

namespace cooperative_groups {

template <class T> struct plus {
    T operator()(T a, T b) const { return a + b; }
};
template <class T> struct less { // as in CUDA: the smaller one
    T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T> struct greater {
    T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T> struct bit_and {
    T operator()(T a, T b) const { return a & b; }
};
template <class T> struct bit_or {
    T operator()(T a, T b) const { return a | b; }
};
template <class T> struct bit_xor {
    T operator()(T a, T b) const { return a ^ b; }
};

// Reduces by halves, as CUDA does for tiles; the order matters for floats.
template <class Group, class T, class Operation> T reduce(const Group &group, T value, Operation operation) {
    const unsigned size = group.size();
    if ((size & (size - 1)) != 0) {
        return simt::reduce(group.mask(), value, operation);
    }
    for (unsigned offset = size / 2; offset > 0; offset /= 2) {
        value = operation(value, group.shfl_xor(value, offset));
    }
    return value;
}

} // namespace cooperative_groups
