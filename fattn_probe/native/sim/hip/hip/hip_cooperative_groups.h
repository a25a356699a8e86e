// HIP's cooperative groups are the same as in CUDA.
#pragma once

#include <cooperative_groups.h>
