// Chunks of an array on three streams: pinned memory, asynchronous copies, a polynomial from a __constant__ array, and
// a host function after each chunk. Events tell a fourth stream when it may add everything up.
#include <hip/hip_runtime.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                                      \
    do {                                                                                                 \
        hipError_t status_ = (call);                                                                     \
        if (status_ != hipSuccess) {                                                                     \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, hipGetErrorString(status_));         \
            std::exit(1);                                                                                \
        }                                                                                                \
    } while (0)

constexpr int kTerms = 5;
constexpr int kStreams = 3;
constexpr int kChunks = 8;
constexpr int kChunk = 2500;
constexpr int kThreads = 256;

__constant__ float coefficients[kTerms];

__global__ void polynomial(const float* in, float* out, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float value = coefficients[kTerms - 1];
    for (int term = kTerms - 2; term >= 0; --term) value = fmaf(value, in[i], coefficients[term]);
    out[i] = value;
}

__global__ void add_up(const float* in, int count, unsigned long long* total) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) atomicAdd(total, (unsigned long long)(in[i] * 1024.0f));  // whole numbers: any order will do
}

// What the host function of a chunk needs, and what it finds: the chunk has arrived in the host's memory.
struct Chunk {
    const float* out;
    float first, last;
    std::atomic<int>* finished;
};

static void chunk_is_back(void* data) {
    Chunk* chunk = static_cast<Chunk*>(data);
    chunk->first = chunk->out[0];
    chunk->last = chunk->out[kChunk - 1];
    ++*chunk->finished;
}

int main() {
    hipDeviceProp_t properties;
    CHECK(hipGetDeviceProperties(&properties, 0));
    const int count = kChunks * kChunk;
    const float terms[kTerms] = {1.0f, 0.5f, 0.25f, 2.0f, 0.75f};
    float *in, *out, *in_device, *out_device;
    unsigned long long *total, *total_device;
    CHECK(hipHostMalloc(&in, count * sizeof(float), hipHostMallocDefault));
    CHECK(hipHostMalloc(reinterpret_cast<void**>(&out), count * sizeof(float)));
    CHECK(hipHostMalloc(&total, sizeof(*total)));
    CHECK(hipMalloc(&in_device, count * sizeof(float)));
    CHECK(hipMalloc(&out_device, count * sizeof(float)));
    CHECK(hipMalloc(&total_device, sizeof(*total)));
    for (int i = 0; i < count; ++i) in[i] = float(i % 1000) / 1000.0f;
    CHECK(hipMemcpyToSymbol(HIP_SYMBOL(coefficients), terms, sizeof(terms)));

    hipStream_t streams[kStreams], adding;
    hipEvent_t chunks_done[kStreams], start, stop;
    for (int s = 0; s < kStreams; ++s) {
        CHECK(hipStreamCreateWithFlags(&streams[s], hipStreamNonBlocking));
        CHECK(hipEventCreateWithFlags(&chunks_done[s], hipEventDisableTiming));
    }
    CHECK(hipStreamCreate(&adding));
    CHECK(hipEventCreate(&start));
    CHECK(hipEventCreate(&stop));

    std::atomic<int> finished(0);
    Chunk chunks[kChunks];
    CHECK(hipEventRecord(start, adding));
    CHECK(hipMemsetAsync(total_device, 0, sizeof(*total), adding));
    for (int c = 0; c < kChunks; ++c) {
        const hipStream_t stream = streams[c % kStreams];
        const size_t first = size_t(c) * kChunk, bytes = kChunk * sizeof(float);
        chunks[c] = {out + first, 0.0f, 0.0f, &finished};
        CHECK(hipMemcpyAsync(in_device + first, in + first, bytes, hipMemcpyHostToDevice, stream));
        hipLaunchKernelGGL(polynomial, dim3((kChunk + kThreads - 1) / kThreads), dim3(kThreads), 0, stream,
                           in_device + first, out_device + first, kChunk);
        CHECK(hipGetLastError());
        CHECK(hipEventRecord(chunks_done[c % kStreams], stream));
        CHECK(hipMemcpyAsync(out + first, out_device + first, bytes, hipMemcpyDeviceToHost, stream));
        CHECK(hipLaunchHostFunc(stream, chunk_is_back, &chunks[c]));
    }
    for (hipEvent_t event : chunks_done) CHECK(hipStreamWaitEvent(adding, event, 0));
    add_up<<<(count + kThreads - 1) / kThreads, kThreads, 0, adding>>>(out_device, count, total_device);
    CHECK(hipGetLastError());
    CHECK(hipMemcpyAsync(total, total_device, sizeof(*total), hipMemcpyDeviceToHost, adding));
    CHECK(hipEventRecord(stop, adding));
    CHECK(hipEventSynchronize(stop));
    for (hipStream_t stream : streams) CHECK(hipStreamSynchronize(stream));
    float milliseconds = -1.0f;
    CHECK(hipEventElapsedTime(&milliseconds, start, stop));
    bool good = milliseconds >= 0.0f && hipStreamQuery(adding) == hipSuccess && hipEventQuery(stop) == hipSuccess;

    double worst = 0.0;
    unsigned long long right_total = 0;
    for (int i = 0; i < count; ++i) {
        const double x = in[i];
        const double right = terms[0] + x * (terms[1] + x * (terms[2] + x * (terms[3] + x * terms[4])));
        const double error = std::abs(out[i] - right);
        worst = error <= worst ? worst : error;  // a NaN is kept
        right_total += (unsigned long long)(out[i] * 1024.0f);
    }
    good = good && worst < 2e-6 && *total == right_total && finished == kChunks;
    for (const Chunk& chunk : chunks) good = good && chunk.first == chunk.out[0] && chunk.last == chunk.out[kChunk - 1];

    for (int s = 0; s < kStreams; ++s) {
        CHECK(hipStreamDestroy(streams[s]));
        CHECK(hipEventDestroy(chunks_done[s]));
    }
    CHECK(hipStreamDestroy(adding));
    CHECK(hipEventDestroy(start));
    CHECK(hipEventDestroy(stop));
    float* device_arrays[] = {in_device, out_device};
    for (float* array : device_arrays) CHECK(hipFree(array));
    CHECK(hipFree(total_device));
    CHECK(hipHostFree(in));
    CHECK(hipHostFree(out));
    CHECK(hipHostFree(total));
    std::printf("hip_streams: %d of %d chunks, largest error below 2e-6: %s\n", finished.load(), kChunks,
                good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
