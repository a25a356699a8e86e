// The host's part; there is one header for both.
#pragma once

#include "hip_runtime.h"
