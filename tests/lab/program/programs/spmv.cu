// Sparse matrix times vector with the matrix in compressed rows (CSR): one kernel with a thread per row, one with a
// warp per row, a segmented sum by __shfl_down_sync and read-only loads. Rows are of very different lengths.
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

// A sparse matrix as a kernel sees it; passed by value.
struct Csr {
    int rows;
    const int* first;    // where each row begins, and one more for the end
    const int* columns;
    const float* values;
};

__global__ void spmv_scalar(Csr matrix, const float* __restrict__ x, float* __restrict__ y) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= matrix.rows) return;
    float sum = 0.0f;
    for (int i = matrix.first[row]; i < matrix.first[row + 1]; ++i) sum += matrix.values[i] * x[matrix.columns[i]];
    y[row] = sum;
}

// Width lanes (a power of two, up to a warp) share a row.
template <int Width>
__global__ void spmv_vector(const Csr matrix, const float* __restrict__ x, float* __restrict__ y) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / Width, lane = threadIdx.x % Width;
    float sum = 0.0f;
    if (row < matrix.rows) {
        const int end = __ldg(matrix.first + row + 1);
        for (int i = __ldg(matrix.first + row) + lane; i < end; i += Width)
            sum = fmaf(__ldg(matrix.values + i), __ldg(x + __ldg(matrix.columns + i)), sum);
    }
#pragma unroll
    for (int offset = Width / 2; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset, Width);
    if (lane == 0 && row < matrix.rows) y[row] = sum;
}

template <typename T>
T* to_device(const std::vector<T>& values) {
    T* pointer = nullptr;
    CHECK(cudaMalloc(&pointer, values.size() * sizeof(T)));
    CHECK(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return pointer;
}

int main() {
    const int rows = 3001, columns = 2500;
    std::mt19937 random(10);
    auto uniform = [&] { return float(random() % 2001) / 1000.0f - 1.0f; };
    std::vector<int> first{0}, column_of;
    std::vector<float> values, x(columns);
    for (int row = 0; row < rows; ++row) {
        // Every seventh row is empty, a few have hundreds of numbers.
        const int length = row % 7 == 3 ? 0 : row % 100 == 50 ? 400 + int(random() % 200) : 1 + int(random() % 30);
        int column = int(random() % 50);
        for (int i = 0; i < length && column < columns; ++i) {
            column_of.push_back(column);
            values.push_back(uniform());
            column += 1 + int(random() % (columns / (length + 50)));
        }
        first.push_back(int(column_of.size()));
    }
    for (float& value : x) value = uniform();

    std::vector<double> right(rows, 0.0);
    for (int row = 0; row < rows; ++row)
        for (int i = first[row]; i < first[row + 1]; ++i) right[row] += double(values[i]) * double(x[column_of[i]]);

    int *first_device = to_device(first), *columns_device = to_device(column_of);
    float *values_device = to_device(values), *x_device = to_device(x), *y_device = nullptr;
    CHECK(cudaMalloc(&y_device, rows * sizeof(float)));
    const Csr matrix{rows, first_device, columns_device, values_device};
    const int threads = 128;
    auto blocks = [&](int lanes) { return (rows * lanes + threads - 1) / threads; };
    auto error_of = [&] {
        CHECK(cudaGetLastError());
        std::vector<float> y(rows);
        CHECK(cudaMemcpy(y.data(), y_device, rows * sizeof(float), cudaMemcpyDeviceToHost));
        CHECK(cudaMemset(y_device, 0xff, rows * sizeof(float)));  // NaN: the next kernel must write every row
        double worst = 0.0;
        for (int row = 0; row < rows; ++row) {
            const double error = std::abs(double(y[row]) - right[row]);
            worst = error <= worst ? worst : error;
        }
        return worst;
    };
    spmv_scalar<<<blocks(1), threads>>>(matrix, x_device, y_device);
    const double scalar = error_of();
    spmv_vector<32><<<blocks(32), threads>>>(matrix, x_device, y_device);
    const double warp = error_of();
    spmv_vector<8><<<blocks(8), threads>>>(matrix, x_device, y_device);
    const double part = error_of();
    CHECK(cudaFree(first_device));
    CHECK(cudaFree(columns_device));
    CHECK(cudaFree(values_device));
    CHECK(cudaFree(x_device));
    CHECK(cudaFree(y_device));
    const bool good = scalar < 1e-4 && warp < 1e-4 && part < 1e-4;
    std::printf("spmv: %zu numbers, largest error, thread %.1e, warp %.1e, 8 lanes %.1e: %s\n", values.size(), scalar,
                warp, part, good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
