// Kernel launches, and queries about kernels: attributes, occupancy.
#pragma once

#include "thread.h"
#include "unchecked.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace simt {

// __launch_bounds__; zero if the source gives none.
struct Bounds {
    int threads = 0;
    int min_blocks = 0;
};
constexpr Bounds bounds(int threads = 0, int min_blocks = 0, int = 0) { return {threads, min_blocks}; }

struct Description {
    const char *signature = ""; // __PRETTY_FUNCTION__: the name, and the template arguments by name
    Bounds launch_bounds;
};

extern SIMT_THREAD_LOCAL Description *describing;

// The rewriter makes this the first statement of every kernel. Called from the host while `describing` is set, a kernel
// describes itself and returns, which gives its launch bounds and template arguments without ptxas.
inline bool describe(const char *signature, Bounds launch_bounds) {
    if (__builtin_expect(describing == nullptr, 1)) {
        return false;
    }
    *describing = {signature, launch_bounds};
    return true;
}

// Where a launch is queued. `programmatic`: it may start before the stream's last kernel is done (programmatic
// dependent launch).
struct Queued {
    cudaStream_t stream = nullptr;
    bool programmatic = false;
};

struct Launch {
    dim3 grid;
    dim3 block;
    size_t shared = 0;
    Description kernel;
    Queued queued;
    // Runs one CUDA thread, given the kernel with its arguments. Not a std::function, and no std::tuple of arguments,
    // because for 40 arguments these instantiate hundreds of templates, which a debugger reads with each kernel.
    void (*run)(const void *call) = nullptr;
    const void *call = nullptr;
    size_t call_bytes = 0;
};

// Runs all blocks of a launch to their end. cudaGetLastError returns its result once more.
cudaError_t execute(const Launch &launch);
cudaError_t last_error();
cudaError_t set_last_error(cudaError_t error); // returns it
// The return value of a call: an error becomes the last error; a success does not change it.
inline cudaError_t success_if(bool good, cudaError_t error) { return good ? cudaSuccess : set_last_error(error); }

// Ends the process with the fault of a block, as JSON, when no block before it runs any more; where blocks run
// backwards, at the end of the launch.
void report_fault_of_block(uint64_t block, const std::string &fault);

template <class Call> Description description_of(const Call &call) {
    Description description;
    describing = &description;
    call();
    describing = nullptr;
    return description;
}

// Notes in the launch records that the program asked for an elapsed time, and got the host's time.
void note_host_time();

// Ends the process because of a pointer argument that a kernel could not dereference on a GPU.
[[noreturn]] void report_host_argument(const Description &kernel, int number);
bool is_host_memory(const void *address);

template <class T> void check_argument(const Description &kernel, int number, const T &argument) {
    if constexpr (std::is_pointer_v<T>) {
        if (__builtin_expect(is_host_memory(reinterpret_cast<const void *>(argument)), 0)) {
            report_host_argument(kernel, number);
        }
    }
}

template <class Kernel> struct Configured {
    Kernel kernel;
    dim3 grid;
    dim3 block;
    size_t shared;
    Queued queued;

    // By value, because a launch copies its arguments, and every thread has its own copy.
    template <class... Arguments> cudaError_t operator()(Arguments... arguments) const {
        const auto call = [kernel = kernel, arguments...]() SIMT_UNCHECKED { kernel(arguments...); };
        using Call = decltype(call);
        const Description description = description_of(call);
        int number = 0;
        (check_argument(description, ++number, arguments), ...);
        return execute({grid, block, shared, description, queued,
                        [](const void *it) { (*static_cast<const Call *>(it))(); }, &call, sizeof(call)});
    }
};

// `kernel<<<grid, block, shared, stream>>>(arguments)`.
template <class Kernel>
Configured<Kernel> launch_kernel(Kernel kernel, dim3 grid, dim3 block, size_t shared = 0,
                                 cudaStream_t stream = nullptr) {
    return {kernel, grid, block, shared, {stream}};
}

template <class... Parameters> Description description_of_kernel(void (*kernel)(Parameters...)) {
    return description_of([=] { kernel(std::decay_t<Parameters>{}...); });
}

// Whether a launch asks for programmatic dependent launch, and the GPU has it.
bool is_programmatic(const cudaLaunchConfig_t &config);

cudaError_t occupancy_of(int *blocks, const Description &kernel, int threads, size_t shared);
cudaError_t attributes_of(cudaFuncAttributes *attributes, const Description &kernel);

template <class... Parameters>
cudaError_t occupancy(int *blocks, void (*kernel)(Parameters...), int threads, size_t shared) {
    return occupancy_of(blocks, description_of_kernel(kernel), threads, shared);
}

// For an untyped pointer, only the device's attributes are set (upstream reads ptxVersion).
inline cudaError_t function_attributes(cudaFuncAttributes *attributes, const void *) {
    return attributes_of(attributes, {});
}
template <class... Parameters>
cudaError_t function_attributes(cudaFuncAttributes *attributes, void (*kernel)(Parameters...)) {
    return attributes_of(attributes, description_of_kernel(kernel));
}

cudaError_t set_attribute_of(const Description &kernel, cudaFuncAttribute attribute, int value);
inline cudaError_t set_function_attribute(const void *, cudaFuncAttribute attribute, int value) {
    return set_attribute_of({}, attribute, value);
}
template <class... Parameters>
cudaError_t set_function_attribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
    return set_attribute_of(description_of_kernel(kernel), attribute, value);
}

} // namespace simt
