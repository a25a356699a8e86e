// The place of a tensor's bytes.
#pragma once

#include "ggml-backend.h"

#include <string>

// The tensor that owns the memory of a view; the tensor itself if it is not a view.
inline const ggml_tensor *base_of(const ggml_tensor *tensor) {
    return tensor->view_src != nullptr ? tensor->view_src : tensor;
}

inline ggml_backend_buffer_t buffer_of(const ggml_tensor *tensor) { return base_of(tensor)->buffer; }

// Whether the bytes can be read in place, in ggml's own layout.
inline bool in_host_memory(const ggml_tensor *tensor) {
    const ggml_backend_buffer_t buffer = buffer_of(tensor);
    return buffer != nullptr && ggml_backend_buffer_is_host(buffer);
}

// The name of the device that computes a tensor, which is the device whose memory the tensor is written to.
inline std::string device_of(const ggml_tensor *tensor) {
    return in_host_memory(tensor) ? "CPU" : ggml_backend_buffer_name(buffer_of(tensor));
}

// Whether a tensor is an input, or a view of another tensor's memory.
inline bool is_view(const ggml_tensor *tensor) {
    switch (tensor->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return true;
    default:
        return false;
    }
}
