// Launches and kernels that a GPU's toolchain or driver refuses. The error codes are from CUDA 13 on an H100 (driver
// 580.159.04).
#pragma once

#include "launch.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace simt {

// The dynamic shared memory that launches of a kernel may ask for; `raised` if cudaFuncSetAttribute has set it. If not,
// the kernel's static shared memory also counts against the limit.
struct DynamicLimit {
    size_t bytes;
    bool raised;
};
DynamicLimit dynamic_limit(const Description &kernel);

// The error of a launch that the driver refuses, and the reason; otherwise cudaSuccess.
struct Refusal {
    cudaError_t error = cudaSuccess;
    std::string reason;
};
Refusal check_limits(const Launch &launch);

// Called after the declarations of static shared memory have run: reports a size that ptxas or the driver would refuse.
void check_static_shared(const Launch &launch, size_t static_bytes);

} // namespace simt
