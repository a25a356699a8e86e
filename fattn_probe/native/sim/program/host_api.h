// Functions of the CUDA runtime that take a kernel or a variable by its name, in a whole program.
#pragma once

#include "../launch.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace simt {

template <class... Parameters, size_t... indices>
cudaError_t launch_unpacked(void (*kernel)(Parameters...), dim3 grid, dim3 block, void **arguments, size_t shared,
                            cudaStream_t stream, std::index_sequence<indices...>) {
    return launch_kernel(kernel, grid, block, shared,
                         stream)(*static_cast<std::decay_t<Parameters> *>(arguments[indices])...);
}

// cudaLaunchKernel: `arguments` points to each argument.
template <class... Parameters>
cudaError_t launch_by_name(void (*kernel)(Parameters...), dim3 grid, dim3 block, void **arguments, size_t shared = 0,
                           cudaStream_t stream = nullptr) {
    return launch_unpacked(kernel, grid, block, arguments, shared, stream, std::index_sequence_for<Parameters...>());
}

// cudaOccupancyMaxPotentialBlockSize: the block of whole warps that puts the most threads on an SM; the largest such
// block. The registers of a program's kernels are not known here, so a GPU's answer may be smaller.
template <class... Parameters>
cudaError_t best_block_size(int *blocks, int *block_size, void (*kernel)(Parameters...), size_t shared = 0,
                            int limit = 0) {
    if (blocks == nullptr || block_size == nullptr) {
        return set_last_error(cudaErrorInvalidValue);
    }
    cudaFuncAttributes attributes;
    function_attributes(&attributes, kernel);
    int device = 0, processors = 0, best = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    const int most = limit > 0 ? std::min(limit, attributes.maxThreadsPerBlock) : attributes.maxThreadsPerBlock;
    for (int threads = most / 32 * 32; threads > 0; threads -= 32) {
        int resident = 0;
        occupancy(&resident, kernel, threads, shared);
        if (resident * threads > best) {
            best = resident * threads;
            *block_size = threads;
            *blocks = resident * processors;
        }
    }
    return cudaSuccess;
}

// A symbol is the variable itself.
template <class T> char *memory_of(T &symbol) {
    return static_cast<char *>(const_cast<void *>(static_cast<const void *>(&symbol)));
}
// The driver's error for a copy to or from a variable, or cudaSuccess.
template <class T> cudaError_t check_symbol(const T &, size_t bytes, size_t offset, bool direction) {
    const bool within = bytes == 0 || (offset <= sizeof(T) && bytes <= sizeof(T) - offset);
    return !direction ? cudaErrorInvalidMemcpyDirection : within ? cudaSuccess : cudaErrorInvalidValue;
}
template <class T>
cudaError_t to_symbol(T &symbol, const void *from, size_t bytes, size_t offset = 0,
                      cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t = nullptr) {
    const cudaError_t refused = check_symbol(symbol, bytes, offset, kind != cudaMemcpyDeviceToHost);
    return refused != cudaSuccess ? set_last_error(refused) : cudaMemcpy(memory_of(symbol) + offset, from, bytes, kind);
}
template <class T>
cudaError_t from_symbol(void *to, const T &symbol, size_t bytes, size_t offset = 0,
                        cudaMemcpyKind kind = cudaMemcpyDeviceToHost, cudaStream_t = nullptr) {
    const cudaError_t refused = check_symbol(symbol, bytes, offset, kind != cudaMemcpyHostToDevice);
    return refused != cudaSuccess ? set_last_error(refused) : cudaMemcpy(to, memory_of(symbol) + offset, bytes, kind);
}
template <class P, class T> cudaError_t symbol_address(P **address, T &symbol) {
    if (address == nullptr) {
        return set_last_error(cudaErrorInvalidValue);
    }
    *address = reinterpret_cast<P *>(memory_of(symbol));
    return cudaSuccess;
}
template <class T> cudaError_t symbol_size(size_t *bytes, const T &) {
    if (bytes == nullptr) {
        return set_last_error(cudaErrorInvalidValue);
    }
    *bytes = sizeof(T);
    return cudaSuccess;
}
template <class Kernel, class Configuration> cudaError_t set_cache_configuration(Kernel, Configuration) {
    return cudaSuccess;
}

} // namespace simt

#define cudaLaunchKernel simt::launch_by_name
#define cudaOccupancyMaxPotentialBlockSize simt::best_block_size
#define cudaMemcpyToSymbol simt::to_symbol
#define cudaMemcpyFromSymbol simt::from_symbol
#define cudaMemcpyToSymbolAsync simt::to_symbol
#define cudaMemcpyFromSymbolAsync simt::from_symbol
#define cudaGetSymbolAddress simt::symbol_address
#define cudaGetSymbolSize simt::symbol_size
#define cudaFuncSetCacheConfig simt::set_cache_configuration
