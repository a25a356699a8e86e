// Finds the tensors of a graph that are computed.
#pragma once

#include "tensor.h"

#include <memory>

struct FreeContext {
    void operator()(ggml_context *context) const { ggml_free(context); }
};

// Newer graphs also contain tensors that are not computed; the inputs of these have no values.
class Computed {
  public:
    bool operator()(const ggml_tensor *tensor) const {
        return (tensor->flags & mark_) == mark_ && !is_view(tensor) && !ggml_is_empty(tensor);
    }

  private:
    // The mark of computed tensors in a graph.
    static int32_t mark_of_computed() {
        const std::unique_ptr<ggml_context, FreeContext> context(ggml_init({size_t(1) << 20, nullptr, true}));
        ggml_tensor *const output = ggml_dup(context.get(), ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 1));
        ggml_build_forward_expand(ggml_new_graph(context.get()), output);
        return output->flags;
    }

    const int32_t mark_ = mark_of_computed();
};
