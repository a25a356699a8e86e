// Records and times the kernel launches of a real CUDA build, by interposing libcudart's functions.
//
// Link it into an executable that exports its symbols (-rdynamic, or --export-dynamic) and uses the shared libcudart:
// the dynamic linker then finds these functions first, for libggml-cuda too. Each of them forwards to the next
// definition of its name. Each launch appends one line of JSON to the file that FATTN_PROBE_LAUNCHES names; with
// FATTN_PROBE_DRY=1, no kernel runs. nvcc compiles `kernel<<<...>>>(...)` to __cudaGetKernel and __cudaLaunchKernel
// (CUDA 13) or to cudaLaunchKernel (earlier); cudaLaunchKernelEx calls cudaLaunchKernelExC.
//
// Compiled by the host compiler with CUDA's headers, linked with -lcudart -ldl.

#include "../models/json.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>

namespace {

// The registered kernels. Constructed on first use, because libggml-cuda registers its kernels before main() and before
// this file's static objects exist. Never destroyed, because kernels may be launched after main().
struct Registry {
    std::mutex mutex;
    std::map<const void *, std::string> names;           // host function -> mangled device name
    std::map<cudaKernel_t, const void *> host_functions; // handle of __cudaGetKernel -> host function
    int order = 0;
};

Registry &registry() {
    static Registry &instance = *new Registry;
    return instance;
}

template <typename Function> Function *next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == nullptr) {
        std::fprintf(stderr, "fattn-probe: libcudart has no %s: is it linked as a shared library?\n", name);
        std::abort();
    }
    return reinterpret_cast<Function *>(found);
}

FILE *launches() {
    static FILE *file = [] {
        const char *path = std::getenv("FATTN_PROBE_LAUNCHES");
        FILE *opened = path != nullptr ? std::fopen(path, "a") : nullptr;
        if (path != nullptr && opened == nullptr) {
            std::fprintf(stderr, "fattn-probe: cannot append to %s\n", path);
        }
        return opened;
    }();
    return file;
}

std::string demangled(const std::string &name) {
    int status = 0;
    char *text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
    const std::string result = text != nullptr ? text : name;
    std::free(text);
    return result;
}

// The driver's figures for a kernel; empty if the driver has none, for example without code for this GPU. ggml checks
// the last error after its launches, so a failure here must not set that error, and must keep an earlier one.
std::string resources(const void *function, dim3 block, size_t shared) {
    if (cudaPeekAtLastError() != cudaSuccess) {
        return "";
    }
    cudaFuncAttributes attributes = {};
    int blocks = 0;
    const int threads = int(block.x * block.y * block.z);
    std::string text;
    if (cudaFuncGetAttributes(&attributes, function) == cudaSuccess) {
        text += ",\"regs\":" + std::to_string(attributes.numRegs) +
                ",\"static_shared\":" + std::to_string(attributes.sharedSizeBytes);
    }
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, shared) == cudaSuccess) {
        text += ",\"max_blocks_per_sm\":" + std::to_string(blocks);
    }
    (void)cudaGetLastError();
    return text.empty() ? text : text + ",\"origin\":\"measured\"";
}

void record(const void *function, dim3 grid, dim3 block, size_t shared) {
    FILE *file = launches();
    if (file == nullptr) {
        return;
    }
    const std::string numbers = resources(function, block, shared);
    Registry &known = registry();
    const std::lock_guard<std::mutex> lock(known.mutex);
    const auto name = known.names.find(function);
    const std::string kernel = name != known.names.end() ? demangled(name->second) : "?";
    std::fprintf(file, "{\"order\":%d,\"kernel\":%s,\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"shared\":%zu%s}\n",
                 known.order++, json::text(kernel).c_str(), grid.x, grid.y, grid.z, block.x, block.y, block.z, shared,
                 numbers.c_str());
    std::fflush(file);
}

// Measures, with events, the time from the first to the last work that ggml puts on a stream while the timer is armed.
// Work captured into a CUDA graph is timed when the graph is launched.
struct GpuTimer {
    bool armed = false;
    bool seen = false;
    cudaEvent_t start = nullptr;
    cudaEvent_t stop = nullptr;

    static bool capturing(cudaStream_t stream) {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        return cudaStreamIsCapturing(stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone;
    }

    template <typename Launch> cudaError_t around(cudaStream_t stream, const Launch &launch) {
        static const char *dry = std::getenv("FATTN_PROBE_DRY");
        if (dry != nullptr && *dry == '1') {
            return cudaSuccess;
        }
        if (!armed || capturing(stream)) {
            return launch();
        }
        if (!seen) {
            seen = cudaEventRecord(start, stream) == cudaSuccess;
        }
        const cudaError_t error = launch();
        if (error == cudaSuccess) {
            (void)cudaEventRecord(stop, stream);
        }
        return error;
    }
};

GpuTimer &gpu_timer() {
    static GpuTimer &instance = *new GpuTimer;
    return instance;
}

const void *host_function(cudaKernel_t kernel) {
    Registry &known = registry();
    const std::lock_guard<std::mutex> lock(known.mutex);
    const auto found = known.host_functions.find(kernel);
    return found != known.host_functions.end() ? found->second : reinterpret_cast<const void *>(kernel);
}

} // namespace

extern "C" {

void __cudaRegisterFunction(void **fat_cubin, const char *host_function, char *device_function, const char *device_name,
                            int thread_limit, uint3 *tid, uint3 *bid, dim3 *block_dim, dim3 *grid_dim, int *warp_size) {
    static const auto forward = next<decltype(__cudaRegisterFunction)>("__cudaRegisterFunction");
    {
        const std::lock_guard<std::mutex> lock(registry().mutex);
        registry().names[host_function] = device_name;
    }
    forward(fat_cubin, host_function, device_function, device_name, thread_limit, tid, bid, block_dim, grid_dim,
            warp_size);
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    static const auto forward = next<decltype(__cudaGetKernel)>("__cudaGetKernel");
    const cudaError_t error = forward(kernel, function);
    if (error == cudaSuccess) {
        const std::lock_guard<std::mutex> lock(registry().mutex);
        registry().host_functions[*kernel] = function;
    }
    return error;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                               cudaStream_t stream) {
    static const auto forward = next<decltype(__cudaLaunchKernel)>("__cudaLaunchKernel");
    record(host_function(kernel), grid, block, shared);
    return gpu_timer().around(stream, [&] { return forward(kernel, grid, block, args, shared, stream); });
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream) {
    static const auto forward = next<decltype(cudaLaunchKernel)>("cudaLaunchKernel");
    record(function, grid, block, shared);
    return gpu_timer().around(stream, [&] { return forward(function, grid, block, args, shared, stream); });
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **args) {
    static const auto forward = next<decltype(cudaLaunchKernelExC)>("cudaLaunchKernelExC");
    record(function, config->gridDim, config->blockDim, config->dynamicSmemBytes);
    return gpu_timer().around(config->stream, [&] { return forward(config, function, args); });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    static const auto forward = next<decltype(cudaGraphLaunch)>("cudaGraphLaunch");
    return gpu_timer().around(stream, [&] { return forward(graph, stream); });
}

// The runner's clock (native/runner/timer.h).
void fattn_probe_gpu_timer_start() {
    GpuTimer &timer = gpu_timer();
    timer.seen = false;
    timer.armed = timer.start != nullptr ||
                  (cudaEventCreate(&timer.start) == cudaSuccess && cudaEventCreate(&timer.stop) == cudaSuccess);
}

double fattn_probe_gpu_timer_stop() {
    GpuTimer &timer = gpu_timer();
    timer.armed = false;
    float milliseconds = 0.0f;
    const bool told = timer.seen && cudaEventSynchronize(timer.stop) == cudaSuccess &&
                      cudaEventElapsedTime(&milliseconds, timer.start, timer.stop) == cudaSuccess;
    return told ? milliseconds / 1e3 : -1.0;
}
}
