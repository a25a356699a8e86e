// HIP's older name for bfloat16.
#pragma once

#include <cuda_bf16.h>

using hip_bfloat16 = __nv_bfloat16;
