// Sorts keys by 4 bits at a time, from the lowest to the highest. Each pass counts the digits of every block, turns
// the counts into places, and moves the keys there; __ballot_sync and __popc keep equal digits in order.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>
#include <cuda_runtime.h>

#define CHECK(call)                                                                                    \
    do {                                                                                               \
        cudaError_t status = (call);                                                                   \
        if (status != cudaSuccess) {                                                                   \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status));       \
            std::exit(1);                                                                              \
        }                                                                                              \
    } while (0)

constexpr int kBits = 4;
constexpr int kDigits = 1 << kBits;
constexpr int kBlock = 256;
constexpr int kWarps = kBlock / 32;

// The upper half is what is sorted, the lower half comes along: it shows whether equal keys stay in order.
using Item = unsigned long long;

__device__ unsigned digit_of(Item item, int shift) {
    return static_cast<unsigned>(item >> (32 + shift)) & (kDigits - 1);
}

// The lanes of this warp that hold the same digit; every lane must call it.
__device__ unsigned lanes_with_digit(unsigned digit, bool valid) {
    unsigned lanes = __ballot_sync(0xffffffffu, valid);
    for (int bit = 0; bit < kBits; ++bit) {
        const bool set = (digit >> bit) & 1;
        const unsigned lanes_set = __ballot_sync(0xffffffffu, set);
        lanes &= set ? lanes_set : ~lanes_set;
    }
    return lanes;
}

// counts[digit * blocks + block]: in this order, a prefix sum gives the place of each block's first such digit.
__global__ void count_digits(const Item *items, int count, int shift, unsigned *counts) {
    __shared__ unsigned block_counts[kDigits];
    if (threadIdx.x < kDigits) {
        block_counts[threadIdx.x] = 0;
    }
    __syncthreads();
    const int i = blockIdx.x * kBlock + threadIdx.x;
    if (i < count) {
        atomicAdd(&block_counts[digit_of(items[i], shift)], 1u);
    }
    __syncthreads();
    if (threadIdx.x < kDigits) {
        counts[threadIdx.x * gridDim.x + blockIdx.x] = block_counts[threadIdx.x];
    }
}

// One warp turns all counts into their exclusive prefix sums, 32 at a time.
__global__ void scan_counts(unsigned *counts, int count) {
    unsigned before = 0;
    for (int start = 0; start < count; start += 32) {
        const int i = start + threadIdx.x;
        const unsigned own = i < count ? counts[i] : 0;
        unsigned sum = own;
        for (int distance = 1; distance < 32; distance *= 2) {
            const unsigned other = __shfl_up_sync(0xffffffffu, sum, distance);
            sum += static_cast<int>(threadIdx.x) >= distance ? other : 0;
        }
        if (i < count) {
            counts[i] = before + sum - own;
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
}

__global__ void move_items(const Item *in, Item *out, int count, int shift, const unsigned *places) {
    __shared__ unsigned warp_counts[kWarps][kDigits];
    const unsigned lane = threadIdx.x % 32;
    const unsigned warp = threadIdx.x / 32;
    if (lane < kDigits) {
        warp_counts[warp][lane] = 0;
    }
    __syncwarp();

    const int i = blockIdx.x * kBlock + threadIdx.x;
    const bool valid = i < count;
    const Item item = valid ? in[i] : 0;
    const unsigned digit = digit_of(item, shift);
    const unsigned same = lanes_with_digit(digit, valid);
    const unsigned rank = __popc(same & ((1u << lane) - 1));
    if (valid && rank == 0) {
        warp_counts[warp][digit] = __popc(same);
    }
    __syncthreads();

    if (valid) {
        unsigned place = places[digit * gridDim.x + blockIdx.x] + rank;
        for (unsigned earlier = 0; earlier < warp; ++earlier) {
            place += warp_counts[earlier][digit];
        }
        out[place] = item;
    }
}

int main() {
    const int count = 10007;
    const int blocks = (count + kBlock - 1) / kBlock;
    std::vector<Item> items(count);
    unsigned state = 5;
    for (int i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        // Every 5th key is the same one as before, so there are equal keys far apart and close to each other.
        const unsigned key = i % 5 == 4 ? static_cast<unsigned>(items[i / 2] >> 32) : state;
        items[i] = static_cast<Item>(key) << 32 | static_cast<unsigned>(i);
    }
    std::vector<Item> expected = items;
    std::stable_sort(expected.begin(), expected.end(), [](Item a, Item b) { return a >> 32 < b >> 32; });

    Item *in = nullptr;
    Item *out = nullptr;
    unsigned *counts = nullptr;
    CHECK(cudaMalloc(&in, count * sizeof(Item)));
    CHECK(cudaMalloc(&out, count * sizeof(Item)));
    CHECK(cudaMalloc(&counts, kDigits * blocks * sizeof(unsigned)));
    CHECK(cudaMemcpy(in, items.data(), count * sizeof(Item), cudaMemcpyHostToDevice));
    for (int shift = 0; shift < 32; shift += kBits) {
        count_digits<<<blocks, kBlock>>>(in, count, shift, counts);
        scan_counts<<<1, 32>>>(counts, kDigits * blocks);
        move_items<<<blocks, kBlock>>>(in, out, count, shift, counts);
        CHECK(cudaGetLastError());
        std::swap(in, out);
    }
    CHECK(cudaMemcpy(items.data(), in, count * sizeof(Item), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(in));
    CHECK(cudaFree(out));
    CHECK(cudaFree(counts));

    int wrong = 0;
    for (int i = 0; i < count; ++i) {
        wrong += items[i] != expected[i];
    }
    std::printf("radix sort: %d items, 8 passes, %d wrong: %s\n", count, wrong, wrong == 0 ? "PASS" : "FAIL");
    return wrong == 0 ? 0 : 1;
}
