// Writer of the runner's result, a GGUF file: the op, the device, the time and dst.
#pragma once

#include "gguf_file.h"

#include <cstdio>
#include <vector>

class ResultFile {
  public:
    void set(const char *key, const std::string &value) {
        add_key(key, GGUF_TYPE_STRING);
        add_text(fields_, value);
    }

    template <typename T> void set(const char *key, const T *values, size_t count) {
        add_key(key, GGUF_TYPE_ARRAY);
        add<uint32_t>(fields_, GgufType<T>::value);
        add<uint64_t>(fields_, count);
        fields_.append(reinterpret_cast<const char *>(values), count * sizeof(T));
    }

    // `bytes` must live until the file is written.
    void set_dst(const ggml_tensor *dst, const std::vector<uint8_t> &bytes) {
        set("fattn.dst.ne", dst->ne, 4);
        const uint64_t nb[4] = {dst->nb[0], dst->nb[1], dst->nb[2], dst->nb[3]};
        set("fattn.dst.nb", nb, 4);
        add_text(tensors_, "dst");
        add<uint32_t>(tensors_, 4);
        tensors_.append(reinterpret_cast<const char *>(dst->ne), sizeof(dst->ne));
        add<uint32_t>(tensors_, dst->type);
        add<uint64_t>(tensors_, 0); // the first tensor
        bytes_ = &bytes;
    }

    // Written beside its final path and renamed: a result that exists is complete.
    void write(const std::string &path) const {
        const std::string partial = path + ".partial";
        if (!write_to(partial)) {
            throw Error("cannot write " + partial);
        }
        if (std::rename(partial.c_str(), path.c_str()) != 0) {
            throw Error("cannot rename " + partial + " to " + path);
        }
    }

  private:
    template <typename T> static void add(std::string &out, T value) {
        out.append(reinterpret_cast<const char *>(&value), sizeof(T));
    }

    static void add_text(std::string &out, const std::string &text) {
        add<uint64_t>(out, text.size());
        out += text;
    }

    void add_key(const char *key, gguf_type type) {
        add_text(fields_, key);
        add<uint32_t>(fields_, type);
        count_++;
    }

    std::string header() const {
        std::string out = "GGUF";
        add<uint32_t>(out, GGUF_VERSION);
        add<uint64_t>(out, bytes_ != nullptr);
        add<uint64_t>(out, count_);
        out += fields_ + tensors_;
        out.resize(GGML_PAD(out.size(), GGUF_DEFAULT_ALIGNMENT));
        return out;
    }

    bool write_to(const std::string &path) const {
        std::FILE *file = std::fopen(path.c_str(), "wb");
        if (file == nullptr) {
            return false;
        }
        const std::string head = header();
        bool good = std::fwrite(head.data(), 1, head.size(), file) == head.size();
        if (bytes_ != nullptr) {
            good = good && std::fwrite(bytes_->data(), 1, bytes_->size(), file) == bytes_->size();
            const std::string padding(GGML_PAD(bytes_->size(), GGUF_DEFAULT_ALIGNMENT) - bytes_->size(), '\0');
            good = good && std::fwrite(padding.data(), 1, padding.size(), file) == padding.size();
        }
        return std::fclose(file) == 0 && good;
    }

    std::string fields_;
    std::string tensors_;
    uint64_t count_ = 0;
    const std::vector<uint8_t> *bytes_ = nullptr;
};
