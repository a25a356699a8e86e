// A CUDA device, simulated or real, that runs single ops of a model's graph on the model's values.
#pragma once

#include "computed.h"
#include "options.h"

#include <algorithm>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

// One op on a device, with the same tensors, strides, views and offsets in their roots.
//
// Tensors that share memory share it here too: views of one root, and an output that ggml's allocator placed over an
// input. Each root has its own allocation. As in ggml's buffers, memory follows each tensor, because kernels read past
// a tensor's end without using the values; here that memory is unwritten, and the simulator fills it with NaN.
class DeviceOp {
  public:
    DeviceOp(ggml_backend_t backend, const ggml_tensor *op) : backend_(backend), context_(ggml_init(memory)) {
        for (const ggml_tensor *source : op->src) {
            if (source != nullptr) {
                add(source);
                upload(source);
            }
        }
        if (op->view_src != nullptr) {
            upload(op);
        }
        output_ = add(op);
        output_->op = op->op;
        output_->flags = op->flags;
        std::copy(std::begin(op->op_params), std::end(op->op_params), output_->op_params);
        for (int i = 0; i < GGML_MAX_SRC; i++) {
            output_->src[i] = op->src[i] != nullptr ? tensors_.at(op->src[i]) : nullptr;
        }
    }

    // The bytes of the output, from its first to its last value.
    std::vector<char> run() {
        ggml_cgraph *const graph = ggml_new_graph_custom(context_.get(), GGML_DEFAULT_GRAPH_SIZE, false);
        ggml_build_forward_expand(graph, output_);
        const ggml_status status = ggml_backend_graph_compute(backend_, graph);
        if (status != GGML_STATUS_SUCCESS) {
            throw LostError(std::string("ggml_backend_graph_compute: ") + ggml_status_to_string(status));
        }
        std::vector<char> bytes(ggml_nbytes(output_));
        ggml_backend_tensor_get(output_, bytes.data(), 0, bytes.size());
        return bytes;
    }

  private:
    struct FreeBuffer {
        void operator()(ggml_backend_buffer *buffer) const { ggml_backend_buffer_free(buffer); }
    };
    using Buffer = std::unique_ptr<ggml_backend_buffer, FreeBuffer>;

    static constexpr size_t behind = size_t(64) << 10; // bytes of memory after a tensor
    // The tensors and a graph; the data is on the device.
    const ggml_init_params memory = {size_t(1) << 20, nullptr, /*no_alloc =*/true};

    ggml_tensor *copy_of(const ggml_tensor *tensor) {
        ggml_tensor *const copy = ggml_new_tensor(context_.get(), tensor->type, GGML_MAX_DIMS, tensor->ne);
        std::copy(std::begin(tensor->nb), std::end(tensor->nb), copy->nb);
        ggml_set_name(copy, tensor->name);
        return tensors_[tensor] = copy;
    }

    ggml_tensor *add(const ggml_tensor *tensor) {
        if (const auto found = tensors_.find(tensor); found != tensors_.end()) {
            return found->second;
        }
        ggml_tensor *const copy = copy_of(tensor);
        if (tensor->view_src == nullptr) {
            const ggml_backend_buffer_t buffer = allocation(tensor);
            ggml_backend_tensor_alloc(buffer, copy, ggml_backend_buffer_get_base(buffer));
        } else {
            copy->view_src = add(tensor->view_src);
            copy->view_offs =
                static_cast<const char *>(tensor->data) - static_cast<const char *>(tensor->view_src->data);
            ggml_backend_view_init(copy);
        }
        return copy;
    }

    // The device memory for a root; roots at the same address share it.
    ggml_backend_buffer_t allocation(const ggml_tensor *root) {
        Buffer &buffer = buffers_[root->data];
        if (buffer == nullptr) {
            const ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(backend_);
            const size_t size = ggml_backend_buft_get_alloc_size(type, root) + behind;
            buffer.reset(ggml_backend_buft_alloc_buffer(type, size));
            if (buffer == nullptr) {
                throw MachineError("the device has no room for " + std::to_string(size) + " bytes");
            }
        }
        return buffer.get();
    }

    void upload(const ggml_tensor *tensor) {
        const ggml_tensor *const root = base_of(tensor);
        ggml_backend_tensor_set(add(root), root->data, 0, ggml_nbytes(root));
    }

    ggml_backend_t backend_;
    std::unique_ptr<ggml_context, FreeContext> context_;
    std::map<const ggml_tensor *, ggml_tensor *> tensors_; // by the model's tensors
    std::map<const void *, Buffer> buffers_;               // by the address of the model's roots
    ggml_tensor *output_ = nullptr;
};

// The first device of ggml's CUDA backend. libllama does not know about it, and runs the model on the CPU.
class Device {
  public:
    explicit Device(const std::set<std::string> &ops) : ops_(ops) {
        void *const library = dlopen("libggml-cuda.so", RTLD_NOW | RTLD_LOCAL);
        void *const start = library != nullptr ? dlsym(library, "ggml_backend_cuda_init") : nullptr;
        if (start == nullptr) {
            throw LostError(std::string("ggml's CUDA backend: ") + dlerror());
        }
        backend_.reset(reinterpret_cast<ggml_backend_t (*)(int)>(start)(0));
        if (backend_ == nullptr) {
            throw LostError("ggml's CUDA backend does not start");
        }
    }

    bool runs(const ggml_tensor *op) const {
        const bool readable = std::all_of(std::begin(op->src), std::end(op->src), [](const ggml_tensor *source) {
            return source == nullptr || in_host_memory(source);
        });
        return readable && ops_.count(ggml_op_name(op->op)) > 0 && ggml_backend_supports_op(backend_.get(), op);
    }

    std::vector<char> run(const ggml_tensor *op) const { return DeviceOp(backend_.get(), op).run(); }

  private:
    struct Free {
        void operator()(ggml_backend *backend) const { ggml_backend_free(backend); }
    };

    std::set<std::string> ops_;
    std::unique_ptr<ggml_backend, Free> backend_;
};
