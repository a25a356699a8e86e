// Writes the runner's result, a GGUF file: the op, the device, the time and dst.
#pragma once

#include "gguf_file.h"

#include <cstdio>
#include <unistd.h>
#include <utility>
#include <vector>

class ResultFile {
  public:
    void set(const char *key, const std::string &value) {
        add_key(key, GGUF_TYPE_STRING);
        add_text(fields_, value);
    }

    template <typename T> void set(const char *key, const T *values, size_t count) {
        add_key(key, GGUF_TYPE_ARRAY);
        add<uint32_t>(fields_, gguf_type_of<T>);
        add<uint64_t>(fields_, count);
        fields_.append(reinterpret_cast<const char *>(values), count * sizeof(T));
    }

    // Parts that are not added read as zeros, and take no space on most disks.
    void set_dst(const ggml_tensor *dst) {
        set("fattn.dst.ne", dst->ne, 4);
        const uint64_t nb[4] = {dst->nb[0], dst->nb[1], dst->nb[2], dst->nb[3]};
        set("fattn.dst.nb", nb, 4);
        add_text(tensors_, "dst");
        add<uint32_t>(tensors_, 4);
        tensors_.append(reinterpret_cast<const char *>(dst->ne), sizeof(dst->ne));
        add<uint32_t>(tensors_, dst->type);
        add<uint64_t>(tensors_, 0); // the first tensor
        dst_size_ = ggml_nbytes(dst);
    }

    void add_dst(uint64_t offset, std::vector<uint8_t> bytes) { parts_.push_back({offset, std::move(bytes)}); }

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
    struct Part {
        uint64_t offset;
        std::vector<uint8_t> bytes;
    };

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
        add<uint64_t>(out, dst_size_ > 0);
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
        for (const Part &part : parts_) {
            good = good && fseeko(file, off_t(head.size() + part.offset), SEEK_SET) == 0 &&
                   std::fwrite(part.bytes.data(), 1, part.bytes.size(), file) == part.bytes.size();
        }
        const uint64_t end = head.size() + GGML_PAD(dst_size_, GGUF_DEFAULT_ALIGNMENT);
        good = good && std::fflush(file) == 0 && ftruncate(fileno(file), off_t(end)) == 0;
        return std::fclose(file) == 0 && good;
    }

    std::string fields_;
    std::string tensors_;
    uint64_t count_ = 0;
    uint64_t dst_size_ = 0;
    std::vector<Part> parts_;
};
