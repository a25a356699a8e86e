// Reads the case file: one FLASH_ATTN_EXT with its allocations (roots), and the op's tensors as views of these.
#pragma once

#include "gguf_file.h"

// A tensor of the op as a view of a root; ne and nb in ggml's order.
struct View {
    std::string root;
    std::array<int64_t, 4> ne;
    std::array<uint64_t, 4> nb;
    uint64_t offset;
};

class CaseFile : public GgufFile {
  public:
    // Without `bytes`, the tensors have no data.
    CaseFile(const std::string &path, bool bytes) : GgufFile(path), bytes_(bytes) {
        const uint32_t version = value<uint32_t>("fattn.version");
        if (version != 1) {
            throw Error(path + ": fattn.version is " + std::to_string(version) + ", this runner reads 1");
        }
    }

    bool has_tensor(const std::string &tensor) const { return has("fattn." + tensor + ".root"); }

    View view(const std::string &tensor) const {
        const std::string prefix = "fattn." + tensor + ".";
        return {string(prefix + "root"), array4<int64_t>(prefix + "ne"), array4<uint64_t>(prefix + "nb"),
                value<uint64_t>(prefix + "offset")};
    }

    // The contiguous allocation with this name. For a large allocation, the file has only the first bytes, which
    // repeat; `size` is then smaller than a tensor of `ne`.
    Tensor root(const std::string &name) const {
        Tensor root = tensor(name);
        if (has("fattn.root." + name + ".ne")) {
            root.ne = array4<int64_t>("fattn.root." + name + ".ne");
        }
        if (!bytes_) {
            root.data = nullptr;
        }
        return root;
    }

  private:
    bool bytes_;
};
