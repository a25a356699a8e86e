// HIP's f16 is the same as in CUDA.
#pragma once

#include <cuda_fp16.h>
