// The sum of an array by wavefronts: __shfl_down within a wavefront, shared memory between the wavefronts of a block.
// Nothing in it depends on the size of a wavefront; it sums float, double and 64-bit whole numbers.
#include <hip/hip_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                                      \
    do {                                                                                                 \
        hipError_t status_ = (call);                                                                     \
        if (status_ != hipSuccess) {                                                                     \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, hipGetErrorString(status_));         \
            std::exit(1);                                                                                \
        }                                                                                                \
    } while (0)

constexpr int kMostThreads = 1024;
constexpr int kSmallestWavefront = 32;

// Lane 0 gets the sum of the wavefront.
template <typename T>
__device__ T wavefront_sum(T value) {
    for (int offset = warpSize / 2; offset > 0; offset /= 2) value += __shfl_down(value, offset);
    return value;
}

// Thread 0 gets the sum of the block, which must be made of whole wavefronts.
template <typename T>
__device__ T block_sum(T value) {
    __shared__ T partial[kMostThreads / kSmallestWavefront];
    const int lane = threadIdx.x % warpSize, wavefront = threadIdx.x / warpSize;
    const int wavefronts = blockDim.x / warpSize;
    value = wavefront_sum(value);
    if (lane == 0) partial[wavefront] = value;
    __syncthreads();
    if (wavefront == 0) value = wavefront_sum(lane < wavefronts ? partial[lane] : T(0));
    return value;
}

// Each block leaves the sum of its share of the array, which it walks through in steps of the whole grid.
template <typename T>
__global__ void __launch_bounds__(kMostThreads) sum(const T* __restrict__ in, T* __restrict__ out, size_t count) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    T own = 0;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) own += in[i];
    own = block_sum(own);
    if (threadIdx.x == 0) out[blockIdx.x] = own;
}

template <typename T>
T sum_on_device(const std::vector<T>& in, int blocks, int threads) {
    T *in_device, *partial_device, *total_device;
    CHECK(hipMalloc(&in_device, in.size() * sizeof(T)));
    CHECK(hipMalloc(&partial_device, blocks * sizeof(T)));
    CHECK(hipMalloc(&total_device, sizeof(T)));
    CHECK(hipMemcpy(in_device, in.data(), in.size() * sizeof(T), hipMemcpyHostToDevice));
    sum<<<blocks, threads>>>(in_device, partial_device, in.size());
    CHECK(hipGetLastError());
    hipLaunchKernelGGL(sum<T>, dim3(1), dim3(threads), 0, 0, partial_device, total_device, size_t(blocks));
    CHECK(hipGetLastError());
    T total;
    CHECK(hipMemcpy(&total, total_device, sizeof(T), hipMemcpyDeviceToHost));
    CHECK(hipFree(in_device));
    CHECK(hipFree(partial_device));
    CHECK(hipFree(total_device));
    return total;
}

int main() {
    hipDeviceProp_t properties;
    CHECK(hipGetDeviceProperties(&properties, 0));
    const size_t count = 100003;  // no multiple of anything
    std::vector<float> floats(count);
    std::vector<double> doubles(count);
    std::vector<long long> integers(count);
    double right_float = 0.0, right_double = 0.0;
    long long right_integer = 0;
    unsigned state = 5;
    for (size_t i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        floats[i] = float(state >> 8) / float(1 << 24);
        doubles[i] = std::sin(double(i)) + 1.0;
        integers[i] = (long long)(state) * 1009 - (1ll << 40);  // the sums need 64 bits and do not overflow
        right_float += floats[i];
        right_double += doubles[i];
        right_integer += integers[i];
    }
    // One wavefront, an odd number of them, and the largest block.
    double worst_float = 0.0, worst_double = 0.0;
    bool good = true;
    for (int threads : {properties.warpSize, 3 * properties.warpSize, kMostThreads}) {
        const double error_float = std::abs(sum_on_device(floats, 7, threads) - right_float) / right_float;
        const double error_double = std::abs(sum_on_device(doubles, 7, threads) - right_double) / right_double;
        good = good && error_float < 1e-5 && error_double < 1e-13;  // false for a NaN
        good = good && sum_on_device(integers, 7, threads) == right_integer;
        worst_float = std::max(worst_float, error_float);
        worst_double = std::max(worst_double, error_double);
    }
    std::printf("hip_reduction: wavefronts of %d, error %.1e (float), %.1e (double): %s\n", properties.warpSize,
                worst_float, worst_double, good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
