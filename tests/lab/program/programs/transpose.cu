// Transposes a rectangular matrix in three ways: straight from global memory, through a tile in shared memory,
// and through a tile whose rows are padded by one element so that a column has no bank conflicts.
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

// A block of 32x8 threads moves a tile of 32x32 elements, four for each thread.
constexpr int kTile = 32;
constexpr int kBlockRows = 8;

__global__ void transpose_naive(const float *in, float *out, int width, int height) {
    const int x = blockIdx.x * kTile + threadIdx.x;
    const int first_y = blockIdx.y * kTile + threadIdx.y;
    for (int step = 0; step < kTile; step += kBlockRows) {
        const int y = first_y + step;
        if (x < width && y < height) {
            out[x * height + y] = in[y * width + x];
        }
    }
}

// Both the reads and the writes of a warp are consecutive: the tile is turned in shared memory.
template <int Padding>
__global__ void transpose_shared(const float *in, float *out, int width, int height) {
    __shared__ float tile[kTile][kTile + Padding];

    int x = blockIdx.x * kTile + threadIdx.x;
    int y = blockIdx.y * kTile + threadIdx.y;
    for (int step = 0; step < kTile; step += kBlockRows) {
        if (x < width && y + step < height) {
            tile[threadIdx.y + step][threadIdx.x] = in[(y + step) * width + x];
        }
    }
    __syncthreads();

    x = blockIdx.y * kTile + threadIdx.x;
    y = blockIdx.x * kTile + threadIdx.y;
    for (int step = 0; step < kTile; step += kBlockRows) {
        if (x < height && y + step < width) {
            out[(y + step) * height + x] = tile[threadIdx.x][threadIdx.y + step];
        }
    }
}

using Kernel = void (*)(const float *, float *, int, int);

static int count_wrong(const std::vector<float> &in, const std::vector<float> &out, int width, int height) {
    int wrong = 0;
    for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
            wrong += out[x * height + y] != in[y * width + x];
        }
    }
    return wrong;
}

int main() {
    const int width = 300;
    const int height = 173;
    const size_t bytes = size_t(width) * height * sizeof(float);
    std::vector<float> in(size_t(width) * height);
    std::vector<float> out(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
        in[i] = static_cast<float>(i) + 0.5f;
    }

    float *device_in = nullptr;
    float *device_out = nullptr;
    CHECK(cudaMalloc(&device_in, bytes));
    CHECK(cudaMalloc(&device_out, bytes));
    CHECK(cudaMemcpy(device_in, in.data(), bytes, cudaMemcpyHostToDevice));

    const dim3 block(kTile, kBlockRows);
    const dim3 grid((width + kTile - 1) / kTile, (height + kTile - 1) / kTile);
    const Kernel kernels[] = {transpose_naive, transpose_shared<0>, transpose_shared<1>};
    int wrong = 0;
    for (Kernel kernel : kernels) {
        CHECK(cudaMemset(device_out, 0, bytes));
        kernel<<<grid, block>>>(device_in, device_out, width, height);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(out.data(), device_out, bytes, cudaMemcpyDeviceToHost));
        wrong += count_wrong(in, out, width, height);
    }

    CHECK(cudaFree(device_in));
    CHECK(cudaFree(device_out));
    std::printf("transpose: 3 kernels, %dx%d, %d wrong: %s\n", width, height, wrong, wrong == 0 ? "PASS" : "FAIL");
    return wrong == 0 ? 0 : 1;
}
