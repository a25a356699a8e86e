// Conway's game of life on a torus with one byte a cell, ping-pong between two buffers, on a stream. The picture after
// a hundred generations is compared with the host's, and a glider must come back to its start shifted.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
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

using Board = std::vector<uint8_t>;

__host__ __device__ inline uint8_t next_state(const uint8_t* cells, int width, int height, int x, int y) {
    const int left = x == 0 ? width - 1 : x - 1, right = x == width - 1 ? 0 : x + 1;
    const int above = y == 0 ? height - 1 : y - 1, below = y == height - 1 ? 0 : y + 1;
    int neighbours = 0;
    for (int row : {above, y, below})
        for (int column : {left, x, right}) neighbours += cells[row * width + column];
    neighbours -= cells[y * width + x];
    return neighbours == 3 || (neighbours == 2 && cells[y * width + x]);
}

__global__ void step(const uint8_t* __restrict__ now, uint8_t* __restrict__ next, int width, int height) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) next[y * width + x] = next_state(now, width, height, x, y);
}

// Counts the living cells: each block adds one number, found with a vote of each warp.
__global__ void count_living(const uint8_t* cells, int count, unsigned long long* living) {
    __shared__ int in_block;
    if (threadIdx.x == 0) in_block = 0;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned alive = __ballot_sync(0xffffffffu, i < count && cells[i] != 0);
    if (threadIdx.x % warpSize == 0) atomicAdd(&in_block, __popc(alive));
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(living, (unsigned long long)in_block);
}

Board play(const Board& start, int width, int height, int generations, unsigned long long* living) {
    cudaStream_t stream;
    uint8_t *now, *next;
    unsigned long long* living_device;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&now, start.size()));
    CHECK(cudaMalloc(&next, start.size()));
    CHECK(cudaMalloc(&living_device, sizeof(*living_device)));
    CHECK(cudaMemcpyAsync(now, start.data(), start.size(), cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemsetAsync(living_device, 0, sizeof(*living_device), stream));
    const dim3 block(32, 4), grid((width + block.x - 1) / block.x, (height + block.y - 1) / block.y);
    for (int generation = 0; generation < generations; ++generation) {
        step<<<grid, block, 0, stream>>>(now, next, width, height);
        std::swap(now, next);
    }
    const int count = width * height;
    count_living<<<(count + 255) / 256, 256, 0, stream>>>(now, count, living_device);
    CHECK(cudaGetLastError());
    Board end(start.size());
    CHECK(cudaMemcpyAsync(end.data(), now, end.size(), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpyAsync(living, living_device, sizeof(*living), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaFree(now));
    CHECK(cudaFree(next));
    CHECK(cudaFree(living_device));
    CHECK(cudaStreamDestroy(stream));
    return end;
}

int main() {
    const int width = 150, height = 101, generations = 100;
    std::mt19937 random(7);
    Board start(size_t(width) * height);
    for (uint8_t& cell : start) cell = random() % 3 == 0;
    unsigned long long living = 0;
    const Board end = play(start, width, height, generations, &living);

    Board now = start, next(start.size());
    for (int generation = 0; generation < generations; ++generation) {
        for (int y = 0; y < height; ++y)
            for (int x = 0; x < width; ++x) next[y * width + x] = next_state(now.data(), width, height, x, y);
        std::swap(now, next);
    }
    size_t wrong = 0, living_host = 0;
    for (size_t i = 0; i < now.size(); ++i) {
        wrong += now[i] != end[i];
        living_host += now[i];
    }

    // A glider moves by one cell down and right every four generations: after 4 * 20 it has gone round a 20x20 torus.
    Board glider(20 * 20, 0);
    for (int cell : {1, 20 + 2, 40 + 0, 40 + 1, 40 + 2}) glider[cell] = 1;
    unsigned long long glider_cells = 0;
    const bool home = play(glider, 20, 20, 80, &glider_cells) == glider && glider_cells == 5;

    const bool good = wrong == 0 && living == living_host && home;
    std::printf("game_of_life: %llu alive after %d generations, %zu wrong, glider %s: %s\n", living, generations, wrong,
                home ? "home" : "lost", good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
