// Cooperative groups of one block (CUDA C++ Programming Guide, "Cooperative Groups"): block, tiles of a warp, coalesced
// lanes; reduce and scans are in cooperative_groups/. Here, a grid has its indices, but no barrier.
#pragma once

#include "../warp_functions.h"

#include <cstdint>

namespace cooperative_groups {

// A thread's number in its block, x fastest.
inline unsigned thread_number() { return simt::self->thread_number(); }

class thread_block {
  public:
    static unsigned size() { return simt::blockDim.x * simt::blockDim.y * simt::blockDim.z; }
    static unsigned num_threads() { return size(); }
    static unsigned thread_rank() { return thread_number(); }
    static dim3 group_index() { return {simt::blockIdx.x, simt::blockIdx.y, simt::blockIdx.z}; }
    static dim3 thread_index() {
        const uint3 index = simt::self->thread_idx;
        return {index.x, index.y, index.z};
    }
    static dim3 group_dim() { return simt::blockDim; }
    static dim3 dim_threads() { return simt::blockDim; }
    static void sync(const char *file = __builtin_FILE(), int line = __builtin_LINE()) { simt::sync_block(file, line); }
};
inline thread_block this_thread_block() { return {}; }

constexpr simt::LaneMask first_lanes(unsigned number) {
    return number >= static_cast<unsigned>(simt::warp_size) ? simt::full_mask : simt::lanes_below(number);
}

// Lanes of a warp. `rank` numbers the lanes of the mask, from the lowest on.
class lanes {
  public:
    explicit lanes(simt::LaneMask mask) : mask_(mask) {}

    unsigned size() const { return simt::count_lanes(mask_); }
    unsigned num_threads() const { return size(); }
    unsigned thread_rank() const { return simt::count_lanes(mask_ & simt::lanes_below(simt::self->lane)); }
    void sync() const { __syncwarp(mask_); }
    template <class T> T shfl(T value, unsigned rank) const { return __shfl_sync(mask_, value, lane_of(rank)); }
    template <class T> T shfl_down(T value, unsigned delta) const {
        const unsigned rank = thread_rank() + delta;
        return shfl(value, rank < size() ? rank : thread_rank());
    }
    template <class T> T shfl_up(T value, unsigned delta) const {
        return shfl(value, thread_rank() >= delta ? thread_rank() - delta : thread_rank());
    }
    template <class T> T shfl_xor(T value, unsigned offset) const {
        const unsigned rank = thread_rank() ^ offset;
        return shfl(value, rank < size() ? rank : thread_rank());
    }
    simt::LaneMask ballot(int predicate) const {
        const simt::LaneMask votes = __ballot_sync(mask_, predicate);
        simt::LaneMask ranks = 0;
        for (unsigned rank = 0; rank < size(); rank++) {
            ranks |= (votes >> lane_of(rank) & 1) << rank;
        }
        return ranks;
    }
    int any(int predicate) const { return __any_sync(mask_, predicate); }
    int all(int predicate) const { return __all_sync(mask_, predicate); }
    simt::LaneMask mask() const { return mask_; }

  private:
    int lane_of(unsigned rank) const {
        simt::LaneMask left = mask_;
        for (; rank > 0; rank--) {
            left &= left - 1;
        }
        return static_cast<int>(simt::lowest_lane(left));
    }

    simt::LaneMask mask_;
};

class coalesced_group : public lanes {
  public:
    using lanes::lanes;
    unsigned meta_group_rank() const { return 0; }
    unsigned meta_group_size() const { return 1; }
};
inline coalesced_group coalesced_threads(int line = __builtin_LINE()) { return coalesced_group(__activemask(line)); }

template <unsigned number, class Parent = void> class thread_block_tile : public lanes {
    static_assert(number <= simt::warp_size && (number & (number - 1)) == 0, "a tile of at most one warp");

  public:
    thread_block_tile() : lanes(first_lanes(number) << (simt::self->lane / number * number)) {}
    template <class Other> thread_block_tile(const thread_block_tile<number, Other> &) : thread_block_tile() {}

    static constexpr unsigned size() { return number; }
    static constexpr unsigned num_threads() { return number; }
    static unsigned thread_rank() { return thread_number() % number; }
    static unsigned meta_group_rank() { return thread_number() / number; }
    static unsigned meta_group_size() { return (thread_block::size() + number - 1) / number; }
    template <class T> T shfl(T value, int rank) const {
        return __shfl_sync(mask(), value, rank, static_cast<int>(number));
    }
    template <class T> T shfl_down(T value, unsigned delta) const {
        return __shfl_down_sync(mask(), value, delta, static_cast<int>(number));
    }
    template <class T> T shfl_up(T value, unsigned delta) const {
        return __shfl_up_sync(mask(), value, delta, static_cast<int>(number));
    }
    template <class T> T shfl_xor(T value, unsigned offset) const {
        return __shfl_xor_sync(mask(), value, static_cast<int>(offset), static_cast<int>(number));
    }
};
template <unsigned number, class Parent> thread_block_tile<number, Parent> tiled_partition(const Parent &) {
    return {};
}

// A group whose size is only known at run time.
class thread_group : public lanes {
  public:
    thread_group(const thread_block &) : lanes(0), block_(true) {}
    explicit thread_group(simt::LaneMask mask) : lanes(mask) {}

    unsigned size() const { return block_ ? thread_block::size() : lanes::size(); }
    unsigned num_threads() const { return size(); }
    unsigned thread_rank() const { return block_ ? thread_number() : lanes::thread_rank(); }
    void sync(const char *file = __builtin_FILE(), int line = __builtin_LINE()) const {
        if (block_) {
            simt::sync_block(file, line);
        } else {
            lanes::sync();
        }
    }

  private:
    bool block_ = false;
};
inline thread_group tiled_partition(const thread_group &, unsigned number) {
    const simt::LaneMask ones = first_lanes(number);
    return thread_group(ones << (simt::self->lane / number * number));
}

// The barrier of a grid needs all of its blocks at once, but here, blocks run one after another.
class grid_group {
  public:
    static unsigned long long num_blocks() {
        return static_cast<unsigned long long>(simt::gridDim.x) * simt::gridDim.y * simt::gridDim.z;
    }
    static unsigned long long size() { return num_blocks() * thread_block::size(); }
    static unsigned long long num_threads() { return size(); }
    static unsigned long long block_rank() {
        return simt::blockIdx.x +
               static_cast<unsigned long long>(simt::gridDim.x) *
                   (simt::blockIdx.y + static_cast<unsigned long long>(simt::gridDim.y) * simt::blockIdx.z);
    }
    static unsigned long long thread_rank() { return block_rank() * thread_block::size() + thread_number(); }
    static dim3 group_dim() { return simt::gridDim; }
    static bool is_valid() { return true; }
    static void sync(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
        simt::report_unsupported("a barrier of the whole grid", file, line);
    }
};
inline grid_group this_grid() { return {}; }

// One thread of a group calls a function; with `_broadcast`, all threads get the result.
template <class Group, class Function, class... Arguments>
void invoke_one(const Group &group, Function &&function, Arguments &&...arguments) {
    if (group.thread_rank() == 0) {
        function(arguments...);
    }
}
template <class Group, class Function, class... Arguments>
auto invoke_one_broadcast(const Group &group, Function &&function, Arguments &&...arguments) {
    decltype(function(arguments...)) result{};
    if (group.thread_rank() == 0) {
        result = function(arguments...);
    }
    return group.shfl(result, 0);
}

template <class Group> void sync(const Group &group, const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    if constexpr (std::is_base_of_v<lanes, Group> && !std::is_same_v<Group, thread_group>) {
        group.sync();
    } else {
        group.sync(file, line);
    }
}

} // namespace cooperative_groups
