// Included before the first line of a whole program (host code and kernels in one file): prelude.h, and the functions
// that programs use but llama.cpp's kernels do not.
//
// g++ compiles host code and kernels in one pass, so __CUDA_ARCH__ is also defined in host code.
#pragma once

#include "../prelude.h"

#include <math.h> // nvcc has its names in the global namespace: ::isnan

#include "../symbols.h"
#include "arithmetic.h"
#include "atomics.h"
#include "half_functions.h"
#include "host_api.h"
#include "kernel_heap.h"
#include "launch_as.h"
#include "printing.h"
#include "warp_functions.h"

inline constexpr int warpSize = simt::warp_size;

#define __brkpt() __trap()

#if defined(SIMT_CHECK) // guards that follow the first variables if g++ reverses their order
SIMT_GUARD_MEMORY(, behind_all)
SIMT_GUARD_MEMORY(static, behind_static)
SIMT_INITIALISED_GUARD_MEMORY(, behind_all)
SIMT_INITIALISED_GUARD_MEMORY(static, behind_static)
#endif

#undef __managed__
#define __managed__
#undef __cluster_dims__
#if !defined(SIMT_HIP)
#define __CUDACC__
#define __NVCC__
#define __CUDACC_VER_MAJOR__ (CUDART_VERSION / 1000)
#define __CUDACC_VER_MINOR__ (CUDART_VERSION % 1000 / 10)
#endif
