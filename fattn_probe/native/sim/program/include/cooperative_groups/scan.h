// cooperative_groups::inclusive_scan and exclusive_scan of tiles and coalesced lanes.
#pragma once

#include "reduce.h"

namespace cooperative_groups {

template <class Group, class T, class Operation = plus<T>>
T inclusive_scan(const Group &group, T value, Operation operation = {}) {
    for (unsigned offset = 1; offset < group.size(); offset *= 2) {
        const T other = group.shfl_up(value, offset);
        value = group.thread_rank() >= offset ? operation(other, value) : value;
    }
    return value;
}
template <class Group, class T, class Operation = plus<T>>
T exclusive_scan(const Group &group, T value, Operation operation = {}) {
    const T before = group.shfl_up(inclusive_scan(group, value, operation), 1);
    return group.thread_rank() == 0 ? T{} : before;
}

} // namespace cooperative_groups
