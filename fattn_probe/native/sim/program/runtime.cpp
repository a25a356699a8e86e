// The CUDA runtime functions that whole programs call and libggml-cuda does not (cudart.cpp has the others).
#include "../copies.h"
#include "../device.h"
#include "../host_memory.h"
#include "../launch.h"
#include "../streams.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdlib>

#undef cudaMallocAsync // CUDA's headers use these names for templates
#undef cudaEventRecordWithFlags

namespace {

constexpr unsigned host_flags = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
// By cudaLimit; a GPU's own values at the start.
size_t limits[] = {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0};

} // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned flags) {
    if (callback == nullptr || flags != 0 || !simt::is_stream(stream)) {
        const bool exists = simt::is_stream(stream);
        return simt::set_last_error(exists ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
    }
    cudaStreamSynchronize(stream); // the callback may notify other host threads
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    for (int *priority : {least, greatest}) {
        if (priority != nullptr) {
            *priority = 0;
        }
    }
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    return flags == cudaEventRecordDefault ? cudaEventRecord(event, stream)
                                           : simt::set_last_error(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    return (flags & ~host_flags) == 0 ? cudaMallocHost(pointer, bytes) : simt::set_last_error(cudaErrorInvalidValue);
}
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    const bool takes = device != nullptr && flags == 0 && simt::end_of_pinned(static_cast<char *>(host)) != nullptr;
    if (takes) {
        *device = host;
    }
    return simt::success_if(takes, cudaErrorInvalidValue);
}
cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
    if (pitch == nullptr || pointer == nullptr) {
        return simt::set_last_error(cudaErrorInvalidValue);
    }
    *pitch = height == 0 ? 0 : (width + 511) / 512 * 512;
    return cudaMalloc(pointer, *pitch * height);
}
cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
    return simt::is_stream(stream) ? cudaMalloc(pointer, bytes) : simt::set_last_error(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
    if (!simt::is_stream(stream)) {
        return simt::set_last_error(cudaErrorInvalidResourceHandle);
    }
    return simt::success_if(pointer == nullptr || simt::release(pointer), cudaErrorInvalidValue);
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
    const cudaError_t error = cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
    const bool within_device = simt::find_allocation(to) != nullptr && simt::find_allocation(from) != nullptr;
    return error != cudaSuccess || within_device ? error : cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
    if (!simt::is_stream(stream)) {
        return simt::set_last_error(cudaErrorInvalidResourceHandle);
    }
    if (pitch < width || simt::check_fill(simt::rows(to, pitch, width, height)) != cudaSuccess) {
        return simt::set_last_error(cudaErrorInvalidValue);
    }
    for (size_t row = 0; row < height; row++) {
        cudaMemsetAsync(static_cast<char *>(to) + row * pitch, value, width, stream);
    }
    return cudaSuccess;
}
cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
    return cudaMemset2DAsync(to, pitch, value, width, height, nullptr);
}
cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, cudaMemLocation, unsigned flags, cudaStream_t) {
    return simt::success_if(flags == 0 && simt::is_managed(pointer, bytes), cudaErrorInvalidValue);
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
    if (limit < 0 || limit >= sizeof(limits) / sizeof(*limits)) {
        return simt::set_last_error(cudaErrorInvalidValue);
    }
    limits[limit] = value;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetLimit(size_t *value, cudaLimit limit) {
    if (value == nullptr || limit < 0 || limit >= sizeof(limits) / sizeof(*limits)) {
        return simt::set_last_error(cudaErrorInvalidValue);
    }
    *value = limits[limit];
    return cudaSuccess;
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaChooseDevice(int *device, const cudaDeviceProp *properties) {
    return properties != nullptr ? cudaGetDevice(device) : simt::set_last_error(cudaErrorInvalidValue);
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

} // extern "C"
