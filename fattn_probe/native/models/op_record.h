// A FLASH_ATTN_EXT node of a graph: its operands as views of allocations, and the bytes that they cover.
#pragma once

#include "json.h"
#include "options.h"
#include "tensor.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

class OpRecord {
  public:
    explicit OpRecord(const ggml_tensor *dst) : dst_(dst) {
        static const char *const names[] = {"Q", "K", "V", "mask", "sinks"};
        for (int i = 0; i < 5; i++) {
            if (dst->src[i] != nullptr) {
                add_operand(names[i], dst->src[i]);
            }
        }
        for (Root &root : roots_) {
            cut(root);
        }
    }

    // The layer number from the name of the node, of Q (`Qcur-3`) or of the cache (`cache_k_l3`); -1 without one.
    int layer() const {
        const ggml_tensor *const Q = dst_->src[0];
        for (const ggml_tensor *tensor : {dst_, Q, base_of(Q)}) {
            if (const int found = number_after(tensor->name, "-"); found >= 0) {
                return found;
            }
        }
        return number_after(base_of(dst_->src[1])->name, "_l");
    }

    // The bytes of the allocations' parts and of the output.
    size_t bytes() const {
        size_t sum = ggml_nbytes(dst_);
        for (const Root &root : roots_) {
            sum += root.end - root.start;
        }
        return sum;
    }

    // The bytes of whole allocations and of the output: the size with a full cache.
    size_t most_bytes() const {
        size_t sum = ggml_nbytes(dst_);
        for (const Root &root : roots_) {
            sum += ggml_nbytes(root.base);
        }
        return sum;
    }

    // The description as JSON; the bytes follow each other as `write` writes them.
    std::string describe() const {
        json::Object views, roots;
        size_t place = 0;
        for (const Root &root : roots_) {
            const std::array<int64_t, 4> ne = {root.base->ne[0], int64_t((root.end - root.start) / row_of(root.base)),
                                               1, 1};
            roots.add(root.name, stored(ggml_type_name(root.base->type), ne.data(), place, root.end - root.start));
            place += root.end - root.start;
        }
        for (const auto &[name, tensor] : operands_) {
            views.add(name, describe_view(tensor));
        }
        return json::Object()
            .add("views", views.str())
            .add("roots", roots.str())
            .add("dst", stored(ggml_type_name(dst_->type), dst_->ne, place, ggml_nbytes(dst_)))
            .add("params", json::array(dst_->op_params, sizeof(dst_->op_params) / sizeof(dst_->op_params[0])))
            .add("backend", json::text(device_of(dst_)))
            .str();
    }

    void write(const std::string &path) const {
        std::FILE *file = std::fopen(path.c_str(), "wb");
        bool good = file != nullptr;
        for (const Root &root : roots_) {
            good = good && write_range(file, root.base, root.start, root.end);
        }
        good = good && write_range(file, dst_, 0, ggml_nbytes(dst_));
        if (file == nullptr || std::fclose(file) != 0 || !good) {
            throw MachineError(path + ": cannot be written: " + std::strerror(errno));
        }
    }

  private:
    static constexpr size_t piece = size_t(16) << 20;
    static constexpr size_t alignment = 256; // of CUDA's allocations: a cut keeps it

    // An allocation, and the part of it that the operands cover.
    struct Root {
        std::string name;
        const ggml_tensor *base;
        size_t start;
        size_t end;
    };

    static size_t row_of(const ggml_tensor *tensor) { return ggml_row_size(tensor->type, tensor->ne[0]); }

    static size_t offset_of(const ggml_tensor *tensor) {
        return static_cast<const char *>(tensor->data) - static_cast<const char *>(base_of(tensor)->data);
    }

    static int number_after(const std::string &name, const std::string &mark) {
        const size_t at = name.rfind(mark);
        if (at == std::string::npos || !std::isdigit(static_cast<unsigned char>(name.c_str()[at + mark.size()]))) {
            return -1;
        }
        return std::atoi(name.c_str() + at + mark.size());
    }

    void add_operand(const std::string &name, const ggml_tensor *tensor) {
        const ggml_tensor *base = base_of(tensor);
        if (base->type != tensor->type || base->nb[0] != ggml_type_size(base->type) ||
            !ggml_is_contiguously_allocated(base)) {
            throw LostError(name + " is not a view of a tensor of its type without gaps");
        }
        size_t end = offset_of(tensor) + row_of(tensor);
        for (int i = 1; i < 4; i++) {
            end += (tensor->ne[i] - 1) * tensor->nb[i];
        }
        operands_.push_back({name, tensor});
        for (Root &root : roots_) {
            if (root.base == base) {
                root.start = std::min(root.start, offset_of(tensor));
                root.end = std::max(root.end, end);
                return;
            }
        }
        roots_.push_back({name, base, offset_of(tensor), end});
    }

    // Cuts a root down to whole rows; the cut at its beginning keeps the alignment.
    static void cut(Root &root) {
        const size_t row = row_of(root.base);
        root.start -= root.start % std::lcm(row, alignment);
        root.end = std::min((root.end + row - 1) / row * row, ggml_nbytes(root.base));
    }

    static std::string stored(const char *type, const int64_t *ne, size_t place, size_t size) {
        return json::Object()
            .add("type", json::text(type))
            .add("ne", json::array(ne, 4))
            .add("place", int64_t(place))
            .add("size", int64_t(size))
            .str();
    }

    std::string describe_view(const ggml_tensor *tensor) const {
        const ggml_tensor *base = base_of(tensor);
        const Root &root =
            *std::find_if(roots_.begin(), roots_.end(), [base](const Root &one) { return one.base == base; });
        return json::Object()
            .add("type", json::text(ggml_type_name(tensor->type)))
            .add("root", json::text(root.name))
            .add("ne", json::array(tensor->ne, 4))
            .add("nb", json::array(tensor->nb, 4))
            .add("offset", int64_t(offset_of(tensor) - root.start))
            .add("tensor", json::text(base->name))
            .add("start", int64_t(root.start))
            .str();
    }

    static bool write_range(std::FILE *file, const ggml_tensor *tensor, size_t start, size_t end) {
        std::vector<uint8_t> bytes(std::min(piece, end - start));
        for (size_t at = start; at < end; at += bytes.size()) {
            const size_t size = std::min(bytes.size(), end - at);
            ggml_backend_tensor_get(tensor, bytes.data(), at, size);
            if (std::fwrite(bytes.data(), 1, size, file) != size) {
                return false;
            }
        }
        return true;
    }

    const ggml_tensor *dst_;
    std::vector<std::pair<std::string, const ggml_tensor *>> operands_;
    std::vector<Root> roots_;
};
