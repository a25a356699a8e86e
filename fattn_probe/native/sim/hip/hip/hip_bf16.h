// HIP's bfloat16 is CUDA's.
#pragma once

#include <cuda_bf16.h>

using __hip_bfloat16 = __nv_bfloat16;
using __hip_bfloat162 = __nv_bfloat162;
