// Rows whose length is no multiple of a tile: cp.async reads what is there, fills the rest with zeros, and says by an #if
// how much the L2 cache fetches. Each block sums a row.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#ifndef PREFETCH
#define PREFETCH 1
#endif
#define UNROLL #pragma unroll

constexpr int kTile = 32, kThreads = kTile / 4;

template <int bytes> __device__ void copy(void* shared, const void* global, int read) {
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile(
#if PREFETCH
        "cp.async.cg.shared.global.L2::128B [%0], [%1], %2, %3;"
#else
        "cp.async.cg.shared.global [%0], [%1], %2, %3;"
#endif
        ::"r"(to), "l"(global), "n"(bytes), "r"(read));
}

__global__ void sums(const float* rows, float* out, int pitch, int length) {
    __shared__ __align__(16) float tile[kTile];
    float sum = 0.0f;
    for (int first = 0; first < length; first += kTile) {
        const int at = first + 4 * threadIdx.x, left = length - at;
        const int count = left < 0 ? 0 : left < 4 ? left : 4;
        // Beyond the row's end nothing is read, wherever the address points.
        copy<16>(&tile[4 * threadIdx.x], rows + blockIdx.x * pitch + at, 4 * count);
        asm volatile("cp.async.wait_all;\n" ::);
        __syncthreads();
        UNROLL
        for (int i = 0; i < kTile; i++) sum += tile[i];
        __syncthreads();
    }
    uint16_t rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(sum));
    if (threadIdx.x == 0) {
        out[2 * blockIdx.x] = sum;
        out[2 * blockIdx.x + 1] = __bfloat162float(reinterpret_cast<const __nv_bfloat16&>(rounded));
    }
}

int main() {
    const int n = 7, length = 75, pitch = 76;
    std::vector<float> rows(n * pitch, 1e30f);  // what no copy may read
    for (int row = 0; row < n; row++)
        for (int i = 0; i < length; i++) rows[row * pitch + i] = float((row * 31 + i * 7) % 17 - 8);
    float *device, *out;
    cudaMalloc(&device, rows.size() * sizeof(float));
    cudaMallocManaged(&out, 2 * n * sizeof(float));
    cudaMemcpy(device, rows.data(), rows.size() * sizeof(float), cudaMemcpyHostToDevice);
    sums<<<n, kThreads>>>(device, out, pitch, length);
    cudaDeviceSynchronize();
    int wrong = 0;
    for (int row = 0; row < n; row++) {
        float right = 0.0f;
        for (int i = 0; i < length; i++) right += rows[row * pitch + i];
        wrong += out[2 * row] != right || out[2 * row + 1] != __bfloat162float(__float2bfloat16(right));
    }
    std::printf("padded_copy: %d rows of %d, %d wrong: %s\n", n, length, wrong, wrong == 0 ? "PASS" : "FAIL");
    return wrong != 0;
}
