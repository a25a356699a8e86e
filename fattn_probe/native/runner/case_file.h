// Reader of the case file: one FLASH_ATTN_EXT with its allocations (roots) and the op's tensors as views of them.
#pragma once

#include "gguf_file.h"

// A tensor of the op, laid over a root; ne and nb in ggml's order.
struct View {
    std::string root;
    std::array<int64_t, 4> ne;
    std::array<uint64_t, 4> nb;
    uint64_t offset;
};

class CaseFile {
  public:
    using Root = GgufFile::Tensor;

    // Without `bytes`, the tensors have no data.
    CaseFile(const std::string &path, bool bytes) : file_(path), bytes_(bytes) {
        const uint32_t version = file_.value<uint32_t>("fattn.version");
        if (version != 1) {
            throw Error(path + ": fattn.version is " + std::to_string(version) + ", this runner reads 1");
        }
    }

    std::string string(const std::string &key) const { return file_.string(key); }
    float f32(const std::string &key) const { return file_.value<float>(key); }
    int32_t i32(const std::string &key) const { return file_.value<int32_t>(key); }

    bool has_tensor(const std::string &tensor) const { return file_.has("fattn." + tensor + ".root"); }

    View view(const std::string &tensor) const {
        const std::string prefix = "fattn." + tensor + ".";
        return {file_.string(prefix + "root"), file_.array4<int64_t>(prefix + "ne"),
                file_.array4<uint64_t>(prefix + "nb"), file_.value<uint64_t>(prefix + "offset")};
    }

    // The contiguous allocation with this name. Of a large one the file has the first bytes, which repeat: `size` is
    // less than that of a tensor of `ne` then.
    Root root(const std::string &name) const {
        Root root = file_.tensor(name);
        if (file_.has("fattn.root." + name + ".ne")) {
            root.ne = file_.array4<int64_t>("fattn.root." + name + ".ne");
        }
        if (!bytes_) {
            root.data = nullptr;
        }
        return root;
    }

  private:
    GgufFile file_;
    bool bytes_;
};
