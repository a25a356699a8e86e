// Sorts keys with their values by a bitonic network: the steps within a part run in shared memory, the ones
// that reach further in global memory.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
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

struct Item {
    unsigned key;
    unsigned value;
};

constexpr unsigned kBlock = 256;
constexpr unsigned kPart = 2 * kBlock;

// Every pair of keys is different from every other one because the values are, so the result is unique.
__host__ __device__ inline bool operator<(const Item &a, const Item &b) {
    return a.key < b.key || (a.key == b.key && a.value < b.value);
}

__device__ void order(Item &low, Item &high, bool ascending) {
    if ((high < low) == ascending) {
        const Item item = low;
        low = high;
        high = item;
    }
}

// The lower index of the pair that a thread compares when the two are `stride` apart.
__device__ unsigned lower_index(unsigned thread, unsigned stride) {
    return 2 * thread - (thread & (stride - 1));
}

// Sequences of `first_size` up to `last_size`, for as far as the strides stay within the part of this block.
__global__ void sort_in_part(Item *items, unsigned first_size, unsigned last_size) {
    __shared__ Item part[kPart];
    const unsigned start = blockIdx.x * kPart;
    part[threadIdx.x] = items[start + threadIdx.x];
    part[threadIdx.x + kBlock] = items[start + threadIdx.x + kBlock];

    for (unsigned size = first_size; size <= last_size; size *= 2) {
        for (unsigned stride = min(size / 2, kBlock); stride > 0; stride /= 2) {
            __syncthreads();
            const unsigned low = lower_index(threadIdx.x, stride);
            order(part[low], part[low + stride], ((start + low) & size) == 0);
        }
    }
    __syncthreads();
    items[start + threadIdx.x] = part[threadIdx.x];
    items[start + threadIdx.x + kBlock] = part[threadIdx.x + kBlock];
}

__global__ void merge_step(Item *items, unsigned size, unsigned stride) {
    const unsigned low = lower_index(blockIdx.x * blockDim.x + threadIdx.x, stride);
    order(items[low], items[low + stride], (low & size) == 0);
}

static void sort(Item *items, unsigned count) {
    const unsigned blocks = count / kPart;
    sort_in_part<<<blocks, kBlock>>>(items, 2, kPart);
    for (unsigned size = 2 * kPart; size <= count; size *= 2) {
        for (unsigned stride = size / 2; stride > kBlock; stride /= 2) {
            merge_step<<<blocks, kBlock>>>(items, size, stride);
        }
        sort_in_part<<<blocks, kBlock>>>(items, size, size);
    }
    CHECK(cudaGetLastError());
}

int main() {
    const unsigned count = 1u << 14;
    std::vector<Item> items(count);
    unsigned state = 2024;
    for (unsigned i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        items[i] = {state >> 20, i};  // 4096 different keys: most of them several times
    }
    std::vector<Item> expected = items;
    std::sort(expected.begin(), expected.end());

    Item *device_items = nullptr;
    CHECK(cudaMalloc(&device_items, count * sizeof(Item)));
    CHECK(cudaMemcpy(device_items, items.data(), count * sizeof(Item), cudaMemcpyHostToDevice));
    sort(device_items, count);
    CHECK(cudaMemcpy(items.data(), device_items, count * sizeof(Item), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(device_items));

    int wrong = 0;
    for (unsigned i = 0; i < count; ++i) {
        wrong += items[i].key != expected[i].key || items[i].value != expected[i].value;
    }
    std::printf("bitonic sort: %u items, %d wrong: %s\n", count, wrong, wrong == 0 ? "PASS" : "FAIL");
    return wrong == 0 ? 0 : 1;
}
