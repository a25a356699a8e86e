// The CUDA runtime functions that whole programs call and libggml-cuda does not (cudart.cpp has the others).
#include "../copies.h"
#include "../device.h"
#include "../launch.h"

#include <cuda_runtime_api.h>

#include <cstddef>

#undef cudaMallocAsync // names of CUDA's headers for their templates
#undef cudaEventRecordWithFlags

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned) {
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    return cudaEventRecord(event, stream);
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned) { return cudaMallocHost(pointer, bytes); }
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) {
    *device = host;
    return cudaSuccess;
}
cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return cudaMalloc(pointer, *pitch * height);
}
cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t) { return cudaFree(pointer); }
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
    return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
}
cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
    const bool fits = pitch >= width && simt::check_fill(simt::rows(to, pitch, width, height)) == cudaSuccess;
    if (!fits) {
        return simt::set_last_error(cudaErrorInvalidValue);
    }
    for (size_t row = 0; row < height; row++) {
        cudaMemset(static_cast<char *>(to) + row * pitch, value, width);
    }
    return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t) {
    return cudaMemset2D(to, pitch, value, width, height);
}
cudaError_t cudaMemPrefetchAsync(const void *, size_t, cudaMemLocation, unsigned, cudaStream_t) { return cudaSuccess; }

// A symbol is the variable itself.
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, cudaMemcpyKind kind) {
    return cudaMemcpy(static_cast<char *>(const_cast<void *>(symbol)) + offset, from, bytes, kind);
}
cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, cudaMemcpyKind kind) {
    return cudaMemcpy(to, static_cast<const char *>(symbol) + offset, bytes, kind);
}
cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
    *address = const_cast<void *>(symbol);
    return cudaSuccess;
}

cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
cudaError_t cudaDeviceGetLimit(size_t *value, cudaLimit limit) {
    *value = limit == cudaLimitStackSize ? 1024 : limit == cudaLimitPrintfFifoSize ? 1 << 20 : 8 << 20;
    return cudaSuccess;
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaChooseDevice(int *device, const cudaDeviceProp *) { return cudaGetDevice(device); }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

} // extern "C"
