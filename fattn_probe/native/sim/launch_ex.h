// cudaLaunchKernelEx.
#pragma once

#include "conversion.h"
#include "launch.h"

#include <cuda_runtime_api.h>

#include <type_traits>

namespace simt {

template <class... Parameters, class... Arguments>
cudaError_t launch_kernel_ex(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...),
                             const Arguments &...arguments) {
    if (config == nullptr) {
        return set_last_error(cudaErrorInvalidValue);
    }
    auto launch = launch_kernel(kernel, config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
    launch.queued.programmatic = is_programmatic(*config);
    return launch(static_cast<Parameters>(SIMT_INTO(std::decay_t<Parameters>) arguments)...);
}

} // namespace simt
