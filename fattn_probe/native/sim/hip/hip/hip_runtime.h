// HIP's runtime, mapped to CUDA's: for the simulated GPU, and for nvcc on a real NVIDIA GPU.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#if defined(SIMT_ARCH)
#include "program/arithmetic.h"
#include "program/warp_functions.h"
#endif

#define HIP_VERSION 70000000 // of ROCm 7.0

// HIP's name for an error, from CUDA's name.
inline const char *hip_error_name(cudaError_t error) {
    if (error == cudaErrorMemoryAllocation) {
        return "hipErrorOutOfMemory";
    }
    static thread_local std::map<cudaError_t, std::string> names;
    return names.emplace(error, std::string("hip") + (cudaGetErrorName(error) + strlen("cuda"))).first->second.c_str();
}

#define hipMalloc cudaMalloc
#define hipFree cudaFree
#define hipMallocManaged cudaMallocManaged
#define hipMallocPitch cudaMallocPitch
#define hipMallocAsync cudaMallocAsync
#define hipFreeAsync cudaFreeAsync
#define hipHostFree cudaFreeHost
#define hipHostRegister cudaHostRegister
#define hipHostUnregister cudaHostUnregister
#define hipHostGetDevicePointer cudaHostGetDevicePointer
#define hipMemGetInfo cudaMemGetInfo
#define hipMemset cudaMemset
#define hipMemsetAsync cudaMemsetAsync
#define hipMemset2D cudaMemset2D
#define hipMemcpy cudaMemcpy
#define hipMemcpyAsync cudaMemcpyAsync
#define hipMemcpy2D cudaMemcpy2D
#define hipMemcpy2DAsync cudaMemcpy2DAsync
#define hipMemcpyToSymbol cudaMemcpyToSymbol
#define hipMemcpyFromSymbol cudaMemcpyFromSymbol
#define hipMemcpyToSymbolAsync cudaMemcpyToSymbolAsync
#define hipMemcpyFromSymbolAsync cudaMemcpyFromSymbolAsync
#define hipGetSymbolAddress cudaGetSymbolAddress
#define hipGetSymbolSize cudaGetSymbolSize
#define hipMemcpyKind cudaMemcpyKind
#define hipMemcpyHostToHost cudaMemcpyHostToHost
#define hipMemcpyHostToDevice cudaMemcpyHostToDevice
#define hipMemcpyDeviceToHost cudaMemcpyDeviceToHost
#define hipMemcpyDeviceToDevice cudaMemcpyDeviceToDevice
#define hipMemcpyDefault cudaMemcpyDefault
#define hipError_t cudaError_t
#define hipSuccess cudaSuccess
#define hipErrorInvalidValue cudaErrorInvalidValue
#define hipErrorOutOfMemory cudaErrorMemoryAllocation
#define hipErrorNotReady cudaErrorNotReady
#define hipErrorInvalidDevice cudaErrorInvalidDevice
#define hipGetLastError cudaGetLastError
#define hipPeekAtLastError cudaPeekAtLastError
#define hipGetErrorString cudaGetErrorString
#define hipGetErrorName hip_error_name
#define hipGetDeviceCount cudaGetDeviceCount
#define hipGetDevice cudaGetDevice
#define hipSetDevice cudaSetDevice
#define hipDeviceSynchronize cudaDeviceSynchronize
#define hipDeviceReset cudaDeviceReset
#define hipDeviceGetAttribute cudaDeviceGetAttribute
#define hipDeviceAttribute_t cudaDeviceAttr
#define hipDeviceAttributeMultiprocessorCount cudaDevAttrMultiProcessorCount
#define hipDeviceAttributeWarpSize cudaDevAttrWarpSize
#define hipDeviceAttributeMaxThreadsPerBlock cudaDevAttrMaxThreadsPerBlock
#define hipDeviceAttributeMaxSharedMemoryPerBlock cudaDevAttrMaxSharedMemoryPerBlock
#define hipDeviceAttributeClockRate cudaDevAttrClockRate
#define hipRuntimeGetVersion cudaRuntimeGetVersion
#define hipDriverGetVersion cudaDriverGetVersion
#define hipStream_t cudaStream_t
#define hipStreamDefault cudaStreamDefault
#define hipStreamNonBlocking cudaStreamNonBlocking
#define hipStreamCreate cudaStreamCreate
#define hipStreamCreateWithFlags cudaStreamCreateWithFlags
#define hipStreamDestroy cudaStreamDestroy
#define hipStreamSynchronize cudaStreamSynchronize
#define hipStreamQuery cudaStreamQuery
#define hipStreamWaitEvent cudaStreamWaitEvent
#define hipLaunchHostFunc cudaLaunchHostFunc
#define hipEvent_t cudaEvent_t
#define hipEventDefault cudaEventDefault
#define hipEventDisableTiming cudaEventDisableTiming
#define hipEventCreate cudaEventCreate
#define hipEventCreateWithFlags cudaEventCreateWithFlags
#define hipEventDestroy cudaEventDestroy
#define hipEventRecord cudaEventRecord
#define hipEventSynchronize cudaEventSynchronize
#define hipEventQuery cudaEventQuery
#define hipEventElapsedTime cudaEventElapsedTime
#define hipFuncAttributes cudaFuncAttributes
#define hipFuncAttributeMaxDynamicSharedMemorySize cudaFuncAttributeMaxDynamicSharedMemorySize
#define hipOccupancyMaxPotentialBlockSize cudaOccupancyMaxPotentialBlockSize
#define hipHostMallocDefault cudaHostAllocDefault
#define hipHostMallocMapped cudaHostAllocMapped
#define hipHostMallocPortable cudaHostAllocPortable
#define hipLaunchKernel cudaLaunchKernel
#define hipFuncCache_t cudaFuncCache
#define hipFuncSetCacheConfig cudaFuncSetCacheConfig
#define hipErrorUnknown cudaErrorUnknown
#define hipErrorInvalidConfiguration cudaErrorInvalidConfiguration
#define hipErrorLaunchFailure cudaErrorLaunchFailure
#define hipErrorNoDevice cudaErrorNoDevice
#define hipHostFn_t cudaHostFn_t
#define hipEventBlockingSync cudaEventBlockingSync
#define hipStreamCreateWithPriority cudaStreamCreateWithPriority
#define hipDeviceGetStreamPriorityRange cudaDeviceGetStreamPriorityRange
#define hipStreamAddCallback cudaStreamAddCallback
#define hipHostAlloc cudaHostAlloc
#define hipMemAttachGlobal cudaMemAttachGlobal
#define hipHostRegisterDefault cudaHostRegisterDefault
#define hipHostMallocWriteCombined cudaHostAllocWriteCombined
#define hipDeviceAttributeMaxSharedMemoryPerMultiprocessor cudaDevAttrMaxSharedMemoryPerMultiprocessor
#define hipDeviceAttributeComputeCapabilityMajor cudaDevAttrComputeCapabilityMajor
#define hipDeviceAttributeComputeCapabilityMinor cudaDevAttrComputeCapabilityMinor
#define hipDeviceAttributeMaxBlockDimX cudaDevAttrMaxBlockDimX
#define hipDeviceSetLimit cudaDeviceSetLimit
#define hipDeviceGetLimit cudaDeviceGetLimit
#define hipDeviceGetPCIBusId cudaDeviceGetPCIBusId
#define hipDeviceCanAccessPeer cudaDeviceCanAccessPeer
#define hipMemcpyPeerAsync cudaMemcpyPeerAsync
#define hipDeviceEnablePeerAccess cudaDeviceEnablePeerAccess
#define hipDeviceDisablePeerAccess cudaDeviceDisablePeerAccess
#define hipErrorPeerAccessAlreadyEnabled cudaErrorPeerAccessAlreadyEnabled
#define hipErrorPeerAccessNotEnabled cudaErrorPeerAccessNotEnabled
#define hipErrorNotSupported cudaErrorNotSupported
#define hipErrorInvalidDeviceFunction cudaErrorInvalidDeviceFunction
#define hipStreamPerThread cudaStreamPerThread
#define hipStreamCaptureModeRelaxed cudaStreamCaptureModeRelaxed
#define hipStreamBeginCapture cudaStreamBeginCapture
#define hipStreamEndCapture cudaStreamEndCapture
#define hipGraph_t cudaGraph_t
#define hipGraphExec_t cudaGraphExec_t
#define hipGraphDestroy cudaGraphDestroy
#define hipGraphExecDestroy cudaGraphExecDestroy
#define hipGraphInstantiate cudaGraphInstantiate
#define hipGraphLaunch cudaGraphLaunch
#define hipGraphExecUpdate cudaGraphExecUpdate
#define hipErrorGraphExecUpdateFailure cudaErrorGraphExecUpdateFailure
#define hipHostRegisterPortable cudaHostRegisterPortable
#define hipHostRegisterReadOnly cudaHostRegisterReadOnly
#define hipDeviceAttributeCooperativeLaunch cudaDevAttrCooperativeLaunch
#define hipLaunchCooperativeKernel cudaLaunchCooperativeKernel

// The figures of a device, with the name of its architecture: "gfx942", or "sm_90".
struct hipDeviceProp_t : cudaDeviceProp {
    char gcnArchName[256];
    int clockRate;
};
inline hipError_t hipGetDeviceProperties(hipDeviceProp_t *properties, int device) {
    const hipError_t error = cudaGetDeviceProperties(properties, device);
    if (error != hipSuccess) {
        return error;
    }
    cudaDeviceGetAttribute(&properties->clockRate, cudaDevAttrClockRate, device);
#if defined(SIMT_GFX)
    snprintf(properties->gcnArchName, sizeof(properties->gcnArchName), "%s", SIMT_GFX);
#else
    snprintf(properties->gcnArchName, sizeof(properties->gcnArchName), "sm_%d%d", properties->major, properties->minor);
#endif
    return error;
}

// A hint about caches.
enum hipMemoryAdvise { hipMemAdviseSetCoarseGrain = 100 };
inline hipError_t hipMemAdvise(const void *, size_t, hipMemoryAdvise, int) { return cudaSuccess; }

template <class T> hipError_t hipHostMalloc(T **pointer, size_t bytes, unsigned flags = 0) {
    return cudaHostAlloc(reinterpret_cast<void **>(pointer), bytes, flags);
}

#define hipThreadIdx_x threadIdx.x
#define hipThreadIdx_y threadIdx.y
#define hipThreadIdx_z threadIdx.z
#define hipBlockIdx_x blockIdx.x
#define hipBlockIdx_y blockIdx.y
#define hipBlockIdx_z blockIdx.z
#define hipBlockDim_x blockDim.x
#define hipBlockDim_y blockDim.y
#define hipBlockDim_z blockDim.z
#define hipGridDim_x gridDim.x
#define hipGridDim_y gridDim.y
#define hipGridDim_z gridDim.z

#define HIP_KERNEL_NAME(...) __VA_ARGS__
#define HIP_SYMBOL(variable) variable
#if defined(SIMT_ARCH)
#define hipFuncGetAttributes simt::function_attributes
#define hipFuncSetAttribute simt::set_function_attribute
#define hipOccupancyMaxActiveBlocksPerMultiprocessor simt::occupancy
inline unsigned __lane_id() { return simt::self->lane; }
inline long long wall_clock64() { return simt::ticks(); }
template <class T> inline T unsafeAtomicAdd(T *address, T value) { return atomicAdd(address, value); }
#define HIP_DYNAMIC_SHARED(type, variable) type *const variable = simt::dynamic_shared<type>();
#define hipLaunchKernelGGL(kernel, grid, block, shared, stream, ...)                                                   \
    simt::launch_kernel([=](auto... simt_a) { kernel(SIMT_ARGUMENT(simt_a)...); }, grid, block, shared,                \
                        stream)(__VA_ARGS__)
#else
#define hipFuncGetAttributes cudaFuncGetAttributes
#define hipFuncSetAttribute cudaFuncSetAttribute
#define hipOccupancyMaxActiveBlocksPerMultiprocessor cudaOccupancyMaxActiveBlocksPerMultiprocessor
__device__ inline unsigned __lane_id() {
    unsigned lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
// CUDA has these only for Pascal and older.
#define __shfl(...) __shfl_sync(__activemask(), __VA_ARGS__)
#define __shfl_up(...) __shfl_up_sync(__activemask(), __VA_ARGS__)
#define __shfl_down(...) __shfl_down_sync(__activemask(), __VA_ARGS__)
#define __shfl_xor(...) __shfl_xor_sync(__activemask(), __VA_ARGS__)
#define __ballot(predicate) __ballot_sync(__activemask(), predicate)
#define __any(predicate) __any_sync(__activemask(), predicate)
#define __all(predicate) __all_sync(__activemask(), predicate)
#define HIP_DYNAMIC_SHARED(type, variable) extern __shared__ type variable[];
#define hipLaunchKernelGGL(kernel, grid, block, shared, stream, ...)                                                   \
    kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#endif
