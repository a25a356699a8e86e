// The host part of HIP; a single header serves host and device.
#pragma once

#include "hip_runtime.h"
