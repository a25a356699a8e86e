// A matrix multiplication of __half inputs with sums in float, by square tiles in LDS (HIP_DYNAMIC_SHARED). The kernel
// is a template, launched by hipLaunchKernelGGL with HIP_KERNEL_NAME; the sizes are no multiples of a tile.
#include <hip/hip_fp16.h>
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

__device__ void store(float* to, float value) { *to = value; }
__device__ void store(__half* to, float value) { *to = __float2half(value); }

// c = a b, with a of rows x inner and b of inner x columns, row after row. A thread computes one value of c.
template <int Tile, typename Out>
__global__ void matrix_multiply(const __half* a, const __half* b, Out* c, int rows, int columns, int inner) {
    HIP_DYNAMIC_SHARED(__half, tiles)
    constexpr int kPitch = Tile + 2;  // the rows of a tile begin in different banks
    __half* tile_a = tiles;
    __half* tile_b = tiles + Tile * kPitch;
    const int x = hipThreadIdx_x, y = hipThreadIdx_y;
    const int column = hipBlockIdx_x * Tile + x, row = hipBlockIdx_y * Tile + y;
    float sum = 0.0f;
    for (int first = 0; first < inner; first += Tile) {
        const bool in_a = row < rows && first + x < inner, in_b = first + y < inner && column < columns;
        tile_a[y * kPitch + x] = in_a ? a[row * inner + first + x] : __float2half(0.0f);
        tile_b[y * kPitch + x] = in_b ? b[(first + y) * columns + column] : __float2half(0.0f);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < Tile; ++k) {
            sum = fmaf(__half2float(tile_a[y * kPitch + k]), __half2float(tile_b[k * kPitch + x]), sum);
        }
        __syncthreads();
    }
    if (row < rows && column < columns) store(c + row * columns + column, sum);
}

// The largest difference from sums in double.
template <int Tile, typename Out>
double run(const std::vector<__half>& a, const std::vector<__half>& b, int rows, int columns, int inner) {
    __half *a_device, *b_device;
    Out* c_device;
    std::vector<Out> c(size_t(rows) * columns);
    CHECK(hipMalloc(&a_device, a.size() * sizeof(__half)));
    CHECK(hipMalloc(&b_device, b.size() * sizeof(__half)));
    CHECK(hipMalloc(&c_device, c.size() * sizeof(Out)));
    CHECK(hipMemcpy(a_device, a.data(), a.size() * sizeof(__half), hipMemcpyHostToDevice));
    CHECK(hipMemcpy(b_device, b.data(), b.size() * sizeof(__half), hipMemcpyHostToDevice));

    const dim3 grid((columns + Tile - 1) / Tile, (rows + Tile - 1) / Tile), block(Tile, Tile);
    const size_t shared_bytes = 2 * Tile * (Tile + 2) * sizeof(__half);
    hipLaunchKernelGGL(HIP_KERNEL_NAME(matrix_multiply<Tile, Out>), grid, block, shared_bytes, 0, a_device, b_device,
                       c_device, rows, columns, inner);
    CHECK(hipGetLastError());
    CHECK(hipMemcpy(c.data(), c_device, c.size() * sizeof(Out), hipMemcpyDeviceToHost));
    CHECK(hipFree(a_device));
    CHECK(hipFree(b_device));
    CHECK(hipFree(c_device));

    double worst = 0.0;
    for (int row = 0; row < rows; ++row) {
        for (int column = 0; column < columns; ++column) {
            double right = 0.0;
            for (int k = 0; k < inner; ++k) {
                right += double(__half2float(a[row * inner + k])) * double(__half2float(b[k * columns + column]));
            }
            const double error = std::abs(double(float(c[row * columns + column])) - right);
            worst = error <= worst ? worst : error;  // a NaN is kept
        }
    }
    return worst;
}

int main() {
    hipDeviceProp_t properties;
    CHECK(hipGetDeviceProperties(&properties, 0));
    const int rows = 75, columns = 109, inner = 131;
    std::vector<__half> a(rows * inner), b(inner * columns);
    unsigned state = 11;
    for (std::vector<__half>* matrix : {&a, &b}) {
        for (__half& value : *matrix) {
            state = state * 1664525u + 1013904223u;
            value = __float2half(float(state >> 8) / float(1 << 23) - 1.0f);
        }
    }
    const double tiles_16 = run<16, float>(a, b, rows, columns, inner);
    const double tiles_32 = run<32, float>(a, b, rows, columns, inner);
    const double to_half = run<16, __half>(a, b, rows, columns, inner);
    const bool good = tiles_16 < 2e-5 && tiles_32 < 2e-5 && to_half < 1e-2;
    std::printf("hip_matrix_multiply: wavefronts of %d, largest error %.1e, as half %.1e: %s\n", properties.warpSize,
                std::max(tiles_16, tiles_32), to_half, good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
