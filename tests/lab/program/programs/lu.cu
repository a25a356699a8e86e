// LU decomposition in place, without pivoting, in double precision and by blocks: one kernel factors the diagonal tile,
// one solves the tiles right of and below it, and one updates the rest of the matrix. Shows pitched memory, too.
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

constexpr int kTile = 16;

// A square matrix by rows, cut into tiles; pitch is the distance of two rows in numbers.
struct Matrix {
    double* numbers;
    size_t pitch;
    __device__ double& at(int tile_row, int tile_column, int row, int column) const {
        return numbers[(tile_row * kTile + row) * pitch + tile_column * kTile + column];
    }
};

using Tile = double[kTile][kTile + 1];

// Factors the tile on the diagonal; one block of kTile threads, each with a row.
__global__ void factor_diagonal(Matrix matrix, int step) {
    __shared__ Tile tile;
    const int row = threadIdx.x;
    for (int column = 0; column < kTile; ++column) tile[column][row] = matrix.at(step, step, column, row);
    __syncthreads();
    for (int pivot = 0; pivot < kTile - 1; ++pivot) {
        if (row > pivot) {
            tile[row][pivot] /= tile[pivot][pivot];
            for (int column = pivot + 1; column < kTile; ++column)
                tile[row][column] -= tile[row][pivot] * tile[pivot][column];
        }
        __syncthreads();
    }
    for (int column = 0; column < kTile; ++column) matrix.at(step, step, column, row) = tile[column][row];
}

// Blocks with y = 0 solve L * X = A for the tiles right of the diagonal, those with y = 1 solve X * U = A below it.
__global__ void solve_borders(Matrix matrix, int step) {
    __shared__ Tile diagonal, tile;
    const int other = step + 1 + blockIdx.x, own = threadIdx.x;
    const bool right = blockIdx.y == 0;
    const int tile_row = right ? step : other, tile_column = right ? other : step;
    for (int i = 0; i < kTile; ++i) {
        diagonal[i][own] = matrix.at(step, step, i, own);
        tile[i][own] = matrix.at(tile_row, tile_column, i, own);
    }
    __syncthreads();
    if (right) {  // a thread has a column
        for (int row = 1; row < kTile; ++row) {
            double sum = tile[row][own];
            for (int i = 0; i < row; ++i) sum = fma(-diagonal[row][i], tile[i][own], sum);
            tile[row][own] = sum;
        }
    } else {  // a thread has a row
        for (int column = 0; column < kTile; ++column) {
            double sum = tile[own][column];
            for (int i = 0; i < column; ++i) sum = fma(-tile[own][i], diagonal[i][column], sum);
            tile[own][column] = sum / diagonal[column][column];
        }
    }
    __syncthreads();
    for (int i = 0; i < kTile; ++i) matrix.at(tile_row, tile_column, i, own) = tile[i][own];
}

// A = A - L * U for every tile right of and below the diagonal.
__global__ void update_rest(Matrix matrix, int step) {
    __shared__ Tile left, upper;
    const int tile_row = step + 1 + blockIdx.y, tile_column = step + 1 + blockIdx.x;
    left[threadIdx.y][threadIdx.x] = matrix.at(tile_row, step, threadIdx.y, threadIdx.x);
    upper[threadIdx.y][threadIdx.x] = matrix.at(step, tile_column, threadIdx.y, threadIdx.x);
    __syncthreads();
    double sum = 0.0;
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum += left[threadIdx.y][i] * upper[i][threadIdx.x];
    matrix.at(tile_row, tile_column, threadIdx.y, threadIdx.x) -= sum;
}

int main() {
    const int tiles = 10, size = tiles * kTile;
    std::mt19937 random(13);
    std::vector<double> a(size_t(size) * size), lu(a.size());
    for (int row = 0; row < size; ++row)
        for (int column = 0; column < size; ++column)
            a[size_t(row) * size + column] = double(random() % 20001) / 10000.0 - 1.0 + (row == column ? size : 0.0);

    Matrix matrix;
    size_t pitch_bytes;
    const size_t row_bytes = size * sizeof(double);
    CHECK(cudaMallocPitch(&matrix.numbers, &pitch_bytes, row_bytes, size));
    matrix.pitch = pitch_bytes / sizeof(double);
    CHECK(cudaMemcpy2D(matrix.numbers, pitch_bytes, a.data(), row_bytes, row_bytes, size, cudaMemcpyHostToDevice));
    for (int step = 0; step < tiles; ++step) {
        const int rest = tiles - 1 - step;
        factor_diagonal<<<1, kTile>>>(matrix, step);
        if (rest == 0) break;
        solve_borders<<<dim3(rest, 2), kTile>>>(matrix, step);
        update_rest<<<dim3(rest, rest), dim3(kTile, kTile)>>>(matrix, step);
    }
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy2D(lu.data(), row_bytes, matrix.numbers, pitch_bytes, row_bytes, size, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(matrix.numbers));

    // The plain algorithm on the host, and the product of both factors against the original matrix.
    std::vector<double> right = a;
    for (int pivot = 0; pivot < size; ++pivot)
        for (int row = pivot + 1; row < size; ++row) {
            const double factor = right[size_t(row) * size + pivot] /= right[size_t(pivot) * size + pivot];
            for (int column = pivot + 1; column < size; ++column)
                right[size_t(row) * size + column] -= factor * right[size_t(pivot) * size + column];
        }
    double worst = 0.0, worst_product = 0.0;
    for (int row = 0; row < size; ++row)
        for (int column = 0; column < size; ++column) {
            const size_t place = size_t(row) * size + column;
            double product = row <= column ? lu[place] : 0.0;  // the diagonal of L is 1
            for (int i = 0; i < row && i <= column; ++i)
                product += lu[size_t(row) * size + i] * lu[size_t(i) * size + column];
            const double error = std::abs(lu[place] - right[place]), product_error = std::abs(product - a[place]);
            worst = error <= worst ? worst : error;
            worst_product = product_error <= worst_product ? worst_product : product_error;
        }
    const bool good = worst < 1e-11 && worst_product < 1e-11;
    std::printf("lu: %dx%d, largest error %.1e, of the product %.1e: %s\n", size, size, worst, worst_product,
                good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
