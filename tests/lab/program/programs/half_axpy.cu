// Half-precision arithmetic two at a time: y = a * x + y with half2 intrinsics, a clipped sum with comparisons and
// counts, and conversions in every rounding direction. Each result is compared with one rounded on the host.
#include <cuda_fp16.h>
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

__global__ void axpy(float a, const half2* x, half2* y, int pairs) {
    const half2 factor = __float2half2_rn(a);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += gridDim.x * blockDim.x)
        y[i] = __hfma2(factor, x[i], y[i]);
}

// out = min(x + y, limit) wherever x > y, and -(x * y) elsewhere; counts the pairs in which both halves are greater.
__global__ void clipped_sum(const half2* x, const half2* y, half2* out, int pairs, float limit, int* both_greater) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pairs) return;
    const half2 greater = __hgt2(x[i], y[i]);  // 1 or 0 in each half
    const half2 top = __floats2half2_rn(limit, limit);
    const half2 sum = __hmin2(__hadd2(x[i], y[i]), top);
    const half2 product = __hneg2(__hmul2(x[i], y[i]));
    const half low = __hne(__low2half(greater), __float2half(0.0f)) ? __low2half(sum) : __low2half(product);
    const half high = __high2float(greater) != 0.0f ? __high2half(sum) : __high2half(product);
    out[i] = __halves2half2(low, high);
    if (__hbgt2(x[i], y[i])) atomicAdd(both_greater, 1);
}

// The four rounding directions of float to half, and half to the nearest int and towards zero.
__global__ void convert(const float* in, half* rounded, int* integers, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    rounded[4 * i + 0] = __float2half_rn(in[i]);
    rounded[4 * i + 1] = __float2half_rz(in[i]);
    rounded[4 * i + 2] = __float2half_rd(in[i]);
    rounded[4 * i + 3] = __float2half_ru(in[i]);
    integers[2 * i + 0] = __half2int_rn(__float2half(in[i]));
    integers[2 * i + 1] = __half2int_rz(__float2half(in[i]));
}

// Rounds to the 11 significant bits of a half (normal numbers only), in the rounding direction of the function given.
double to_half(double value, double (*round)(double)) {
    int exponent;
    const double fraction = std::frexp(value, &exponent);
    return std::ldexp(round(std::ldexp(fraction, 11)), exponent - 11);
}

int main() {
    const int count = 10000, pairs = count / 2, threads = 128, blocks = (pairs + threads - 1) / threads;
    const float a = 1.5f, limit = 3.0f;
    std::mt19937 random(5);
    half2 *x, *y, *out;
    float* in;
    half* rounded;
    int *integers, *both_greater;
    CHECK(cudaMallocManaged(&x, pairs * sizeof(half2)));
    CHECK(cudaMallocManaged(&y, pairs * sizeof(half2)));
    CHECK(cudaMallocManaged(&out, pairs * sizeof(half2)));
    CHECK(cudaMallocManaged(&in, count * sizeof(float)));
    CHECK(cudaMallocManaged(&rounded, 4 * count * sizeof(half)));
    CHECK(cudaMallocManaged(&integers, 2 * count * sizeof(int)));
    CHECK(cudaMallocManaged(&both_greater, sizeof(int)));
    *both_greater = 0;
    std::vector<float> x_host(count), y_host(count);
    for (int i = 0; i < count; ++i) {
        x_host[i] = float(random() % 4097) / 512.0f - 4.0f;  // multiples of 2^-9 up to 4: exact in half
        y_host[i] = float(random() % 4097) / 512.0f - 4.0f;
        in[i] = (float(random() % 200001) - 100000.5f) / 997.0f;
    }
    for (int i = 0; i < pairs; ++i) {
        x[i] = __floats2half2_rn(x_host[2 * i], x_host[2 * i + 1]);
        y[i] = __floats2half2_rn(y_host[2 * i], y_host[2 * i + 1]);
    }
    clipped_sum<<<blocks, threads>>>(x, y, out, pairs, limit, both_greater);
    axpy<<<blocks / 3, threads>>>(a, x, y, pairs);
    convert<<<(count + threads - 1) / threads, threads>>>(in, rounded, integers, count);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());

    int wrong = 0, expected_both = 0;
    auto expect = [&](double got, double right) { wrong += got != right; };
    const half *y_new = reinterpret_cast<const half*>(y), *out_new = reinterpret_cast<const half*>(out);
    for (int i = 0; i < count; ++i) {
        const double xi = x_host[i], yi = y_host[i];
        expect(__half2float(y_new[i]), to_half(a * xi + yi, std::nearbyint));
        const double sum = std::fmin(to_half(xi + yi, std::nearbyint), limit);
        expect(__half2float(out_new[i]), xi > yi ? sum : -to_half(xi * yi, std::nearbyint));
        if (i % 2 == 0) expected_both += x_host[i] > y_host[i] && x_host[i + 1] > y_host[i + 1];
        expect(__half2float(rounded[4 * i + 0]), to_half(in[i], std::nearbyint));
        expect(__half2float(rounded[4 * i + 1]), to_half(in[i], std::trunc));
        expect(__half2float(rounded[4 * i + 2]), to_half(in[i], std::floor));
        expect(__half2float(rounded[4 * i + 3]), to_half(in[i], std::ceil));
        expect(integers[2 * i + 0], std::nearbyint(to_half(in[i], std::nearbyint)));
        expect(integers[2 * i + 1], std::trunc(to_half(in[i], std::nearbyint)));
    }
    wrong += *both_greater != expected_both;
    for (void* pointer : {(void*)x, (void*)y, (void*)out, (void*)in, (void*)rounded, (void*)integers,
                          (void*)both_greater})
        CHECK(cudaFree(pointer));
    std::printf("half_axpy: 3 kernels, %d wrong of %d: %s\n", wrong, 8 * count + 1, wrong == 0 ? "PASS" : "FAIL");
    return wrong == 0 ? 0 : 1;
}
