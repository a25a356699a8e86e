// Writer of the runner's result: the op, the device, the time and dst.
#pragma once

#include "gguf.h"
#include "options.h"

#include <cstdio>
#include <memory>
#include <vector>

class ResultFile {
  public:
    ResultFile() : gguf_(gguf_init_empty()) {}

    void set(const char *key, const std::string &value) { gguf_set_val_str(gguf_.get(), key, value.c_str()); }
    void set(const char *key, const std::vector<double> &values) {
        gguf_set_arr_data(gguf_.get(), key, GGUF_TYPE_FLOAT64, values.data(), values.size());
    }

    // `bytes` must live until the file is written.
    void set_dst(const ggml_tensor *dst, const std::vector<uint8_t> &bytes) {
        gguf_set_arr_data(gguf_.get(), "fattn.dst.ne", GGUF_TYPE_INT64, dst->ne, 4);
        const uint64_t nb[4] = {dst->nb[0], dst->nb[1], dst->nb[2], dst->nb[3]};
        gguf_set_arr_data(gguf_.get(), "fattn.dst.nb", GGUF_TYPE_UINT64, nb, 4);
        ggml_tensor plain = *dst; // GGUF reads host memory, but the bytes of a tensor are on the device
        plain.buffer = nullptr;
        plain.view_src = nullptr;
        gguf_add_tensor(gguf_.get(), &plain);
        gguf_set_tensor_data(gguf_.get(), "dst", bytes.data());
    }

    // Written beside its final path and renamed: a result that exists is complete.
    void write(const std::string &path) const {
        const std::string partial = path + ".partial";
        if (!gguf_write_to_file(gguf_.get(), partial.c_str(), /*only_meta =*/false)) {
            throw Error("cannot write " + partial);
        }
        if (std::rename(partial.c_str(), path.c_str()) != 0) {
            throw Error("cannot rename " + partial + " to " + path);
        }
    }

  private:
    struct Free {
        void operator()(gguf_context *gguf) const { gguf_free(gguf); }
    };
    std::unique_ptr<gguf_context, Free> gguf_;
};
