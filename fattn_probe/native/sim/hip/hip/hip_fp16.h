// HIP's f16 is CUDA's.
#pragma once

#include <cuda_fp16.h>
