// Multiplies matrices of any size with a naive kernel and with a tiled one in static shared memory,
// and compares both with the host and with each other.
#include <algorithm>
#include <cmath>
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

// C (rows x cols) = A (rows x inner) * B (inner x cols), all of them row by row.
struct Shape {
    int rows, inner, cols;
};

__global__ void multiply_naive(const float *a, const float *b, float *c, Shape shape) {
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= shape.rows || col >= shape.cols) {
        return;
    }
    float sum = 0.0f;
    for (int k = 0; k < shape.inner; ++k) {
        sum += a[row * shape.inner + k] * b[k * shape.cols + col];
    }
    c[row * shape.cols + col] = sum;
}

// Each block makes one tile of C; tiles that stick out of A or B are filled up with zeros.
template <int Tile>
__global__ void multiply_tiled(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c,
                               Shape shape) {
    __shared__ float tile_a[Tile][Tile];
    __shared__ float tile_b[Tile][Tile];
    const int x = threadIdx.x;
    const int y = threadIdx.y;
    const int row = blockIdx.y * Tile + y;
    const int col = blockIdx.x * Tile + x;

    float sum = 0.0f;
    for (int start = 0; start < shape.inner; start += Tile) {
        const bool in_a = row < shape.rows && start + x < shape.inner;
        const bool in_b = start + y < shape.inner && col < shape.cols;
        tile_a[y][x] = in_a ? a[row * shape.inner + start + x] : 0.0f;
        tile_b[y][x] = in_b ? b[(start + y) * shape.cols + col] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < Tile; ++k) {
            sum += tile_a[y][k] * tile_b[k][x];
        }
        __syncthreads();
    }
    if (row < shape.rows && col < shape.cols) {
        c[row * shape.cols + col] = sum;
    }
}

static std::vector<float> random_matrix(size_t count, unsigned seed) {
    std::vector<float> values(count);
    for (float &value : values) {
        seed = seed * 1664525u + 1013904223u;
        value = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
    }
    return values;
}

static double largest_error(const std::vector<float> &got, const std::vector<double> &expected) {
    double largest = 0.0;
    for (size_t i = 0; i < got.size(); ++i) {
        largest = std::max(largest, std::fabs(got[i] - expected[i]));
    }
    return largest;
}

// The larger error of the two kernels for one shape.
static double test(Shape shape) {
    constexpr int tile = 16;
    const std::vector<float> a = random_matrix(size_t(shape.rows) * shape.inner, 1);
    const std::vector<float> b = random_matrix(size_t(shape.inner) * shape.cols, 2);
    std::vector<float> naive(size_t(shape.rows) * shape.cols);
    std::vector<float> tiled(naive.size());
    std::vector<double> expected(naive.size(), 0.0);
    for (int row = 0; row < shape.rows; ++row) {
        for (int k = 0; k < shape.inner; ++k) {
            for (int col = 0; col < shape.cols; ++col) {
                expected[row * shape.cols + col] += double(a[row * shape.inner + k]) * b[k * shape.cols + col];
            }
        }
    }

    float *device_a = nullptr;
    float *device_b = nullptr;
    float *device_c = nullptr;
    const size_t bytes_c = naive.size() * sizeof(float);
    CHECK(cudaMalloc(&device_a, a.size() * sizeof(float)));
    CHECK(cudaMalloc(&device_b, b.size() * sizeof(float)));
    CHECK(cudaMalloc(&device_c, bytes_c));
    CHECK(cudaMemcpy(device_a, a.data(), a.size() * sizeof(float), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(device_b, b.data(), b.size() * sizeof(float), cudaMemcpyHostToDevice));

    const dim3 block(tile, tile);
    const dim3 grid((shape.cols + tile - 1) / tile, (shape.rows + tile - 1) / tile);
    multiply_naive<<<grid, block>>>(device_a, device_b, device_c, shape);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(naive.data(), device_c, bytes_c, cudaMemcpyDeviceToHost));
    CHECK(cudaMemset(device_c, 0xff, bytes_c));
    multiply_tiled<tile><<<grid, block>>>(device_a, device_b, device_c, shape);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(tiled.data(), device_c, bytes_c, cudaMemcpyDeviceToHost));

    CHECK(cudaFree(device_a));
    CHECK(cudaFree(device_b));
    CHECK(cudaFree(device_c));
    const std::vector<double> naive_as_double(naive.begin(), naive.end());
    return std::max({largest_error(naive, expected), largest_error(tiled, expected),
                     largest_error(tiled, naive_as_double)});
}

int main() {
    const Shape shapes[] = {{64, 64, 64}, {97, 45, 131}, {1, 200, 3}};
    double largest = 0.0;
    for (const Shape &shape : shapes) {
        // Not std::max alone: a NaN must not get lost.
        const double error = test(shape);
        largest = error <= largest ? largest : error;
    }
    const bool right = largest < 1e-4;
    std::printf("matrix multiply: 2 kernels, 3 shapes, error %s 1e-4: %s\n", right ? "below" : "NOT below",
                right ? "PASS" : "FAIL");
    return right ? 0 : 1;
}
