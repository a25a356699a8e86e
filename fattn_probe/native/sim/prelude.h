// Included before the first line of every CUDA source that is compiled as C++ for the simulated GPU.
//
// It reads CUDA's own headers in host mode first. After that, CUDA's keywords are empty macros, the device's builtins
// are functions of namespace simt, and __CUDA_ARCH__ has the value for the simulated device, so that the sources choose
// that device's code path.
#pragma once

// The C++ library's headers that ggml's headers include come first, because they use names that are macros below. Each
// adds to the compile time of every kernel: <regex> 0.6 s, the whole of <immintrin.h> 0.7 s (see half_bits.h).
#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __noinline__
#undef __shared__
#undef __constant__
#undef __managed__
#undef __grid_constant__
#undef __launch_bounds__
#undef __align__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __CUDA_ARCH__ SIMT_ARCH

#if defined(SIMT_CHECK) || defined(SIMT_COUNT)
#define SIMT_UNCHECKED __attribute__((no_sanitize("thread", "alignment", "signed-integer-overflow")))
#define SIMT_PART __attribute__((always_inline))
#endif

#include "atomics.h"
#include "conversion.h"
#include "division.h"
#include "intrinsics.h"
#include "launch.h"
#include "launch_ex.h"
#include "mathematics.h"
#include "ptx.h"
#include "ptx_more.h"
#include "thread.h"
#include "whole.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
// threadIdx belongs to the running fiber; the other three are variables of simt, since `gridDim` and `blockDim` are
// also members of cudaLaunchConfig_t.
#if defined(SIMT_CHECK) || defined(SIMT_COUNT)
namespace simt {
// A copy: it does not change while the thread runs, and the checker need not see it.
__attribute__((const)) SIMT_UNCHECKED inline uint3 thread_idx() { return self->thread_idx; }
} // namespace simt
#define threadIdx (simt::thread_idx())
#else
#define threadIdx (simt::self->thread_idx)
#endif
using simt::blockDim;
using simt::blockIdx;
using simt::gridDim;

#undef __syncthreads
#define __syncthreads() simt::sync_block(__FILE__, __LINE__)
#define fmaxf simt::fmaxf
#define fminf simt::fminf
#define __trap() simt::trap()
#define __builtin_assume(condition)
#define cudaLaunchKernelEx simt::launch_kernel_ex
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor simt::occupancy
#define cudaFuncGetAttributes simt::function_attributes
#define cudaFuncSetAttribute simt::set_function_attribute

#if defined(SIMT_HIP) // the macros of hipcc
#undef __CUDA_ARCH__
#define __HIPCC__ 1
#define __HIP__ 1
#define __HIP_DEVICE_COMPILE__ 1
#define __AMDGCN_WAVEFRONT_SIZE SIMT_WARP
#if defined(SIMT_GFX)
#define __HIP_PLATFORM_AMD__ 1
#if defined(__ARM_NEON) // included here because it uses two types that are macros from here on
#include <arm_neon.h>
#endif
#define _Float16 __half
#define __bf16 __nv_bfloat16
#include "amd/intrinsics.h"
#include "amd/matrix.h"
#include "amd/vector.h"
#else
#define __HIP_PLATFORM_NVIDIA__ 1
#endif
#endif

// Programmatic dependent launch: kernels of a stream run one after another here, so this matters only to the checker.
#define cudaGridDependencySynchronize() simt::wait_for_kernels()
#define cudaTriggerProgrammaticLaunchCompletion() simt::trigger_dependents()
