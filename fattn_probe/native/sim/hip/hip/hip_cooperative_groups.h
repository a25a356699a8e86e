// HIP's cooperative groups are CUDA's.
#pragma once

#include <cooperative_groups.h>
