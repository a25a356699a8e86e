// An exclusive prefix sum over an array of any size: each block scans its own part in shared memory,
// the sums of the blocks are scanned in the same way (recursively), and then added to every part.
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

constexpr int kBlock = 128;
constexpr int kPart = 2 * kBlock;

// Work-efficient scan of two elements for each thread: a tree of sums on the way up, prefixes on the way down.
__global__ void scan_parts(const unsigned *in, unsigned *out, unsigned *part_sums, int count) {
    __shared__ unsigned part[kPart];
    const int t = threadIdx.x;
    const int first = blockIdx.x * kPart + t;
    const int second = first + kBlock;
    part[t] = first < count ? in[first] : 0;
    part[t + kBlock] = second < count ? in[second] : 0;

    int stride = 1;
    for (int pairs = kBlock; pairs > 0; pairs /= 2) {
        __syncthreads();
        if (t < pairs) {
            const int left = stride * (2 * t + 1) - 1;
            part[left + stride] += part[left];
        }
        stride *= 2;
    }
    __syncthreads();
    if (t == 0) {
        part_sums[blockIdx.x] = part[kPart - 1];
        part[kPart - 1] = 0;
    }
    for (int pairs = 1; pairs <= kBlock; pairs *= 2) {
        stride /= 2;
        __syncthreads();
        if (t < pairs) {
            const int left = stride * (2 * t + 1) - 1;
            const unsigned sum = part[left];
            part[left] = part[left + stride];
            part[left + stride] += sum;
        }
    }
    __syncthreads();

    if (first < count) {
        out[first] = part[t];
    }
    if (second < count) {
        out[second] = part[t + kBlock];
    }
}

__global__ void add_offsets(unsigned *out, const unsigned *offsets, int count) {
    const unsigned offset = offsets[blockIdx.x];
    for (int i = blockIdx.x * kPart + threadIdx.x; i < min(count, static_cast<int>(blockIdx.x + 1) * kPart);
         i += kBlock) {
        out[i] += offset;
    }
}

// Scans on the device; both arrays are device memory.
static void scan(const unsigned *in, unsigned *out, int count) {
    const int parts = (count + kPart - 1) / kPart;
    unsigned *sums = nullptr;
    unsigned *offsets = nullptr;
    CHECK(cudaMalloc(&sums, parts * sizeof(unsigned)));
    CHECK(cudaMalloc(&offsets, parts * sizeof(unsigned)));
    scan_parts<<<parts, kBlock>>>(in, out, sums, count);
    CHECK(cudaGetLastError());
    if (parts > 1) {
        scan(sums, offsets, parts);
        add_offsets<<<parts, kBlock>>>(out, offsets, count);
        CHECK(cudaGetLastError());
    }
    CHECK(cudaFree(sums));
    CHECK(cudaFree(offsets));
}

int main() {
    const int sizes[] = {1, 255, 256, 257, 5000, 70001};
    int wrong = 0;
    for (int count : sizes) {
        std::vector<unsigned> in(count);
        unsigned state = count;
        for (unsigned &value : in) {
            state = state * 1664525u + 1013904223u;
            value = state >> 24;
        }
        unsigned *device_in = nullptr;
        unsigned *device_out = nullptr;
        CHECK(cudaMalloc(&device_in, count * sizeof(unsigned)));
        CHECK(cudaMalloc(&device_out, count * sizeof(unsigned)));
        CHECK(cudaMemcpy(device_in, in.data(), count * sizeof(unsigned), cudaMemcpyHostToDevice));
        scan(device_in, device_out, count);
        std::vector<unsigned> out(count);
        CHECK(cudaMemcpy(out.data(), device_out, count * sizeof(unsigned), cudaMemcpyDeviceToHost));
        CHECK(cudaFree(device_in));
        CHECK(cudaFree(device_out));

        unsigned sum = 0;
        for (int i = 0; i < count; ++i) {
            wrong += out[i] != sum;
            sum += in[i];
        }
    }
    std::printf("scan: 6 sizes, %d wrong: %s\n", wrong, wrong == 0 ? "PASS" : "FAIL");
    return wrong == 0 ? 0 : 1;
}
