// Counts bytes in 256 bins: each block counts with atomics in shared memory and then adds its bins to the global
// ones; a second kernel gives each warp its own bins, so that fewer threads meet in one.
#include <cstdint>
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

constexpr int kBins = 256;
constexpr int kBlock = 192;
constexpr int kWarps = kBlock / 32;

__global__ void count_per_block(const uint8_t *data, size_t count, unsigned *bins) {
    __shared__ unsigned block_bins[kBins];
    for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
        block_bins[bin] = 0;
    }
    __syncthreads();
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        atomicAdd(&block_bins[data[i]], 1u);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
        atomicAdd(&bins[bin], block_bins[bin]);
    }
}

// Reads four bytes at a time; the last bytes, if any are left over, belong to the first threads.
__global__ void count_per_warp(const uint8_t *data, size_t count, unsigned *bins) {
    __shared__ unsigned warp_bins[kWarps][kBins];
    for (int i = threadIdx.x; i < kWarps * kBins; i += blockDim.x) {
        warp_bins[i / kBins][i % kBins] = 0;
    }
    __syncthreads();

    unsigned *own = warp_bins[threadIdx.x / warpSize];
    const size_t thread = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const uchar4 *quads = reinterpret_cast<const uchar4 *>(data);
    for (size_t i = thread; i < count / 4; i += size_t(gridDim.x) * blockDim.x) {
        const uchar4 quad = quads[i];
        atomicAdd(own + quad.x, 1u);
        atomicAdd(own + quad.y, 1u);
        atomicAdd(own + quad.z, 1u);
        atomicAdd(own + quad.w, 1u);
    }
    if (thread < count % 4) {
        atomicAdd(own + data[count / 4 * 4 + thread], 1u);
    }
    __syncthreads();

    for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
        unsigned sum = 0;
        for (int warp = 0; warp < kWarps; ++warp) {
            sum += warp_bins[warp][bin];
        }
        if (sum != 0) {
            atomicAdd(&bins[bin], sum);
        }
    }
}

int main() {
    const size_t count = 300003;
    const int grid = 24;
    std::vector<uint8_t> data(count);
    std::vector<unsigned> expected(kBins, 0);
    unsigned state = 99;
    for (uint8_t &value : data) {
        state = state * 1664525u + 1013904223u;
        // The product of two parts of the state: small values are much more frequent than large ones.
        value = static_cast<uint8_t>(((state >> 24) * ((state >> 16) & 0xff)) >> 8);
        ++expected[value];
    }

    uint8_t *device_data = nullptr;
    unsigned *device_bins = nullptr;
    CHECK(cudaMalloc(&device_data, count));
    CHECK(cudaMalloc(&device_bins, 2 * kBins * sizeof(unsigned)));
    CHECK(cudaMemcpy(device_data, data.data(), count, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(device_bins, 0, 2 * kBins * sizeof(unsigned)));
    count_per_block<<<grid, kBlock>>>(device_data, count, device_bins);
    CHECK(cudaGetLastError());
    count_per_warp<<<grid, kBlock>>>(device_data, count, device_bins + kBins);
    CHECK(cudaGetLastError());
    std::vector<unsigned> bins(2 * kBins);
    CHECK(cudaMemcpy(bins.data(), device_bins, bins.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(device_data));
    CHECK(cudaFree(device_bins));

    int wrong = 0;
    for (int bin = 0; bin < 2 * kBins; ++bin) {
        wrong += bins[bin] != expected[bin % kBins];
    }
    std::printf("histogram: 2 kernels, %zu bytes, %d wrong bins: %s\n", count, wrong, wrong == 0 ? "PASS" : "FAIL");
    return wrong == 0 ? 0 : 1;
}
