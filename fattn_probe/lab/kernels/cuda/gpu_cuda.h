// The parts of CUDA that these kernels use.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// The value of the lane whose number differs from this lane's number in the bits of `bits`.
__device__ inline float shuffle_xor(float x, int bits) { return __shfl_xor_sync(0xffffffffu, x, bits); }
