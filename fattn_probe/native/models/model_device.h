// The CUDA device, simulated or real, that a whole model runs on.
#pragma once

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "options.h"
#include "tensor.h"

#include <set>
#include <string>

// The ops that the device may run, and the device's own supports_op function.
struct DeviceOps {
    std::set<std::string> names;
    decltype(ggml_backend_device_i::supports_op) supports = nullptr;
};

// A global, because ggml calls supports_op without user data.
inline DeviceOps &device_ops() {
    static DeviceOps ops;
    return ops;
}

inline bool supports_built_op(ggml_backend_dev_t device, const ggml_tensor *op) {
    const bool built = is_view(op) || device_ops().names.count(ggml_op_name(op->op)) > 0;
    return built && device_ops().supports(device, op);
}

// The first device of ggml's CUDA or HIP backend, which from now on supports only these ops. The other ops are not
// built; llama.cpp's scheduler runs them on the CPU, which also holds the weights that only they use.
inline ggml_backend_dev_t restricted_device(const std::set<std::string> &ops) {
    ggml_backend_dev_t device = ggml_backend_dev_by_name("CUDA0");
    device = device != nullptr ? device : ggml_backend_dev_by_name("ROCm0");
    if (device == nullptr) {
        throw LostError("ggml's CUDA backend has no device");
    }
    device_ops() = {ops, device->iface.supports_op};
    device->iface.supports_op = supports_built_op;
    return device;
}
