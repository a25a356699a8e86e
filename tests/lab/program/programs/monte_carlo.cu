// Estimates pi by random points in a square. The generator is counter-based (Philox 4x32 with 10 rounds): each point
// depends only on the seed and on its own number, so that the host finds exactly the same hits.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call)                                                                                    \
    do {                                                                                               \
        cudaError_t status = (call);                                                                   \
        if (status != cudaSuccess) {                                                                   \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status));       \
            std::exit(1);                                                                              \
        }                                                                                              \
    } while (0)

constexpr int kBlock = 128;
constexpr int kGrid = 30;

// The upper 32 bits of a product: one instruction on the device.
__host__ __device__ inline uint32_t multiply_high(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
    return __umulhi(a, b);
#else
    return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
#endif
}

// Four random words for one counter; the key is the seed.
__host__ __device__ inline uint4 philox(uint4 counter, uint2 key) {
    for (int round = 0; round < 10; ++round) {
        const uint32_t high_x = multiply_high(0xd2511f53u, counter.x);
        const uint32_t high_z = multiply_high(0xcd9e8d57u, counter.z);
        const uint32_t low_x = 0xd2511f53u * counter.x;
        const uint32_t low_z = 0xcd9e8d57u * counter.z;
        counter = make_uint4(high_z ^ counter.y ^ key.x, low_z, high_x ^ counter.w ^ key.y, low_x);
        key.x += 0x9e3779b9u;
        key.y += 0xbb67ae85u;
    }
    return counter;
}

// Whether the point lies in the quarter circle: in whole numbers, so there is nothing to round.
__host__ __device__ inline bool is_hit(uint32_t x, uint32_t y) {
    const uint64_t a = x >> 1;
    const uint64_t b = y >> 1;
    return a * a + b * b < (uint64_t(1) << 62);
}

// The hits among the two points of one counter.
__host__ __device__ inline unsigned hits_of(uint32_t number, uint2 seed) {
    const uint4 random = philox(make_uint4(number, 0, 0, 0), seed);
    return unsigned(is_hit(random.x, random.y)) + unsigned(is_hit(random.z, random.w));
}

__global__ void count_hits(uint32_t counters, uint2 seed, unsigned long long *hits) {
    __shared__ unsigned block_hits;
    if (threadIdx.x == 0) {
        block_hits = 0;
    }
    __syncthreads();
    unsigned own_hits = 0;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < counters; i += gridDim.x * blockDim.x) {
        own_hits += hits_of(i, seed);
    }
    atomicAdd(&block_hits, own_hits);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(hits, static_cast<unsigned long long>(block_hits));
    }
}

int main() {
    const uint32_t counters = 250000;
    const uint2 seed = make_uint2(0x1234u, 0xabcdu);

    // The first counter with key zero has a well-known result.
    const uint4 known = philox(make_uint4(0, 0, 0, 0), make_uint2(0, 0));
    bool right = known.x == 0x6627e8d5u && known.y == 0xe169c58du && known.z == 0xbc57ac4cu && known.w == 0x9b00dbd8u;

    unsigned long long *device_hits = nullptr;
    CHECK(cudaMalloc(&device_hits, sizeof(*device_hits)));
    CHECK(cudaMemset(device_hits, 0, sizeof(*device_hits)));
    count_hits<<<kGrid, kBlock>>>(counters, seed, device_hits);
    CHECK(cudaGetLastError());
    unsigned long long hits = 0;
    CHECK(cudaMemcpy(&hits, device_hits, sizeof(hits), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(device_hits));

    unsigned long long expected = 0;
    for (uint32_t i = 0; i < counters; ++i) {
        expected += hits_of(i, seed);
    }
    const double pi = 4.0 * hits / (2.0 * counters);
    right = right && hits == expected && std::fabs(pi - 3.14159265) < 0.01;
    std::printf("monte carlo: %llu hits of %u, pi is about %.4f: %s\n", hits, 2 * counters, pi,
                right ? "PASS" : "FAIL");
    return right ? 0 : 1;
}
