// Matrix product on tensor cores through nvcuda::wmma: 16x16x16 fragments of half, accumulated once in float and
// once in half, with A by rows and B by columns, and D = alpha * A * B + beta * C on the fragments' elements.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

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

namespace wmma = nvcuda::wmma;

constexpr int kTile = 16;
constexpr int kWarps = 4;  // warps of a block, side by side along the columns

// A is m x k by rows, B is k x n by columns, C and D are m x n by rows. Every size is a multiple of 16.
template <typename Accumulator>
__global__ void gemm(const half* a, const half* b, const Accumulator* c, Accumulator* d, int m, int n, int k,
                     Accumulator alpha, Accumulator beta) {
    const int row = blockIdx.y * kTile;
    const int column = (blockIdx.x * kWarps + threadIdx.y) * kTile;
    if (row >= m || column >= n) return;

    wmma::fragment<wmma::matrix_a, kTile, kTile, kTile, half, wmma::row_major> a_fragment;
    wmma::fragment<wmma::matrix_b, kTile, kTile, kTile, half, wmma::col_major> b_fragment;
    wmma::fragment<wmma::accumulator, kTile, kTile, kTile, Accumulator> sum, old;
    wmma::fill_fragment(sum, Accumulator(0.0f));
    for (int step = 0; step < k; step += kTile) {
        wmma::load_matrix_sync(a_fragment, a + size_t(row) * k + step, k);
        wmma::load_matrix_sync(b_fragment, b + size_t(column) * k + step, k);
        wmma::mma_sync(sum, a_fragment, b_fragment, sum);
    }
    wmma::load_matrix_sync(old, c + size_t(row) * n + column, n, wmma::mem_row_major);
    for (int i = 0; i < sum.num_elements; ++i) sum.x[i] = alpha * sum.x[i] + beta * old.x[i];
    wmma::store_matrix_sync(d + size_t(row) * n + column, sum, n, wmma::mem_row_major);
}

template <typename T>
T* to_device(const std::vector<T>& values) {
    T* pointer = nullptr;
    CHECK(cudaMalloc(&pointer, values.size() * sizeof(T)));
    CHECK(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return pointer;
}

// Runs the product with one accumulator type and returns the largest error against double.
template <typename Accumulator>
double largest_error(const std::vector<half>& a, const std::vector<half>& b, int m, int n, int k) {
    const float alpha = 0.5f, beta = -2.0f;
    std::vector<Accumulator> c(size_t(m) * n), d(c.size());
    for (size_t i = 0; i < c.size(); ++i) c[i] = Accumulator(float(i % 13) / 8.0f);

    half *a_device = to_device(a), *b_device = to_device(b);
    Accumulator *c_device = to_device(c), *d_device = to_device(d);
    const dim3 block(32, kWarps), grid((n + kTile * kWarps - 1) / (kTile * kWarps), m / kTile);
    gemm<Accumulator><<<grid, block>>>(a_device, b_device, c_device, d_device, m, n, k, Accumulator(alpha),
                                       Accumulator(beta));
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(d.data(), d_device, d.size() * sizeof(Accumulator), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(a_device));
    CHECK(cudaFree(b_device));
    CHECK(cudaFree(c_device));
    CHECK(cudaFree(d_device));

    double worst = 0.0;
    for (int row = 0; row < m; ++row) {
        for (int column = 0; column < n; ++column) {
            double sum = 0.0;
            for (int i = 0; i < k; ++i)
                sum += double(__half2float(a[size_t(row) * k + i])) * double(__half2float(b[size_t(column) * k + i]));
            const size_t place = size_t(row) * n + column;
            const double right = double(alpha) * sum + double(beta) * double(float(c[place]));
            const double error = std::abs(double(float(d[place])) - right);
            worst = error <= worst ? worst : error;
        }
    }
    return worst;
}

int main() {
    const int m = 96, n = 112, k = 80;  // the last block of a row has a warp without work
    std::mt19937 random(3);
    std::vector<half> a(size_t(m) * k), b(size_t(k) * n);
    for (half& value : a) value = __float2half(float(random() % 2001) / 1000.0f - 1.0f);
    for (half& value : b) value = __float2half(float(random() % 2001) / 1000.0f - 1.0f);
    const double in_float = largest_error<float>(a, b, m, n, k);
    const double in_half = largest_error<half>(a, b, m, n, k);
    const bool good = in_float < 5e-5 && in_half < 5e-2;
    std::printf("wmma_gemm: largest error, float sums %.1e, half sums %.1e: %s\n", in_float, in_half,
                good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
