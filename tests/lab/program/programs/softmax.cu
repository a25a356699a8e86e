// Softmax over the rows of a matrix, three ways: a warp per row with __expf, a block per row with expf, and a warp
// per row that reads and writes __half. Shows warp shuffles, a block-wide reduction and mixed precision.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#define CHECK(call)                                                                                      \
    do {                                                                                                 \
        cudaError_t status_ = (call);                                                                    \
        if (status_ != cudaSuccess) {                                                                    \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_));        \
            std::exit(1);                                                                                \
        }                                                                                                \
    } while (0)

constexpr int kWarp = 32;
constexpr unsigned kFullMask = 0xffffffffu;

__device__ float warp_max(float value) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(kFullMask, value, offset));
    return value;
}

__device__ float warp_sum(float value) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kFullMask, value, offset);
    return value;
}

__device__ float load(const float* p) { return *p; }
__device__ float load(const __half* p) { return __half2float(*p); }
__device__ void store(float* p, float value) { *p = value; }
__device__ void store(__half* p, float value) { *p = __float2half_rn(value); }

// One warp handles one row; the arithmetic is in float whatever the type in memory is.
template <typename T>
__global__ void softmax_warp(const T* in, T* out, int rows, int columns) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const T* source = in + size_t(row) * columns;
    T* target = out + size_t(row) * columns;
    float largest = -INFINITY;
    for (int c = threadIdx.x; c < columns; c += kWarp) largest = fmaxf(largest, load(source + c));
    largest = warp_max(largest);
    float sum = 0.0f;
    for (int c = threadIdx.x; c < columns; c += kWarp) sum += __expf(load(source + c) - largest);
    const float scale = 1.0f / warp_sum(sum);
    for (int c = threadIdx.x; c < columns; c += kWarp) store(target + c, __expf(load(source + c) - largest) * scale);
}

// One block handles one row: a reduction inside each warp, then one over the warps through shared memory.
__global__ void softmax_block(const float* __restrict__ in, float* __restrict__ out, int columns) {
    __shared__ float partial[kWarp];
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    const float* source = in + size_t(blockIdx.x) * columns;
    float* target = out + size_t(blockIdx.x) * columns;

    float largest = -INFINITY;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) largest = fmaxf(largest, source[c]);
    largest = warp_max(largest);
    if (lane == 0) partial[warp] = largest;
    __syncthreads();
    largest = warp_max(lane < warps ? partial[lane] : -INFINITY);
    __syncthreads();  // everybody has read the maxima before the sums overwrite them

    float sum = 0.0f;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += expf(source[c] - largest);
    sum = warp_sum(sum);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    sum = warp_sum(lane < warps ? partial[lane] : 0.0f);
    for (int c = threadIdx.x; c < columns; c += blockDim.x) target[c] = expf(source[c] - largest) / sum;
}

// The largest difference from a softmax in double.
template <typename T>
double largest_error(const std::vector<T>& in, const std::vector<T>& out, int rows, int columns) {
    double worst = 0.0;
    for (int r = 0; r < rows; ++r) {
        const T* source = in.data() + size_t(r) * columns;
        double largest = -INFINITY, sum = 0.0;
        for (int c = 0; c < columns; ++c) largest = std::max(largest, double(float(source[c])));
        for (int c = 0; c < columns; ++c) sum += std::exp(double(float(source[c])) - largest);
        for (int c = 0; c < columns; ++c) {
            const double right = std::exp(double(float(source[c])) - largest) / sum;
            const double error = std::abs(double(float(out[size_t(r) * columns + c])) - right);
            worst = error <= worst ? worst : error;  // a NaN is kept
        }
    }
    return worst;
}

template <typename T, typename Launch>
double run(const std::vector<T>& in, int rows, int columns, Launch launch) {
    T *in_device, *out_device;
    const size_t bytes = in.size() * sizeof(T);
    CHECK(cudaMalloc(&in_device, bytes));
    CHECK(cudaMalloc(&out_device, bytes));
    CHECK(cudaMemcpy(in_device, in.data(), bytes, cudaMemcpyHostToDevice));
    launch(in_device, out_device);
    CHECK(cudaGetLastError());
    std::vector<T> out(in.size());
    CHECK(cudaMemcpy(out.data(), out_device, bytes, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(in_device));
    CHECK(cudaFree(out_device));
    return largest_error(in, out, rows, columns);
}

int main() {
    const int rows = 37, columns = 700;
    std::mt19937 random(1);
    std::vector<float> in(size_t(rows) * columns);
    std::vector<__half> in_half(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
        in[i] = float(random() % 2001) / 100.0f - 10.0f;
        in_half[i] = __float2half(in[i]);
    }
    const dim3 block(kWarp, 4);
    const int blocks = (rows + 3) / 4;
    const double by_warp = run(in, rows, columns, [&](const float* from, float* to) {
        softmax_warp<<<blocks, block>>>(from, to, rows, columns);
    });
    const double by_block = run(in, rows, columns, [&](const float* from, float* to) {
        softmax_block<<<rows, 192>>>(from, to, columns);
    });
    const double in_halves = run(in_half, rows, columns, [&](const __half* from, __half* to) {
        softmax_warp<__half><<<blocks, block>>>(from, to, rows, columns);
    });
    const bool good = by_warp < 1e-6 && by_block < 1e-6 && in_halves < 1e-4;
    std::printf("softmax: largest error, warp %.1e, block %.1e, half %.1e: %s\n", by_warp, by_block, in_halves,
                good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
