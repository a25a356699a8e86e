// Layer normalisation of __nv_bfloat16 rows, a block per row: sums in float, paired loads as __nv_bfloat162, and a
// learned scale and shift per column. Mean and variance come from one pass (Welford's way of merging partial results).
#include <cuda_bf16.h>
#include <cuda_runtime.h>

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
constexpr int kThreads = 128;

// The count, mean and sum of squared deviations of some numbers.
struct Moments {
    float count = 0.0f, mean = 0.0f, squares = 0.0f;

    __device__ void add(float value) {
        count += 1.0f;
        const float delta = value - mean;
        mean += delta / count;
        squares += delta * (value - mean);
    }

    __device__ void merge(const Moments& other) {
        const float total = count + other.count;
        if (total == 0.0f) return;
        const float delta = other.mean - mean, share = other.count / total;
        mean += delta * share;
        squares += other.squares + delta * delta * count * share;
        count = total;
    }
};

__device__ Moments merge_warp(Moments own) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset >>= 1) {
        Moments other;
        other.count = __shfl_down_sync(0xffffffffu, own.count, offset);
        other.mean = __shfl_down_sync(0xffffffffu, own.mean, offset);
        other.squares = __shfl_down_sync(0xffffffffu, own.squares, offset);
        own.merge(other);
    }
    return own;  // right in lane 0
}

template <int Threads>
__global__ void __launch_bounds__(Threads)
    layer_norm(const __nv_bfloat16* __restrict__ in, const float* __restrict__ scale, const float* __restrict__ shift,
               __nv_bfloat16* __restrict__ out, int columns, float epsilon) {
    __shared__ float mean_shared, inverse_shared;
    __shared__ float counts[Threads / kWarp], means[Threads / kWarp], squares[Threads / kWarp];
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(in + size_t(blockIdx.x) * columns);
    auto* results = reinterpret_cast<__nv_bfloat162*>(out + size_t(blockIdx.x) * columns);

    Moments own;
    for (int p = threadIdx.x; p < columns / 2; p += Threads) {
        const float2 both = __bfloat1622float2(pairs[p]);
        own.add(both.x);
        own.add(both.y);
    }
    own = merge_warp(own);
    if (lane == 0) {
        counts[warp] = own.count;
        means[warp] = own.mean;
        squares[warp] = own.squares;
    }
    __syncthreads();
    if (warp == 0) {
        Moments whole;
        if (lane < Threads / kWarp) {
            whole.count = counts[lane];
            whole.mean = means[lane];
            whole.squares = squares[lane];
        }
        whole = merge_warp(whole);
        if (lane == 0) {
            mean_shared = whole.mean;
            inverse_shared = rsqrtf(whole.squares / whole.count + epsilon);
        }
    }
    __syncthreads();
    for (int p = threadIdx.x; p < columns / 2; p += Threads) {
        const float2 both = __bfloat1622float2(pairs[p]);
        const float2 g = reinterpret_cast<const float2*>(scale)[p], b = reinterpret_cast<const float2*>(shift)[p];
        results[p] = __floats2bfloat162_rn(fmaf((both.x - mean_shared) * inverse_shared, g.x, b.x),
                                           fmaf((both.y - mean_shared) * inverse_shared, g.y, b.y));
    }
}

template <typename T>
T* to_device(const std::vector<T>& values) {
    T* pointer = nullptr;
    CHECK(cudaMalloc(&pointer, values.size() * sizeof(T)));
    CHECK(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return pointer;
}

int main() {
    const int rows = 50, columns = 770;
    const float epsilon = 1e-5f;
    std::mt19937 random(2);
    auto uniform = [&] { return float(random() % 4096) / 2048.0f - 1.0f; };
    std::vector<__nv_bfloat16> in(size_t(rows) * columns), out(in.size());
    std::vector<float> scale(columns), shift(columns);
    for (size_t i = 0; i < in.size(); ++i) in[i] = __float2bfloat16(uniform() * 3.0f + float(i / columns % 5));
    for (float& value : scale) value = 1.0f + 0.5f * uniform();
    for (float& value : shift) value = uniform();

    __nv_bfloat16 *in_device = to_device(in), *out_device = to_device(out);
    float *scale_device = to_device(scale), *shift_device = to_device(shift);
    layer_norm<kThreads><<<rows, kThreads>>>(in_device, scale_device, shift_device, out_device, columns, epsilon);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(out.data(), out_device, out.size() * sizeof(out[0]), cudaMemcpyDeviceToHost));

    double worst = 0.0;
    for (int r = 0; r < rows; ++r) {
        double sum = 0.0, squares = 0.0;
        for (int c = 0; c < columns; ++c) sum += double(__bfloat162float(in[size_t(r) * columns + c]));
        const double mean = sum / columns;
        for (int c = 0; c < columns; ++c)
            squares += std::pow(double(__bfloat162float(in[size_t(r) * columns + c])) - mean, 2);
        const double inverse = 1.0 / std::sqrt(squares / columns + epsilon);
        for (int c = 0; c < columns; ++c) {
            const size_t i = size_t(r) * columns + c;
            const double right = (double(__bfloat162float(in[i])) - mean) * inverse * scale[c] + shift[c];
            // bfloat16 has 8 bits: an error is counted relative to the value, or to 1 if that is larger.
            const double error = std::abs(double(__bfloat162float(out[i])) - right) / std::fmax(1.0, std::abs(right));
            worst = error <= worst ? worst : error;
        }
    }
    for (void* pointer : {(void*)in_device, (void*)out_device, (void*)scale_device, (void*)shift_device})
        CHECK(cudaFree(pointer));
    const bool good = worst < 1.0 / 250;
    std::printf("layer_norm: %d rows of %d, largest error %.1e: %s\n", rows, columns, worst, good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
