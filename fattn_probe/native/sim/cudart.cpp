// The CUDA runtime functions that libggml-cuda calls, for the simulated GPU. Everything is synchronous, there is one
// device, and its memory is the host's. A call of a function that is missing here is a link error that names it.

#include "check_host.h"
#include "copies.h"
#include "device.h"
#include "environment.h"
#include "finding.h"
#include "host_memory.h"
#include "launch.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace {

// Streams and events are tokens; an event remembers when it was recorded.
struct Event {
    std::chrono::steady_clock::time_point time;
};

struct Error {
    cudaError_t code;
    const char *name, *text;
};

// The errors that this runtime returns.
constexpr Error errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

const Error &error_of(cudaError_t code) {
    static constexpr Error unknown = {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
    const auto found =
        std::find_if(std::begin(errors), std::end(errors), [code](const Error &e) { return e.code == code; });
    return found != std::end(errors) ? *found : unknown;
}

void note_write(const void *to, const void *from, size_t bytes) {
    if (simt::checker != nullptr) {
        simt::checker->written(to, from, bytes);
    }
}

// An error becomes the last one, which a success does not change.
cudaError_t returned(cudaError_t error) { return error == cudaSuccess ? error : simt::set_last_error(error); }
cudaError_t success_if(bool good, cudaError_t error) { return returned(good ? cudaSuccess : error); }

template <class T> T token() {
    static char object;
    return reinterpret_cast<T>(&object);
}

} // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return success_if(device == 0, cudaErrorInvalidDevice); }
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaDeviceReset() { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
    *properties = simt::device_properties();
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
    *value = simt::device_attribute(attribute);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int) {
    snprintf(text, static_cast<size_t>(length), "0000:00:00.0");
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) {
    *can = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceDisablePeerAccess(int) { return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError() {
    const cudaError_t error = simt::last_error();
    simt::set_last_error(cudaSuccess);
    return error;
}
cudaError_t cudaPeekAtLastError() { return simt::last_error(); }
const char *cudaGetErrorString(cudaError_t error) { return error_of(error).text; }
const char *cudaGetErrorName(cudaError_t error) { return error_of(error).name; }

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    *pointer = simt::allocate(bytes);
    return success_if(*pointer != nullptr, cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void *pointer) {
    return success_if(pointer == nullptr || simt::release(pointer), cudaErrorInvalidValue);
}
cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned) {
    const cudaError_t error = cudaMalloc(pointer, bytes);
    note_write(*pointer, nullptr, bytes); // the host writes it unseen
    return error;
}
cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
    *pointer = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*pointer != nullptr) {
        simt::pin(*pointer, bytes);
    }
    return success_if(*pointer != nullptr, cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void *pointer) {
    if (pointer != nullptr && !simt::unpin(pointer)) {
        return returned(cudaErrorInvalidValue);
    }
    free(pointer);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned) {
    simt::pin(pointer, bytes);
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *pointer) {
    return success_if(simt::unpin(pointer), cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaMemAdvise(const void *, size_t, cudaMemoryAdvise, cudaMemLocation) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = *total_bytes = simt::device_properties().totalGlobalMem;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    const cudaError_t refused = simt::check_copy({to, bytes}, {from, bytes}, kind);
    if (refused != cudaSuccess || bytes == 0) {
        return returned(refused);
    }
    note_write(to, from, bytes);
    memmove(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
    return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t) {
    if (to_pitch < width || from_pitch < width) {
        return returned(cudaErrorInvalidPitchValue);
    }
    const cudaError_t refused =
        simt::check_copy(simt::rows(to, to_pitch, width, height), simt::rows(from, from_pitch, width, height), kind);
    if (refused != cudaSuccess) {
        return returned(refused);
    }
    for (size_t row = 0; row < height; row++) {
        cudaMemcpy(static_cast<char *>(to) + row * to_pitch, static_cast<const char *>(from) + row * from_pitch, width,
                   kind);
    }
    return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t) {
    return cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}
cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms *, cudaStream_t) {
    return cudaErrorNotSupported; // one device has no peer
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    const cudaError_t refused = simt::check_fill({to, bytes});
    if (refused != cudaSuccess || bytes == 0) {
        return returned(refused);
    }
    note_write(to, nullptr, bytes);
    memset(to, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t) { return cudaMemset(to, value, bytes); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    *stream = token<cudaStream_t>();
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void *data) {
    function(data);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    *event = reinterpret_cast<cudaEvent_t>(new Event{});
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete reinterpret_cast<Event *>(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
    reinterpret_cast<Event *>(event)->time = std::chrono::steady_clock::now();
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop) {
    const auto elapsed = reinterpret_cast<Event *>(stop)->time - reinterpret_cast<Event *>(start)->time;
    *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
    simt::note_host_time();
    return cudaSuccess;
}

} // extern "C"
