#include "device_limits.h"

#include "device.h"
#include "environment.h"
#include "finding.h"
#include "host_memory.h"

#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>

namespace simt {
namespace {

std::mutex mutex;

// By signature, whose address identifies the kernel; "" for a kernel named by an untyped pointer.
std::map<const char *, size_t> &raised_limits() {
    static std::map<const char *, size_t> once;
    return once;
}

bool fits(dim3 size, const int (&limits)[3]) {
    const unsigned sizes[3] = {size.x, size.y, size.z};
    for (int i = 0; i < 3; i++) {
        if (sizes[i] == 0 || sizes[i] > static_cast<unsigned>(limits[i])) {
            return false;
        }
    }
    return true;
}

std::string limited(const int (&limits)[3]) {
    return ", where the GPU allows 1x1x1 to " + text_of(dim3(limits[0], limits[1], limits[2]), "x");
}

} // namespace

DynamicLimit dynamic_limit(const Description &kernel) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (const char *name : {kernel.signature, Description{}.signature}) {
        const auto found = raised_limits().find(name);
        if (found != raised_limits().end()) {
            return {found->second, true};
        }
    }
    return {device_properties().sharedMemPerBlock, false};
}

cudaError_t set_attribute_of(const Description &kernel, cudaFuncAttribute attribute, int value) {
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) { // a hint, in percent; -1: the driver's choice
        return value >= -1 && value <= 100 ? cudaSuccess : set_last_error(cudaErrorInvalidValue);
    }
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) { // clusters are not simulated
        const bool exists =
            attribute >= cudaFuncAttributeMaxDynamicSharedMemorySize && attribute < cudaFuncAttributeMax;
        return exists ? cudaSuccess : set_last_error(cudaErrorInvalidValue);
    }
    if (value < 0 || static_cast<size_t>(value) > device_properties().sharedMemPerBlockOptin) {
        if (!environment().program) { // for the message about ggml's abort, which does not have these numbers
            fprintf(stderr, "fattn-probe: refused: %d bytes of dynamic %s, where the GPU allows %zu\n", value,
                    environment().gfx.empty() ? "shared memory" : "LDS", device_properties().sharedMemPerBlockOptin);
        }
        return set_last_error(cudaErrorInvalidValue);
    }
    const std::lock_guard<std::mutex> lock(mutex);
    raised_limits()[kernel.signature] = static_cast<size_t>(value);
    return cudaSuccess;
}

Refusal check_limits(const Launch &launch) {
    const cudaDeviceProp &device = device_properties();
    const dim3 grid = launch.grid, block = launch.block;
    const uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;
    const auto bound = static_cast<uint64_t>(launch.kernel.launch_bounds.threads);
    const auto most = static_cast<uint64_t>(device.maxThreadsPerBlock);
    const DynamicLimit dynamic = dynamic_limit(launch.kernel);
    if (!fits(grid, device.maxGridSize)) {
        return {cudaErrorInvalidValue, "a grid of " + text_of(grid, "x") + " blocks" + limited(device.maxGridSize)};
    }
    if (threads > most || (bound != 0 && threads > bound)) {
        const bool by_bound = bound != 0 && bound < most;
        return {cudaErrorInvalidValue, "a block of " + std::to_string(threads) + " threads, where " +
                                           (by_bound ? "__launch_bounds__ allows " : "the GPU allows ") +
                                           std::to_string(by_bound ? bound : most)};
    }
    if (!fits(block, device.maxThreadsDim)) {
        return {cudaErrorInvalidValue,
                "a block of " + text_of(block, "x") + " threads" + limited(device.maxThreadsDim)};
    }
    if (launch.shared > dynamic.bytes) {
        const char *const allowed =
            dynamic.raised ? "cudaFuncSetAttribute allows " : "a kernel without cudaFuncSetAttribute may have ";
        return {cudaErrorInvalidValue, std::to_string(launch.shared) + " bytes of dynamic shared memory, where " +
                                           allowed + std::to_string(dynamic.bytes)};
    }
    cudaFuncAttributes attributes;
    attributes_of(&attributes, launch.kernel);
    if (threads > static_cast<uint64_t>(attributes.maxThreadsPerBlock)) {
        return {cudaErrorLaunchOutOfResources, "a block of " + std::to_string(threads) + " threads with " +
                                                   std::to_string(attributes.numRegs) +
                                                   " registers each needs more than a multiprocessor has"};
    }
    return {};
}

void check_static_shared(const Launch &launch, size_t bytes) {
    const cudaDeviceProp &device = device_properties();
    const DynamicLimit limit = dynamic_limit(launch.kernel);
    char text[300];
    if (bytes > device.sharedMemPerBlock) {
        const char *const refusal =
            environment().gfx.empty()
                ? "the kernel uses too much shared data (at least 0x%zx bytes, 0x%zx max): ptxas refuses to compile it"
                : "local memory (at least %zu) exceeds limit (%zu): clang refuses to compile the kernel";
        snprintf(text, sizeof(text), refusal, bytes, device.sharedMemPerBlock);
    } else if (limit.raised && bytes + limit.bytes > device.sharedMemPerBlockOptin) {
        snprintf(text, sizeof(text),
                 "%zu bytes of static shared memory and the %zu dynamic ones that cudaFuncSetAttribute asks for are "
                 "more than the GPU's %zu: the call returns cudaErrorInvalidValue",
                 bytes, limit.bytes, device.sharedMemPerBlockOptin);
    } else if (!limit.raised && bytes + launch.shared > limit.bytes) {
        snprintf(text, sizeof(text),
                 "%zu bytes of static and %zu of dynamic shared memory are more than the %zu that a launch may have "
                 "without cudaFuncSetAttribute: it returns cudaErrorInvalidValue",
                 bytes, launch.shared, limit.bytes);
    } else {
        return;
    }
    report({"shared-memory", text});
}

void report_host_argument(const Description &kernel, int number) {
    Finding finding = {"host-memory",
                       "argument " + std::to_string(number) + " of " + kernel_name(kernel.signature).name +
                           " points into host memory, which this GPU cannot access (cudaErrorIllegalAddress)"};
    finding.kernel = kernel.signature;
    report(finding);
}

} // namespace simt
