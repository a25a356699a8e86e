// Copies and frees, right and wrong, with the errors that they return. test_program.py has those of an H200.
#include <cstdio>
#include <cstdlib>

#define TRY(...)                                                                                                       \
    {                                                                                                                  \
        const int error = (__VA_ARGS__);                                                                               \
        const int last = cudaGetLastError();                                                                           \
        printf(last == error ? "%s: %d\n" : "%s: %d, but the last error is %d\n", #__VA_ARGS__, error, last);          \
    }
#define COPY(...) TRY(cudaMemcpy(__VA_ARGS__))

static __device__ float g[64];

int main() {
    const auto to_gpu = cudaMemcpyHostToDevice, to_host = cudaMemcpyDeviceToHost, on_gpu = cudaMemcpyDeviceToDevice,
               on_host = cudaMemcpyHostToHost, any = cudaMemcpyDefault;
    float *d, *e, *pinned, *managed, *x, *h = static_cast<float *>(calloc(65536, 1));
    cudaMalloc(&d, 1024);
    cudaMalloc(&e, 1 << 20);
    cudaMallocHost(&pinned, 1024);
    cudaMallocManaged(&managed, 1024);
    COPY(h, d, 16, to_gpu)
    COPY(d, h, 16, to_host)
    COPY(d, e, 16, to_gpu)
    COPY(d, e, 16, to_host)
    COPY(d, e, 16, on_host)
    COPY(h, d, 16, on_host)
    COPY(h, d, 16, any)
    COPY(h, h + 9, 16, on_host)
    COPY(h, h + 9, 16, on_gpu)
    COPY(h, h + 9, 16, any)
    COPY(h, h + 9, 16, to_gpu)
    COPY(h, h + 9, 16, to_host)
    COPY(pinned, h, 16, to_gpu)
    COPY(pinned, d, 16, to_gpu)
    COPY(pinned, d, 16, on_gpu)
    COPY(d, pinned, 16, on_gpu)
    COPY(d, pinned, 16, to_host)
    COPY(managed, h, 16, to_gpu)
    COPY(managed, h, 16, to_host)
    COPY(h, managed, 16, to_gpu)
    COPY(h, managed, 16, to_host)
    COPY(d, h, 1024, to_gpu)
    COPY(d, h, 1025, to_gpu)
    COPY(d, h, 1025, any)
    COPY(h, d, 1028, to_host)
    COPY(h, e + (1 << 18), 16, to_host)
    COPY(h, e + (1 << 18) + 16, 16, to_host)
    COPY(e + (1 << 18) + 16, h, 16, to_gpu)
    COPY(d, e, 1028, on_gpu)
    COPY(h, pinned, 1028, on_host)
    COPY(pinned, d, 1028, to_host)
    COPY(d + 256, h, 0, to_gpu)
    COPY(nullptr, h, 4, to_gpu)
    COPY(nullptr, h, 0, to_gpu)
    COPY(h, d, 0, to_gpu)
    COPY(d, h, 16, static_cast<cudaMemcpyKind>(7))
    TRY(cudaMemcpyAsync(d, h, 1028, to_gpu))
    TRY(cudaMemcpyAsync(h, d, 16, to_gpu))
    TRY(cudaMemset(d, 0, 1028))
    TRY(cudaMemset(e + (1 << 18) + 16, 0, 16))
    TRY(cudaMemset(managed, 0, 1028))
    TRY(cudaMemset(managed + 272, 0, 16))
    TRY(cudaMemAdvise(managed + 272, 16, cudaMemAdviseSetReadMostly, {cudaMemLocationTypeDevice, 0}))
    TRY(cudaMemPrefetchAsync(managed, 1024, {cudaMemLocationTypeDevice, 0}, 0, nullptr))
    TRY(cudaMemPrefetchAsync(managed + 272, 16, {cudaMemLocationTypeDevice, 0}, 0, nullptr))
    TRY(cudaMemset(h, 0, 16))
    TRY(cudaMemset(pinned, 0, 16))
    TRY(cudaMemset(nullptr, 0, 4))
    TRY(cudaMemset(h, 0, 0))
    TRY(cudaMemcpyToSymbol(g, h, 260))
    TRY(cudaMemcpyToSymbol(g, h, 8, 252))
    TRY(cudaMemcpyToSymbol(g, h, 8, 248))
    TRY(cudaMemcpyToSymbol(g, h, 8, 0, to_host))
    TRY(cudaMemcpyFromSymbol(h, g, 260))
    TRY(cudaMemcpy2D(d, 8, h, 8, 16, 2, to_gpu))
    TRY(cudaMemcpy2D(d, 16, h, 16, 16, 64, to_gpu))
    TRY(cudaMemcpy2D(d, 16, h, 16, 16, 65, to_gpu))
    TRY(cudaMemset2D(d, 8, 0, 16, 2))
    TRY(cudaFree(h))
    TRY(cudaFree(d + 1))
    TRY(cudaFree(pinned))
    TRY(cudaFreeHost(h))
    TRY(cudaFreeHost(d))
    TRY(cudaHostUnregister(h))
    TRY(cudaSetDevice(3))
    TRY(cudaMalloc(&x, 1ull << 50))
    TRY(cudaFree(e))
    COPY(e, h, 4, to_gpu)
    TRY(cudaFree(e))
}
