// Adds two vectors in managed memory with a grid-stride loop.
// The size is no multiple of the block, and one launch has far fewer threads than elements.
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

// Each thread starts at its global index and moves on by the size of the whole grid.
__global__ void add(const float *a, const float *b, float *sum, int count) {
    const int stride = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        sum[i] = a[i] + b[i];
    }
}

// A small deterministic generator: values from -1 to 1.
static float next_value(unsigned &state) {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
}

static int count_wrong(const float *a, const float *b, const float *sum, int count) {
    int wrong = 0;
    for (int i = 0; i < count; ++i) {
        // One addition rounds the same way on both sides, so the comparison can be exact.
        wrong += sum[i] != a[i] + b[i];
    }
    return wrong;
}

int main() {
    const int count = 100003;
    const int block = 256;
    const size_t bytes = count * sizeof(float);

    float *a = nullptr;
    float *b = nullptr;
    float *sum = nullptr;
    CHECK(cudaMallocManaged(&a, bytes));
    CHECK(cudaMallocManaged(&b, bytes));
    CHECK(cudaMallocManaged(&sum, bytes));

    unsigned state = 12345;
    for (int i = 0; i < count; ++i) {
        a[i] = next_value(state);
        b[i] = next_value(state);
    }

    // One thread for each element, a few blocks for each multiprocessor, and a single block.
    int multiprocessors = 0;
    int device = 0;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    const int grids[] = {(count + block - 1) / block, multiprocessors, 1};

    int wrong = 0;
    for (int grid : grids) {
        CHECK(cudaMemset(sum, 0, bytes));
        add<<<grid, block>>>(a, b, sum, count);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        wrong += count_wrong(a, b, sum, count);
    }

    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
    CHECK(cudaFree(sum));

    std::printf("vector add: %d elements, 3 grids, %d wrong: %s\n", count, wrong, wrong == 0 ? "PASS" : "FAIL");
    return wrong == 0 ? 0 : 1;
}
