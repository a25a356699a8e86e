// The parts of CUDA that these kernels use.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// Another lane's value: that of the lane whose number differs in the bits of `bits`.
__device__ inline float shuffle_xor(float x, int bits) { return __shfl_xor_sync(0xffffffffu, x, bits); }
