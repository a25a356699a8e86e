// The op in the memory of one backend: every root and dst has its own buffer, so an access past the end of a tensor is
// an access past the end of an allocation.
#pragma once

#include "case_file.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "selection_file.h"
#include "setters.h"

#include <algorithm>
#include <cmath>
#include <vector>

// Defined by the simulated GPU, which shows the tensor's name in its findings.
extern "C" __attribute__((weak)) void fattn_probe_name_allocation(const void *start, const char *name);

// Defined by the simulated GPU, on which repeating memory costs only one period.
extern "C" __attribute__((weak)) bool fattn_probe_repeat(void *start, size_t bytes, const void *data, size_t period);

// Defined by the simulated GPU, whose checker then reports reads of a tensor before earlier kernels are done.
extern "C" __attribute__((weak)) void fattn_probe_written_before(const void *start, size_t bytes);

class Op {
  public:
    Op(const CaseFile &file, ggml_backend_t backend) : file_(file), backend_(backend) {
        context_.reset(ggml_init({/*mem_size =*/32 * ggml_tensor_overhead() + ggml_graph_overhead(),
                                  /*mem_buffer =*/nullptr, /*no_alloc =*/true}));
        ggml_tensor *mask = padded_mask(tensor("mask"));
        ggml_tensor *sinks = tensor("sinks");
        dst_ = ggml_flash_attn_ext(context_.get(), required("Q"), required("K"), required("V"), mask,
                                   file.value<float>("fattn.scale"), file.value<float>("fattn.max_bias"),
                                   file.value<float>("fattn.logit_softcap"));
        ggml_set_name(dst_, "dst");
        set_params(sinks);
        graph_ = ggml_new_graph(context_.get());
        ggml_build_forward_expand(graph_, dst_);
    }

    // The reason why this source or backend cannot run the op; empty if it can.
    std::string unsupported() const {
        if (!missing_.empty()) {
            return "this ggml has no " + missing_;
        }
        return ggml_backend_supports_op(backend_, dst_) ? "" : "the backend does not support the op";
    }

    void allocate_dst() { allocate(dst_); }

    // Fills dst, and the extra space past its end, with a recognisable NaN (0x7fc0dead).
    void poison_dst() {
        const bool huge = ggml_nbytes(dst_) > huge_bytes;
        if (!huge || fattn_probe_repeat == nullptr) { // a simulated GPU's fresh memory is 0xff
            ggml_backend_buffer_clear(dst_->buffer, 0xff);
        }
        const std::vector<uint32_t> poison(huge ? poison_bytes / sizeof(uint32_t) : ggml_nelements(dst_), 0x7fc0dead);
        fill(dst_, poison.data(), poison.size() * sizeof(uint32_t));
    }

    void compute() {
        for (const auto &[name, tensor] : roots_) {
            if (fattn_probe_written_before != nullptr && tensor != nullptr) {
                fattn_probe_written_before(tensor->data, ggml_nbytes(tensor));
            }
        }
        const ggml_status status = ggml_backend_graph_compute(backend_, graph_);
        ggml_backend_synchronize(backend_);
        if (status != GGML_STATUS_SUCCESS) {
            throw Error(std::string("ggml_backend_graph_compute: ") + ggml_status_to_string(status));
        }
    }

    const ggml_tensor *dst() const { return dst_; }

    std::vector<uint8_t> dst_bytes(const Range &range) const {
        if (range.offset > ggml_nbytes(dst_) || range.size > ggml_nbytes(dst_) - range.offset) {
            throw Error("a part of dst is chosen that dst does not have");
        }
        std::vector<uint8_t> bytes(range.size);
        ggml_backend_tensor_get(dst_, bytes.data(), range.offset, bytes.size());
        return bytes;
    }

  private:
    static constexpr size_t huge_bytes = size_t(1) << 30;
    static constexpr size_t poison_bytes = size_t(16) << 20;

    struct Free {
        void operator()(ggml_context *context) const { ggml_free(context); }
        void operator()(ggml_backend_buffer *buffer) const { ggml_backend_buffer_free(buffer); }
    };

    // The buffer type decides the size: CUDA pads quantised rows, and needs space past the dst of a FLASH_ATTN_EXT.
    ggml_backend_buffer_t allocate(ggml_tensor *tensor) {
        const ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(backend_);
        const size_t size = ggml_backend_buft_get_alloc_size(type, tensor);
        buffers_.emplace_back(ggml_backend_buft_alloc_buffer(type, size));
        const ggml_backend_buffer_t buffer = buffers_.back().get();
        if (buffer == nullptr) {
            throw Error("cannot allocate " + std::to_string(size) + " bytes for " + tensor->name);
        }
        if (ggml_backend_tensor_alloc(buffer, tensor, ggml_backend_buffer_get_base(buffer)) != GGML_STATUS_SUCCESS) {
            throw Error(std::string("cannot place ") + tensor->name);
        }
        if (fattn_probe_name_allocation != nullptr) {
            fattn_probe_name_allocation(tensor->data, tensor->name);
        }
        return buffer;
    }

    // Fills a tensor with repetitions of `period` bytes.
    static void fill(ggml_tensor *tensor, const void *data, size_t period) {
        const size_t size = ggml_nbytes(tensor);
        if (period < size && fattn_probe_repeat != nullptr && fattn_probe_repeat(tensor->data, size, data, period)) {
            return;
        }
        for (size_t offset = 0; offset < size; offset += period) {
            ggml_backend_tensor_set(tensor, data, offset, std::min(period, size - offset));
        }
    }

    ggml_tensor *root(const std::string &name) {
        ggml_tensor *&tensor = roots_[name];
        if (tensor == nullptr) {
            const CaseFile::Tensor host = file_.root(name);
            tensor = ggml_new_tensor(context_.get(), host.type, 4, host.ne.data());
            ggml_set_name(tensor, name.c_str());
            allocate(tensor);
            if (host.data != nullptr) {
                fill(tensor, host.data, host.size);
            }
        }
        return tensor;
    }

    // Returns the root itself if the layouts are equal: a V that is a view must have K as its view_src, not a copy of
    // K.
    ggml_tensor *tensor(const std::string &name) {
        if (!file_.has_tensor(name)) {
            return nullptr;
        }
        const View view = file_.view(name);
        ggml_tensor *base = root(view.root);
        if (view.offset == 0 && std::equal(view.ne.begin(), view.ne.end(), base->ne) &&
            std::equal(view.nb.begin(), view.nb.end(), base->nb)) {
            return base;
        }
        check_bounds(name, view, base);
        ggml_tensor *laid = ggml_view_4d(context_.get(), base, view.ne[0], view.ne[1], view.ne[2], view.ne[3],
                                         view.nb[1], view.nb[2], view.nb[3], view.offset);
        ggml_set_name(laid, name.c_str());
        if (ggml_backend_view_init(laid) != GGML_STATUS_SUCCESS) {
            throw Error("cannot place " + name);
        }
        return laid;
    }

#if defined(GGML_KQ_MASK_PAD)
    // The mask with as many rows as ggml required until the end of 2025, a multiple of GGML_KQ_MASK_PAD. The additional
    // rows belong to no query; as in llama.cpp of that time, they are -inf.
    ggml_tensor *padded_mask(ggml_tensor *mask) {
        const int64_t rows = GGML_PAD(file_.view("Q").ne[1], GGML_KQ_MASK_PAD);
        if (mask == nullptr || mask->ne[1] >= rows) {
            return mask;
        }
        const auto columns = static_cast<int64_t>(mask->nb[1] / ggml_type_size(mask->type));
        ggml_tensor *padded = ggml_new_tensor_4d(context_.get(), mask->type, columns, rows, mask->ne[2], mask->ne[3]);
        ggml_set_name(padded, "mask");
        allocate(padded);
        if (file_.root(file_.view("mask").root).data != nullptr) {
            const std::vector<ggml_fp16_t> hidden(size_t(columns), ggml_fp32_to_fp16(-INFINITY));
            fill(padded, hidden.data(), hidden.size() * sizeof(ggml_fp16_t));
            copy_planes(mask, padded);
        }
        if (columns == mask->ne[0]) {
            return padded;
        }
        ggml_tensor *laid = ggml_view_4d(context_.get(), padded, mask->ne[0], rows, mask->ne[2], mask->ne[3],
                                         padded->nb[1], padded->nb[2], padded->nb[3], 0);
        ggml_set_name(laid, "mask");
        if (ggml_backend_view_init(laid) != GGML_STATUS_SUCCESS) {
            throw Error("cannot place mask");
        }
        return laid;
    }

    // Copies the rows of each head and sequence to the first rows of a tensor with the same row stride.
    static void copy_planes(const ggml_tensor *from, ggml_tensor *to) {
        std::vector<uint8_t> plane((from->ne[1] - 1) * from->nb[1] + ggml_row_size(from->type, from->ne[0]));
        for (int64_t sequence = 0; sequence < from->ne[3]; sequence++) {
            for (int64_t head = 0; head < from->ne[2]; head++) {
                ggml_backend_tensor_get(from, plane.data(), sequence * from->nb[3] + head * from->nb[2], plane.size());
                ggml_backend_tensor_set(to, plane.data(), sequence * to->nb[3] + head * to->nb[2], plane.size());
            }
        }
    }
#else
    ggml_tensor *padded_mask(ggml_tensor *mask) { return mask; }
#endif

    static void check_bounds(const std::string &name, const View &view, const ggml_tensor *base) {
        if (view.nb[0] != base->nb[0]) {
            throw Error(name + ": nb[0] must be the type's size, " + std::to_string(base->nb[0]));
        }
        uint64_t end = view.offset + ggml_row_size(base->type, view.ne[0]);
        for (int i = 1; i < 4; i++) {
            end += uint64_t(view.ne[i] - 1) * view.nb[i];
        }
        if (end > ggml_nbytes(base)) {
            throw Error(name + ": the view ends at byte " + std::to_string(end) + " of " + view.root + ", which has " +
                        std::to_string(ggml_nbytes(base)) + " bytes");
        }
    }

    ggml_tensor *required(const std::string &name) {
        ggml_tensor *found = tensor(name);
        if (found == nullptr) {
            throw Error("the case has no tensor " + name);
        }
        return found;
    }

    void set_params(ggml_tensor *sinks) {
        const int32_t prec = file_.value<int32_t>("fattn.prec");
        if (prec != GGML_PREC_DEFAULT && !absent::set_prec(dst_, ggml_prec(prec))) {
            missing_ = "ggml_flash_attn_ext_set_prec";
        }
        const int32_t n_kv_max = file_.value<int32_t>("fattn.n_kv_max");
        if (n_kv_max != 0 && !absent::set_n_kv_max(dst_, n_kv_max)) {
            missing_ = "ggml_flash_attn_ext_set_n_kv_max";
        }
        if (sinks != nullptr && !absent::add_sinks(dst_, sinks)) {
            missing_ = "ggml_flash_attn_ext_add_sinks";
        }
    }

    const CaseFile &file_;
    ggml_backend_t backend_;
    std::unique_ptr<ggml_context, Free> context_;
    std::vector<std::unique_ptr<ggml_backend_buffer, Free>> buffers_;
    std::map<std::string, ggml_tensor *> roots_;
    std::string missing_;
    ggml_tensor *dst_ = nullptr;
    ggml_cgraph *graph_ = nullptr;
};
