// Asks the device and the runtime about themselves (properties, attributes, occupancy, a kernel's own figures), and
// passes functors to templated kernels; one kernel uses printf, assert and clock64.
#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CHECK(call)                                                                                      \
    do {                                                                                                 \
        cudaError_t status_ = (call);                                                                    \
        if (status_ != cudaSuccess) {                                                                    \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_));        \
            std::exit(1);                                                                                \
        }                                                                                                \
    } while (0)

struct Square {
    __host__ __device__ int operator()(int value) const { return value * value; }
};

struct AddThenClip {
    int addend, limit;
    __host__ __device__ int operator()(int value) const { return value + addend < limit ? value + addend : limit; }
};

template <typename First, typename Second>
struct Compose {
    First first;
    Second second;
    __host__ __device__ int operator()(int value) const { return second(first(value)); }
};

template <typename First, typename Second>
Compose<First, Second> compose(First first, Second second) {
    return {first, second};
}

template <typename Function>
__global__ void apply(Function function, int* values, int count) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        values[i] = function(values[i]);
}

__global__ void __launch_bounds__(256) reverse_block(int* values) {
    __shared__ int copy[256];
    copy[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    values[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}

__global__ void speak(long long* ticks, int expected_block) {
    assert(blockDim.x == expected_block && "the block is as the host asked");
    const long long start = clock64();
    if (threadIdx.x == blockDim.x - 1) printf("thread %u of %u: %s, %.2f\n", threadIdx.x, blockDim.x, "hello", 0.25);
    ticks[threadIdx.x] = clock64() - start;
}

int failures = 0;

void expect(bool condition, const char* what) {
    if (!condition) std::printf("not plausible: %s\n", what);
    failures += !condition;
}

template <typename Function>
void check_function(Function function, int blocks, int threads, const char* what) {
    const int count = 1000;
    int *values, wrong = 0;
    CHECK(cudaMallocManaged(&values, count * sizeof(int)));
    for (int i = 0; i < count; ++i) values[i] = i - 500;
    apply<<<blocks, threads>>>(function, values, count);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < count; ++i) wrong += values[i] != function(i - 500);
    CHECK(cudaFree(values));
    expect(wrong == 0, what);
}

int main() {
    int devices = 0, device = -1, runtime = 0, driver = 0, shared_opt_in = 0, clock_khz = 0;
    CHECK(cudaGetDeviceCount(&devices));
    CHECK(cudaSetDevice(0));
    CHECK(cudaGetDevice(&device));
    CHECK(cudaRuntimeGetVersion(&runtime));
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaDeviceGetAttribute(&shared_opt_in, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    CHECK(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device));
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, device));
    std::printf("%s: compute capability %d.%d, %d multiprocessors, %zu KB shared memory a block (%d with opt-in)\n",
                properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                properties.sharedMemPerBlock / 1024, shared_opt_in / 1024);
    expect(devices >= 1 && device == 0, "device count");
    expect(runtime >= 11000 && driver >= 11000, "versions");
    expect(std::strlen(properties.name) > 0 && properties.major >= 5, "name and compute capability");
    expect(properties.warpSize == 32 && properties.maxThreadsPerBlock == 1024, "warp and block size");
    expect(properties.multiProcessorCount > 0 && properties.totalGlobalMem > (1u << 30), "multiprocessors and memory");
    expect(properties.maxThreadsPerMultiProcessor % 32 == 0 && properties.regsPerBlock >= 32768, "threads, registers");
    expect(properties.sharedMemPerBlock >= 48 * 1024 && size_t(shared_opt_in) == properties.sharedMemPerBlockOptin,
           "shared memory");
    expect(clock_khz > 100000, "clock");
    expect(properties.maxGridSize[0] == 2147483647 && properties.maxGridSize[1] == 65535, "grid size");
    size_t free_bytes = 0, total_bytes = 0;
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    expect(free_bytes <= total_bytes && total_bytes > 0, "memory in use");

    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, reverse_block));
    expect(attributes.maxThreadsPerBlock == 256 && attributes.numRegs > 0, "launch bounds and registers of a kernel");
    int resident = 0, best_grid = 0, best_block = 0;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, reverse_block, 256, 0));
    expect(resident >= 1 && resident * 256 <= properties.maxThreadsPerMultiProcessor, "resident blocks");
    CHECK(cudaOccupancyMaxPotentialBlockSize(&best_grid, &best_block, apply<Square>));
    expect(best_block % 32 == 0 && best_block > 0 && best_block <= 1024, "best block size");
    expect(best_grid >= properties.multiProcessorCount, "best grid size");

    check_function(Square(), best_grid, best_block, "squares");
    check_function(compose(Square(), AddThenClip{-7, 9000}), 3, 128, "composed functions");

    const int block = 96;
    long long* ticks;
    CHECK(cudaMallocManaged(&ticks, block * sizeof(long long)));
    speak<<<1, block>>>(ticks, block);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < block; ++i) expect(ticks[i] >= 0, "ticks");
    CHECK(cudaFree(ticks));
    std::printf("device_query: %d figures not plausible: %s\n", failures, failures == 0 ? "PASS" : "FAIL");
    return failures == 0 ? 0 : 1;
}
