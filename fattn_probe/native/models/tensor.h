// Where a tensor's bytes are.
#pragma once

#include "ggml-backend.h"

// The tensor whose memory another one is a view of; itself for one that is no view.
inline const ggml_tensor *base_of(const ggml_tensor *tensor) {
    return tensor->view_src != nullptr ? tensor->view_src : tensor;
}

inline ggml_backend_buffer_t buffer_of(const ggml_tensor *tensor) { return base_of(tensor)->buffer; }

// Whether the bytes can be read in place, in ggml's own layout.
inline bool in_host_memory(const ggml_tensor *tensor) {
    const ggml_backend_buffer_t buffer = buffer_of(tensor);
    return buffer != nullptr && ggml_backend_buffer_is_host(buffer);
}
