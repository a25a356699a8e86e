// Splits the work over several streams with pinned memory and asynchronous copies; a last stream waits for
// all of them by events, adds up their results, and calls a host function when it is done.
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

constexpr int kStreams = 4;
constexpr int kPart = 5000;
constexpr int kCount = kStreams * kPart;
constexpr int kBlock = 128;

// What the host function is told, and what it leaves behind.
struct Completion {
    const unsigned long long *total;
    unsigned long long seen;
    int calls;
};

__global__ void square(const int *in, int *out, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        out[i] = in[i] * in[i];
    }
}

__global__ void add_up(const int *values, int count, unsigned long long *total) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        atomicAdd(total, static_cast<unsigned long long>(values[i]));
    }
}

// Runs on the host, in stream order; it must not call the CUDA runtime.
static void CUDART_CB on_complete(void *data) {
    Completion *completion = static_cast<Completion *>(data);
    completion->seen = *completion->total;
    completion->calls += 1;
}

int main() {
    int *in = nullptr;
    int *out = nullptr;
    unsigned long long *total = nullptr;
    CHECK(cudaMallocHost(&in, kCount * sizeof(int)));
    CHECK(cudaHostAlloc(&out, kCount * sizeof(int), cudaHostAllocDefault));
    CHECK(cudaHostAlloc(&total, sizeof(*total), cudaHostAllocDefault));
    *total = 0;

    unsigned long long expected_total = 0;
    for (int i = 0; i < kCount; ++i) {
        in[i] = (i * 37) % 1001 - 500;
        out[i] = -1;
        expected_total += static_cast<unsigned long long>(in[i] * in[i]);
    }

    int *device_in = nullptr;
    int *device_out = nullptr;
    unsigned long long *device_total = nullptr;
    CHECK(cudaMalloc(&device_in, kCount * sizeof(int)));
    CHECK(cudaMalloc(&device_out, kCount * sizeof(int)));
    CHECK(cudaMalloc(&device_total, sizeof(*device_total)));

    cudaStream_t streams[kStreams];
    cudaEvent_t squared[kStreams];
    cudaStream_t last = nullptr;
    for (int s = 0; s < kStreams; ++s) {
        CHECK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&squared[s], cudaEventDisableTiming));
    }
    CHECK(cudaStreamCreate(&last));

    CHECK(cudaMemsetAsync(device_total, 0, sizeof(*device_total), last));
    const int grid = (kPart + kBlock - 1) / kBlock;
    for (int s = 0; s < kStreams; ++s) {
        const int offset = s * kPart;
        const size_t bytes = kPart * sizeof(int);
        CHECK(cudaMemcpyAsync(device_in + offset, in + offset, bytes, cudaMemcpyHostToDevice, streams[s]));
        square<<<grid, kBlock, 0, streams[s]>>>(device_in + offset, device_out + offset, kPart);
        CHECK(cudaGetLastError());
        CHECK(cudaEventRecord(squared[s], streams[s]));
        CHECK(cudaMemcpyAsync(out + offset, device_out + offset, bytes, cudaMemcpyDeviceToHost, streams[s]));

        CHECK(cudaStreamWaitEvent(last, squared[s], 0));
        add_up<<<grid, kBlock, 0, last>>>(device_out + offset, kPart, device_total);
        CHECK(cudaGetLastError());
    }
    CHECK(cudaMemcpyAsync(total, device_total, sizeof(*total), cudaMemcpyDeviceToHost, last));
    Completion completion = {total, 0, 0};
    CHECK(cudaLaunchHostFunc(last, on_complete, &completion));

    // After the last stream, every event has happened and the host function has run.
    CHECK(cudaStreamSynchronize(last));
    bool right = completion.calls == 1 && completion.seen == expected_total && *total == expected_total;
    for (int s = 0; s < kStreams; ++s) {
        right = right && cudaEventQuery(squared[s]) == cudaSuccess;
        CHECK(cudaStreamSynchronize(streams[s]));
        right = right && cudaStreamQuery(streams[s]) == cudaSuccess;
    }
    int wrong = 0;
    for (int i = 0; i < kCount; ++i) {
        wrong += out[i] != in[i] * in[i];
    }
    right = right && wrong == 0;

    for (int s = 0; s < kStreams; ++s) {
        CHECK(cudaEventDestroy(squared[s]));
        CHECK(cudaStreamDestroy(streams[s]));
    }
    CHECK(cudaStreamDestroy(last));
    CHECK(cudaFree(device_in));
    CHECK(cudaFree(device_out));
    CHECK(cudaFree(device_total));
    CHECK(cudaFreeHost(in));
    CHECK(cudaFreeHost(out));
    CHECK(cudaFreeHost(total));

    std::printf("streams: %d streams, %d wrong, total %llu: %s\n", kStreams, wrong, completion.seen,
                right ? "PASS" : "FAIL");
    return right ? 0 : 1;
}
