// Finds and sets up the ggml backend that runs the op.
//
// A runner is linked with one backend, which it asks for devices. ggml's list of all backends is not compiled.
#pragma once

#include "ggml-backend.h"
#include "options.h"

#ifdef GGML_USE_CUDA
#include "ggml-cuda.h"
#else
#include "ggml-cpu.h"
#endif

#include <memory>
#include <strings.h>

struct FreeBackend {
    void operator()(ggml_backend *backend) const { ggml_backend_free(backend); }
};
using Backend = std::unique_ptr<ggml_backend, FreeBackend>;

inline ggml_backend_reg_t backend_reg() {
#ifdef GGML_USE_CUDA
    return ggml_backend_cuda_reg();
#else
    return ggml_backend_cpu_reg();
#endif
}

// The device with this name; the first device for an empty name.
inline ggml_backend_dev_t find_device(const std::string &name) {
    const ggml_backend_reg_t reg = backend_reg();
    std::string known;
    for (size_t i = 0; i < ggml_backend_reg_dev_count(reg); i++) {
        const ggml_backend_dev_t device = ggml_backend_reg_dev_get(reg, i);
        const char *found = ggml_backend_dev_name(device);
        if (name.empty() || strcasecmp(found, name.c_str()) == 0) {
            return device;
        }
        known += std::string(" ") + found;
    }
    throw Error(name.empty() ? "ggml has no backend here"
                             : "there is no backend '" + name + "' here; there is:" + known);
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
