// The CUDA runtime functions that libggml-cuda calls, for the simulated GPU. Everything is synchronous, there is one
// device, and its memory is the host's. Calling a function that is missing here causes a link error that names it.
//
// Each function accepts the arguments that CUDA accepts, and refuses others with CUDA's error (tests/lab/program:
// calls.cu, copies.cu).

#include "check_host.h"
#include "copies.h"
#include "device.h"
#include "environment.h"
#include "finding.h"
#include "host_memory.h"
#include "launch.h"
#include "streams.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace {

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
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorApiFailureBase, "cudaErrorApiFailureBase", "api failure base"},
};

const Error &error_of(cudaError_t code) {
    static constexpr Error unknown = {cudaErrorUnknown, "unrecognized error code", "unrecognized error code"};
    const auto found =
        std::find_if(std::begin(errors), std::end(errors), [code](const Error &e) { return e.code == code; });
    return found != std::end(errors) ? *found : unknown;
}

using simt::success_if;
cudaError_t returned(cudaError_t error) { return success_if(error == cudaSuccess, error); }

// Stores a result at the caller's address; CUDA refuses a null pointer.
template <class T> cudaError_t give(T *to, const T &value) {
    if (to == nullptr) {
        return returned(cudaErrorInvalidValue);
    }
    *to = value;
    return cudaSuccess;
}

bool is_device(int device) { return device == 0; }
constexpr int pci_bus_id_bytes = 13; // "0000:00:00.0"

// A new allocation; nullptr for 0 bytes, as in CUDA.
cudaError_t give_memory(void **pointer, size_t bytes, void *(*allocate)(size_t)) {
    if (pointer == nullptr) {
        return returned(cudaErrorInvalidValue);
    }
    *pointer = bytes == 0 ? nullptr : allocate(bytes);
    return success_if(bytes == 0 || *pointer != nullptr, cudaErrorMemoryAllocation);
}
void *allocate_pinned(size_t bytes) {
    void *const memory = bytes > SIZE_MAX / 2 ? nullptr : aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (memory != nullptr) {
        simt::pin(memory, bytes);
    }
    return memory;
}

cudaError_t stream_exists(cudaStream_t stream) {
    return success_if(simt::is_stream(stream), cudaErrorInvalidResourceHandle);
}

// A copy on a stream.
cudaError_t copy(const char *call, void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream,
                 bool host_waits) {
    const cudaError_t refused = simt::check_copy({to, bytes}, {from, bytes}, kind);
    if (refused != cudaSuccess || bytes == 0) {
        return returned(refused);
    }
    simt::checker.transferred({call, simt::stream_of(stream), to, from, bytes, host_waits});
    simt::checker.written(to, from, bytes);
    memmove(to, from, bytes);
    return cudaSuccess;
}

bool of_device(const void *memory) { return simt::find_allocation(memory) != nullptr; }

} // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) { return give(count, 1); }
cudaError_t cudaGetDevice(int *device) { return give(device, 0); }
cudaError_t cudaSetDevice(int device) { return success_if(is_device(device), cudaErrorInvalidDevice); }
cudaError_t cudaSetDeviceFlags(unsigned flags) {
    return success_if((flags & ~unsigned{cudaDeviceMask}) == 0, cudaErrorInvalidValue);
}
cudaError_t cudaDeviceSynchronize() {
    simt::checker.host_waits_for_all();
    return cudaSuccess;
}
cudaError_t cudaDeviceReset() { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
    return properties == nullptr || is_device(device) ? give(properties, simt::device_properties())
                                                      : returned(cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    if (value == nullptr || attribute < 1 || attribute >= cudaDevAttrMax) {
        return returned(cudaErrorInvalidValue);
    }
    return is_device(device) ? give(value, simt::device_attribute(attribute)) : returned(cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    if (text == nullptr || length < pci_bus_id_bytes) {
        return returned(cudaErrorInvalidValue);
    }
    snprintf(text, static_cast<size_t>(length), "0000:00:00.0");
    return success_if(is_device(device), cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    return can == nullptr || (is_device(device) && is_device(peer)) ? give(can, 0) : returned(cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned flags) { // one device has no peer
    return returned(flags != 0          ? cudaErrorInvalidValue
                    : is_device(device) ? cudaErrorPeerAccessUnsupported
                                        : cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceDisablePeerAccess(int device) {
    return returned(is_device(device) ? cudaErrorPeerAccessNotEnabled : cudaErrorInvalidDevice);
}
cudaError_t cudaRuntimeGetVersion(int *version) { return give(version, CUDART_VERSION); }
cudaError_t cudaDriverGetVersion(int *version) { return give(version, CUDART_VERSION); }

cudaError_t cudaGetLastError() {
    const cudaError_t error = simt::last_error();
    simt::set_last_error(cudaSuccess);
    return error;
}
cudaError_t cudaPeekAtLastError() { return simt::last_error(); }
const char *cudaGetErrorString(cudaError_t error) { return error_of(error).text; }
const char *cudaGetErrorName(cudaError_t error) { return error_of(error).name; }

cudaError_t cudaMalloc(void **pointer, size_t bytes) { return give_memory(pointer, bytes, simt::allocate); }
cudaError_t cudaFree(void *pointer) {
    cudaDeviceSynchronize(); // as drivers do
    return success_if(pointer == nullptr || simt::release(pointer), cudaErrorInvalidValue);
}
cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) {
    if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost) {
        return returned(cudaErrorInvalidValue);
    }
    const cudaError_t error = cudaMalloc(pointer, bytes);
    if (error == cudaSuccess && bytes != 0) {
        simt::make_managed(*pointer);
        simt::checker.written(*pointer, nullptr, bytes); // the checker does not see the host's writes
    }
    return error;
}
cudaError_t cudaMallocHost(void **pointer, size_t bytes) { return give_memory(pointer, bytes, allocate_pinned); }
cudaError_t cudaFreeHost(void *pointer) {
    if (pointer != nullptr && !simt::unpin(pointer)) {
        return returned(cudaErrorInvalidValue);
    }
    free(pointer);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    constexpr unsigned known =
        cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;
    if (pointer == nullptr || bytes == 0 || (flags & ~known) != 0) {
        return returned(cudaErrorInvalidValue);
    }
    if (simt::end_of_pinned(static_cast<char *>(pointer)) != nullptr) {
        return returned(cudaErrorHostMemoryAlreadyRegistered);
    }
    simt::pin(pointer, bytes);
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *pointer) {
    const bool within = simt::end_of_pinned(static_cast<char *>(pointer)) != nullptr;
    return success_if(simt::unpin(pointer),
                      pointer == nullptr || within ? cudaErrorInvalidValue : cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, cudaMemoryAdvise, cudaMemLocation) {
    return success_if(simt::is_managed(pointer, bytes), cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    for (size_t *bytes : {free_bytes, total_bytes}) {
        if (bytes != nullptr) { // in CUDA, null means that the caller does not want the value
            *bytes = simt::device_properties().totalGlobalMem;
        }
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    return copy("cudaMemcpy", to, from, bytes, kind, nullptr, !of_device(to) || !of_device(from));
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    const cudaError_t refused = stream_exists(stream);
    return refused != cudaSuccess ? refused : copy("cudaMemcpyAsync", to, from, bytes, kind, stream, false);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    if (!simt::is_stream(stream)) {
        return stream_exists(stream);
    }
    if (to_pitch < width || from_pitch < width) {
        return returned(cudaErrorInvalidPitchValue);
    }
    const cudaError_t refused =
        simt::check_copy(simt::rows(to, to_pitch, width, height), simt::rows(from, from_pitch, width, height), kind);
    if (refused != cudaSuccess) {
        return returned(refused);
    }
    for (size_t row = 0; row < height; row++) {
        copy("cudaMemcpy2DAsync", static_cast<char *>(to) + row * to_pitch,
             static_cast<const char *>(from) + row * from_pitch, width, kind, stream, false);
    }
    return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream) {
    return is_device(to_device) && is_device(from_device) ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream)
                                                          : returned(cudaErrorInvalidDevice);
}
cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms *copy, cudaStream_t) {
    return returned(copy == nullptr ? cudaErrorInvalidValue : cudaErrorNotSupported); // one device has no peer
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, nullptr); }
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    if (!simt::is_stream(stream)) {
        return stream_exists(stream);
    }
    const cudaError_t refused = simt::check_fill({to, bytes});
    if (refused != cudaSuccess || bytes == 0) {
        return returned(refused);
    }
    simt::checker.transferred({"cudaMemset", simt::stream_of(stream), to, nullptr, bytes, false});
    simt::checker.written(to, nullptr, bytes);
    memset(to, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    if (stream == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0) {
        return returned(cudaErrorInvalidValue);
    }
    const bool blocking = (flags & cudaStreamNonBlocking) == 0;
    return give(stream, reinterpret_cast<cudaStream_t>(simt::streams().make({0, blocking})));
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return success_if(simt::streams().destroy(stream), cudaErrorInvalidResourceHandle);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (simt::is_stream(stream)) {
        simt::checker.host_waits(simt::stream_of(stream));
    }
    return stream_exists(stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    if ((flags & ~unsigned{cudaEventWaitExternal}) != 0) {
        return returned(cudaErrorInvalidValue);
    }
    const simt::Event *const found = simt::events().find(event);
    if (found == nullptr || !simt::is_stream(stream)) {
        return returned(cudaErrorInvalidResourceHandle);
    }
    simt::checker.waits(simt::stream_of(stream), found->number);
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    if (function == nullptr || !simt::is_stream(stream)) {
        return returned(function == nullptr ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
    }
    cudaStreamSynchronize(stream); // the function may notify other host threads
    function(data);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    constexpr unsigned known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
    if (event == nullptr || (flags & ~known) != 0) {
        return returned(cudaErrorInvalidValue);
    }
    const bool timed = (flags & cudaEventDisableTiming) == 0;
    return give(event, reinterpret_cast<cudaEvent_t>(simt::events().make({0, timed})));
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return success_if(simt::events().destroy(event), cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    simt::Event *const found = simt::events().find(event);
    if (found == nullptr || !simt::is_stream(stream)) {
        return returned(cudaErrorInvalidResourceHandle);
    }
    found->recorded = true;
    found->time = std::chrono::steady_clock::now();
    simt::checker.recorded(found->number, simt::stream_of(stream));
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const simt::Event *const found = simt::events().find(event);
    if (found != nullptr) {
        simt::checker.host_waits_for_event(found->number);
    }
    return success_if(found != nullptr, cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop) {
    const simt::Event *const first = simt::events().find(start), *const second = simt::events().find(stop);
    for (const simt::Event *event : {first, second}) {
        if (event == nullptr || !event->timed || !event->recorded) {
            return returned(cudaErrorInvalidResourceHandle);
        }
    }
    simt::note_host_time();
    const auto elapsed = std::chrono::duration<float, std::milli>(second->time - first->time);
    return give(milliseconds, elapsed.count());
}

} // extern "C"
