// Finding and setting up the ggml backend that runs the op.
#pragma once

#include "ggml-backend.h"
#include "options.h"

#include <memory>

struct FreeBackend {
    void operator()(ggml_backend *backend) const { ggml_backend_free(backend); }
};
using Backend = std::unique_ptr<ggml_backend, FreeBackend>;

inline ggml_backend_dev_t find_device(const std::string &name) {
    if (!name.empty()) {
        if (const ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str())) {
            return device;
        }
        std::string known;
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            known += std::string(" ") + ggml_backend_dev_name(ggml_backend_dev_get(i));
        }
        throw Error("there is no backend '" + name + "' here; there is:" + known);
    }
    const ggml_backend_dev_t gpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    const ggml_backend_dev_t device = gpu ? gpu : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (device == nullptr) {
        throw Error("ggml has no backend here");
    }
    return device;
}

inline void set_threads(ggml_backend_t backend, ggml_backend_dev_t device, int threads) {
    void *entry = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads");
    if (entry == nullptr) {
        throw Error(std::string("--threads: the backend ") + ggml_backend_dev_name(device) + " has no threads to set");
    }
    reinterpret_cast<ggml_backend_set_n_threads_t>(entry)(backend, threads);
}

inline Backend open_backend(ggml_backend_dev_t device, int threads) {
    Backend backend(ggml_backend_dev_init(device, nullptr));
    if (backend == nullptr) {
        throw Error(std::string("cannot start the backend ") + ggml_backend_dev_name(device));
    }
    if (threads > 0) {
        set_threads(backend.get(), device, threads);
    }
    return backend;
}
