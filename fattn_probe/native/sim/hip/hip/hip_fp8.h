#pragma once

#include <cuda_fp8.h>

#define __hip_fp8_e4m3 __nv_fp8_e4m3
