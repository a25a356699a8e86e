// Adds up an array in four ways: a tree in shared memory and one atomic for each block, warp shuffles, tiles of
// cooperative groups, and one launch in which the last block to finish adds up the sums of all the others.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_runtime.h>

#define CHECK(call)                                                                                    \
    do {                                                                                               \
        cudaError_t status = (call);                                                                   \
        if (status != cudaSuccess) {                                                                   \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status));       \
            std::exit(1);                                                                              \
        }                                                                                              \
    } while (0)

namespace cg = cooperative_groups;

constexpr int kBlock = 256;
constexpr int kWarps = kBlock / 32;

extern __shared__ float scratch[];  // one float for each thread: the launch says so
__device__ unsigned int blocks_done = 0;

// What one thread has to add up: every element that its grid-stride loop meets.
__device__ float thread_sum(const float *in, int count) {
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        sum += in[i];
    }
    return sum;
}

// The sum over the block, in scratch[0].
__device__ void tree(float value) {
    scratch[threadIdx.x] = value;
    __syncthreads();
    for (unsigned int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            scratch[threadIdx.x] += scratch[threadIdx.x + half];
        }
        __syncthreads();
    }
}

__global__ void reduce_tree(const float *in, float *sums, int count) {
    tree(thread_sum(in, count));
    if (threadIdx.x == 0) {
        atomicAdd(&sums[0], scratch[0]);
    }
}

// The sum over the warp, in its first lane; all lanes must call it.
__device__ float warp_sum(float value) {
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_down_sync(0xffffffffu, value, offset);
    }
    return value;
}

__global__ void reduce_shuffle(const float *in, float *sums, int count) {
    __shared__ float warp_sums[kWarps];
    const float own_warp = warp_sum(thread_sum(in, count));
    if (threadIdx.x % 32 == 0) {
        warp_sums[threadIdx.x / 32] = own_warp;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const float sum = warp_sum(threadIdx.x < kWarps ? warp_sums[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) {
            sums[blockIdx.x] = sum;
        }
    }
}

__global__ void reduce_groups(const float *in, float *sums, int count) {
    const cg::thread_block block = cg::this_thread_block();
    const cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const float own_warp = cg::reduce(warp, thread_sum(in, count), cg::plus<float>());
    if (warp.thread_rank() == 0) {
        scratch[warp.meta_group_rank()] = own_warp;
    }
    block.sync();
    if (warp.meta_group_rank() == 0) {
        const float value = warp.thread_rank() < warp.meta_group_size() ? scratch[warp.thread_rank()] : 0.0f;
        const float sum = cg::reduce(warp, value, cg::plus<float>());
        cg::invoke_one(warp, [&] { sums[blockIdx.x] = sum; });
    }
}

__global__ void reduce_last_block(const float *in, float *sums, int count) {
    __shared__ bool is_last;
    tree(thread_sum(in, count));
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = scratch[0];
        // The sum must be visible to the other blocks before the counter says so; the counter wraps to 0 by itself.
        __threadfence();
        is_last = atomicInc(&blocks_done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last) {
        tree(threadIdx.x < gridDim.x ? __ldcg(&sums[threadIdx.x]) : 0.0f);
        if (threadIdx.x == 0) {
            sums[0] = scratch[0];
        }
    }
}

int main() {
    const int count = 150001;
    const int grid = 40;
    std::vector<float> in(count);
    double expected = 0.0;
    unsigned state = 7;
    for (float &value : in) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<float>(state >> 8) / 16777216.0f;
        expected += value;
    }

    float *device_in = nullptr, *device_sums = nullptr;
    CHECK(cudaMalloc(&device_in, count * sizeof(float)));
    CHECK(cudaMalloc(&device_sums, grid * sizeof(float)));
    CHECK(cudaMemcpy(device_in, in.data(), count * sizeof(float), cudaMemcpyHostToDevice));

    // The last one twice: the counter must be back at 0 after its first launch.
    using Kernel = void (*)(const float *, float *, int);
    const Kernel kernels[] = {reduce_tree, reduce_shuffle, reduce_groups, reduce_last_block, reduce_last_block};
    double largest = 0.0;
    for (Kernel kernel : kernels) {
        CHECK(cudaMemset(device_sums, 0, grid * sizeof(float)));
        kernel<<<grid, kBlock, kBlock * sizeof(float)>>>(device_in, device_sums, count);
        CHECK(cudaGetLastError());
        // Two of them leave the sums of the blocks to the host.
        std::vector<float> sums(kernel == reduce_shuffle || kernel == reduce_groups ? grid : 1);
        CHECK(cudaMemcpy(sums.data(), device_sums, sums.size() * sizeof(float), cudaMemcpyDeviceToHost));
        const double error = std::fabs(std::accumulate(sums.begin(), sums.end(), 0.0) - expected) / expected;
        largest = error <= largest ? largest : error;
    }
    CHECK(cudaFree(device_in));
    CHECK(cudaFree(device_sums));

    const bool right = largest < 1e-5;
    std::printf("reduction: 4 kernels, error %s 1e-5: %s\n", right ? "below" : "NOT below", right ? "PASS" : "FAIL");
    return right ? 0 : 1;
}
