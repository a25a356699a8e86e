// Reader of the case file: one FLASH_ATTN_EXT with its allocations (roots) and the op's tensors as views of them.
#pragma once

#include "gguf.h"
#include "options.h"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

// A tensor of the op, laid over a root; ne and nb in ggml's order.
struct View {
    std::string root;
    std::array<int64_t, 4> ne;
    std::array<uint64_t, 4> nb;
    uint64_t offset;
};

class CaseFile {
  public:
    // Without `bytes`, only the header is read, and the tensors have no data.
    CaseFile(const std::string &path, bool bytes) : path_(path) {
        ggml_context *data = nullptr;
        gguf_.reset(gguf_init_from_file(path.c_str(), gguf_init_params{/*no_alloc =*/!bytes, /*ctx =*/&data}));
        data_.reset(data);
        if (gguf_ == nullptr) {
            throw Error(path + ": not a readable GGUF file");
        }
        const uint32_t version = gguf_get_val_u32(gguf_.get(), find("fattn.version", GGUF_TYPE_UINT32));
        if (version != 1) {
            throw Error(path + ": fattn.version is " + std::to_string(version) + ", this runner reads 1");
        }
    }

    std::string string(const std::string &key) const {
        return gguf_get_val_str(gguf_.get(), find(key, GGUF_TYPE_STRING));
    }
    float f32(const std::string &key) const { return gguf_get_val_f32(gguf_.get(), find(key, GGUF_TYPE_FLOAT32)); }
    int32_t i32(const std::string &key) const { return gguf_get_val_i32(gguf_.get(), find(key, GGUF_TYPE_INT32)); }

    bool has_tensor(const std::string &tensor) const {
        return gguf_find_key(gguf_.get(), ("fattn." + tensor + ".root").c_str()) >= 0;
    }

    View view(const std::string &tensor) const {
        const std::string prefix = "fattn." + tensor + ".";
        View view;
        view.root = string(prefix + "root");
        view.ne = array4<int64_t>(prefix + "ne", GGUF_TYPE_INT64);
        view.nb = array4<uint64_t>(prefix + "nb", GGUF_TYPE_UINT64);
        view.offset = gguf_get_val_u64(gguf_.get(), find(prefix + "offset", GGUF_TYPE_UINT64));
        return view;
    }

    // The contiguous allocation with this name; its bytes, if they were read, are in host memory.
    const ggml_tensor *root(const std::string &name) const {
        const ggml_tensor *tensor = ggml_get_tensor(data_.get(), name.c_str());
        if (tensor == nullptr) {
            throw Error(path_ + ": there is no tensor '" + name + "'");
        }
        return tensor;
    }

  private:
    struct Free {
        void operator()(gguf_context *gguf) const { gguf_free(gguf); }
        void operator()(ggml_context *context) const { ggml_free(context); }
    };

    int64_t find(const std::string &key, gguf_type type) const {
        const int64_t id = gguf_find_key(gguf_.get(), key.c_str());
        if (id < 0) {
            throw Error(path_ + ": the key " + key + " is missing");
        }
        if (gguf_get_kv_type(gguf_.get(), id) != type) {
            throw Error(path_ + ": the key " + key + " must be of type " + gguf_type_name(type));
        }
        return id;
    }

    template <typename T> std::array<T, 4> array4(const std::string &key, gguf_type type) const {
        const int64_t id = find(key, GGUF_TYPE_ARRAY);
        if (gguf_get_arr_type(gguf_.get(), id) != type || gguf_get_arr_n(gguf_.get(), id) != 4) {
            throw Error(path_ + ": the key " + key + " must hold 4 values of type " + gguf_type_name(type));
        }
        const T *values = static_cast<const T *>(gguf_get_arr_data(gguf_.get(), id));
        return {values[0], values[1], values[2], values[3]};
    }

    std::string path_;
    std::unique_ptr<gguf_context, Free> gguf_;
    std::unique_ptr<ggml_context, Free> data_;
};
