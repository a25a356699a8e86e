// Heat in a square plate by Jacobi's method: each block loads a tile with its halo into shared memory, and adds the
// squared change of its cells to a residual; the host repeats until that is small.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
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

__constant__ float weights[2];  // of the neighbour cells to the sides, and above and below

// One step on the inner cells of a width x height grid; the border keeps its values. block_change gets one number
// a block: the sum of the squares of what changed.
__global__ void jacobi(const float* __restrict__ now, float* __restrict__ next, int width, int height,
                       float* block_change) {
    __shared__ float tile[kTile + 2][kTile + 2];
    __shared__ float change[kTile * kTile];
    const int x = blockIdx.x * kTile + threadIdx.x + 1, y = blockIdx.y * kTile + threadIdx.y + 1;
    const int thread = threadIdx.y * kTile + threadIdx.x;
    for (int i = thread; i < (kTile + 2) * (kTile + 2); i += kTile * kTile) {
        const int row = i / (kTile + 2), column = i % (kTile + 2);
        const int from_y = min(int(blockIdx.y) * kTile + row, height - 1);
        const int from_x = min(int(blockIdx.x) * kTile + column, width - 1);
        tile[row][column] = now[from_y * width + from_x];
    }
    __syncthreads();
    float difference = 0.0f;
    if (x < width - 1 && y < height - 1) {
        const int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
        const float value = weights[0] * (tile[ty][tx - 1] + tile[ty][tx + 1]) +
                            weights[1] * (tile[ty - 1][tx] + tile[ty + 1][tx]);
        difference = value - tile[ty][tx];
        next[y * width + x] = value;
    }
    change[thread] = difference * difference;
    __syncthreads();
    for (int half = kTile * kTile / 2; half > 0; half /= 2) {
        if (thread < half) change[thread] += change[thread + half];
        __syncthreads();
    }
    if (thread == 0) block_change[blockIdx.y * gridDim.x + blockIdx.x] = change[0];
}

__global__ void add_up(const float* values, int count, float* total) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < count; i += warpSize) sum += values[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) *total = sum;
}

int main() {
    const int width = 33, height = 31, most_steps = 4000;
    const float enough = 1e-3f, side = 0.3f, upright = 0.2f;
    std::vector<float> start(size_t(width) * height, 0.0f);
    for (int x = 0; x < width; ++x) start[x] = 100.0f;               // hot at the top
    for (int y = 0; y < height; ++y) start[y * width] = 50.0f;       // warm at the left

    const float both[2] = {side, upright};
    CHECK(cudaMemcpyToSymbol(weights, both, sizeof(both)));
    const size_t bytes = start.size() * sizeof(float);
    const dim3 block(kTile, kTile), grid((width - 2 + kTile - 1) / kTile, (height - 2 + kTile - 1) / kTile);
    float *now, *next, *block_change, *total;
    CHECK(cudaMalloc(&now, bytes));
    CHECK(cudaMalloc(&next, bytes));
    CHECK(cudaMalloc(&block_change, grid.x * grid.y * sizeof(float)));
    CHECK(cudaMalloc(&total, sizeof(float)));
    CHECK(cudaMemcpy(now, start.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(next, now, bytes, cudaMemcpyDeviceToDevice));

    int steps = 0;
    float residual = 1e30f;
    while (residual > enough && steps < most_steps) {
        for (int i = 0; i < 20; ++i, ++steps) {
            jacobi<<<grid, block>>>(now, next, width, height, block_change);
            std::swap(now, next);
        }
        add_up<<<1, 32>>>(block_change, int(grid.x * grid.y), total);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(&residual, total, sizeof(float), cudaMemcpyDeviceToHost));
    }
    std::vector<float> end(start.size());
    CHECK(cudaMemcpy(end.data(), now, bytes, cudaMemcpyDeviceToHost));
    for (float* pointer : {now, next, block_change, total}) CHECK(cudaFree(pointer));

    // The same number of steps on the host, in double.
    std::vector<double> a(start.begin(), start.end()), b = a;
    for (int i = 0; i < steps; ++i) {
        for (int y = 1; y < height - 1; ++y)
            for (int x = 1; x < width - 1; ++x) {
                const int c = y * width + x;
                b[c] = double(side) * (a[c - 1] + a[c + 1]) + double(upright) * (a[c - width] + a[c + width]);
            }
        std::swap(a, b);
    }
    double worst = 0.0;
    for (size_t i = 0; i < end.size(); ++i) {
        const double error = std::abs(double(end[i]) - a[i]);
        worst = error <= worst ? worst : error;
    }
    const bool good = worst < 1e-2 && residual <= enough && steps < most_steps;
    std::printf("heat: %d steps, residual %.1e, largest error %.1e: %s\n", steps, double(residual), worst,
                good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
