// A stand-in for CUB, NVIDIA's library of sorts, sums and scans, with the functions that ggml's ops call.
//
// The library's kernels are not simulated. A call for the whole device computes at once, on the simulator's memory;
// it adds in the order of the elements, unlike the library.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

namespace cub {

namespace stand_in {

// A call without memory asks how much memory is needed.
template <typename Work> cudaError_t compute(const void *storage, size_t &bytes, Work work) {
    if (storage == nullptr) {
        bytes = 1;
    } else {
        work();
    }
    return cudaSuccess;
}

// A float's place in the order of a radix sort: -0 equals 0, NaN is above infinity, and a negative NaN below -infinity.
inline uint32_t rank(float key) {
    uint32_t bits;
    key = key == 0 ? 0 : key;
    std::memcpy(&bits, &key, sizeof(bits));
    return bits >> 31 ? ~bits : bits | uint32_t(1) << 31;
}
template <typename Key> std::enable_if_t<std::is_integral_v<Key>, Key> rank(Key key) { return key; }

// Sorts keys with their values; equal keys stay in order.
template <typename Key, typename Value>
void sort(const Key *keys, Key *keys_out, const Value *values, Value *values_out, int64_t count, bool descending) {
    std::vector<int64_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [=](int64_t a, int64_t b) {
        return descending ? rank(keys[b]) < rank(keys[a]) : rank(keys[a]) < rank(keys[b]);
    });
    for (int64_t i = 0; i < count; i++) {
        keys_out[i] = keys[order[i]];
        values_out[i] = values[order[i]];
    }
}

template <typename Key, typename Value, typename Begin, typename End>
void sort_segments(const Key *keys, Key *keys_out, const Value *values, Value *values_out, int64_t segments,
                   Begin begin, End end, bool descending) {
    for (int64_t i = 0; i < segments; i++) {
        const int64_t first = begin[i];
        sort(keys + first, keys_out + first, values + first, values_out + first, int64_t(end[i]) - first, descending);
    }
}

} // namespace stand_in

// The last arguments (the bits of a key that count, and the stream) do not matter here: ggml sorts by all bits.
struct DeviceRadixSort {
    template <typename Key, typename Value, typename... More>
    static cudaError_t SortPairs(void *storage, size_t &bytes, const Key *keys, Key *keys_out, const Value *values,
                                 Value *values_out, int64_t count, More...) {
        return stand_in::compute(storage, bytes,
                                 [&] { stand_in::sort(keys, keys_out, values, values_out, count, false); });
    }
    template <typename Key, typename Value, typename... More>
    static cudaError_t SortPairsDescending(void *storage, size_t &bytes, const Key *keys, Key *keys_out,
                                           const Value *values, Value *values_out, int64_t count, More...) {
        return stand_in::compute(storage, bytes,
                                 [&] { stand_in::sort(keys, keys_out, values, values_out, count, true); });
    }
};

struct DeviceSegmentedSort {
    template <typename Key, typename Value, typename Begin, typename End, typename... More>
    static cudaError_t SortPairs(void *storage, size_t &bytes, const Key *keys, Key *keys_out, const Value *values,
                                 Value *values_out, int64_t, int64_t segments, Begin begin, End end, More...) {
        return stand_in::compute(storage, bytes, [&] {
            stand_in::sort_segments(keys, keys_out, values, values_out, segments, begin, end, false);
        });
    }
    template <typename Key, typename Value, typename Begin, typename End, typename... More>
    static cudaError_t SortPairsDescending(void *storage, size_t &bytes, const Key *keys, Key *keys_out,
                                           const Value *values, Value *values_out, int64_t, int64_t segments,
                                           Begin begin, End end, More...) {
        return stand_in::compute(storage, bytes, [&] {
            stand_in::sort_segments(keys, keys_out, values, values_out, segments, begin, end, true);
        });
    }
};

using DeviceSegmentedRadixSort = DeviceSegmentedSort;

struct DeviceReduce {
    template <typename In, typename Out>
    static cudaError_t Sum(void *storage, size_t &bytes, const In *in, Out *out, int64_t count, cudaStream_t) {
        return stand_in::compute(storage, bytes, [&] { *out = std::accumulate(in, in + count, Out(0)); });
    }
};

struct DeviceScan {
    template <typename In, typename Out>
    static cudaError_t InclusiveSum(void *storage, size_t &bytes, const In *in, Out *out, int64_t count, cudaStream_t) {
        return stand_in::compute(storage, bytes, [&] { std::partial_sum(in, in + count, out); });
    }
};

// Sums over the threads of a one-dimensional block.
template <typename T, int threads> class BlockScan {
  public:
    struct TempStorage {
        T values[threads];
    };

    explicit BlockScan(TempStorage &storage) : storage_(storage) {}

    void InclusiveSum(T in, T &out, T &total, const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
        const unsigned own = simt::self->thread_number();
        storage_.values[own] = in;
        simt::sync_block(file, line);
        out = std::accumulate(storage_.values, storage_.values + own + 1, T(0));
        total = std::accumulate(storage_.values, storage_.values + threads, T(0));
        simt::sync_block(file, line);
    }

  private:
    TempStorage &storage_;
};

} // namespace cub
