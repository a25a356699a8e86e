// A GGUF file, mapped into memory: its fields and its tensors.
//
// Case files have few kinds of fields. This reader compiles ten times as fast as ggml's reader (gguf.cpp).
#pragma once

#include "ggml.h"
#include "gguf.h" // only for the numbers of the types
#include "options.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <type_traits>
#include <unistd.h>
#include <vector>

// The bytes of a file. Pages are read on first use; a file that cannot be opened has no bytes.
class MappedFile {
  public:
    explicit MappedFile(const char *path) {
        const int file = open(path, O_RDONLY | O_CLOEXEC);
        struct stat status;
        if (file >= 0 && fstat(file, &status) == 0 && status.st_size > 0) {
            void *mapped = mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
            if (mapped != MAP_FAILED) {
                data_ = static_cast<const uint8_t *>(mapped);
                size_ = status.st_size;
            }
        }
        if (file >= 0) {
            close(file);
        }
    }
    ~MappedFile() {
        if (data_ != nullptr) {
            munmap(const_cast<uint8_t *>(data_), size_);
        }
    }
    MappedFile(const MappedFile &) = delete;
    MappedFile &operator=(const MappedFile &) = delete;

    const uint8_t *data() const { return data_; }
    size_t size() const { return size_; }

  private:
    const uint8_t *data_ = nullptr;
    size_t size_ = 0;
};

// The GGUF type of a C++ type of 4 or 8 bytes.
template <typename T>
constexpr gguf_type gguf_type_of = std::is_same_v<T, float>    ? GGUF_TYPE_FLOAT32
                                   : std::is_same_v<T, double> ? GGUF_TYPE_FLOAT64
                                   : std::is_signed_v<T>       ? sizeof(T) == 4 ? GGUF_TYPE_INT32 : GGUF_TYPE_INT64
                                   : sizeof(T) == 4            ? GGUF_TYPE_UINT32
                                                               : GGUF_TYPE_UINT64;

class GgufFile {
  public:
    // A contiguous tensor; ne in ggml's order.
    struct Tensor {
        ggml_type type = GGML_TYPE_F32;
        std::array<int64_t, 4> ne = {1, 1, 1, 1};
        uint64_t offset = 0; // from the start of all tensors
        size_t size = 0;
        const uint8_t *data = nullptr;
    };

    explicit GgufFile(const std::string &path) : path_(path), file_(path.c_str()) {
        require(file_.size() >= 4 && std::memcmp(file_.data(), "GGUF", 4) == 0);
        at_ = 4;
        require(number<uint32_t>() == GGUF_VERSION);
        const uint64_t tensors = number<uint64_t>();
        const uint64_t fields = number<uint64_t>();
        for (uint64_t i = 0; i < fields; i++) {
            const std::string key = text();
            fields_[key] = field();
        }
        for (uint64_t i = 0; i < tensors; i++) {
            const std::string name = text();
            tensors_[name] = tensor_info();
        }
        place_tensors();
    }

    bool has(const std::string &key) const { return fields_.count(key) > 0; }

    std::string string(const std::string &key) const {
        const Field &found = find(key, GGUF_TYPE_STRING, 1);
        return std::string(reinterpret_cast<const char *>(found.data), found.size);
    }

    template <typename T> T value(const std::string &key) const {
        T value;
        std::memcpy(&value, find(key, gguf_type_of<T>, 1).data, sizeof(T));
        return value;
    }

    template <typename T> std::array<T, 4> array4(const std::string &key) const {
        std::array<T, 4> values;
        std::memcpy(values.data(), find(key, gguf_type_of<T>, 4).data, sizeof(values));
        return values;
    }

    // All values of an array; empty for a missing key, because GGUF has no empty arrays.
    template <typename T> std::vector<T> array(const std::string &key) const {
        const auto found = fields_.find(key);
        if (found == fields_.end()) {
            return {};
        }
        std::vector<T> values(found->second.count);
        std::memcpy(values.data(), find(key, gguf_type_of<T>, values.size()).data, values.size() * sizeof(T));
        return values;
    }

    const Tensor &tensor(const std::string &name) const {
        const auto found = tensors_.find(name);
        if (found == tensors_.end()) {
            throw Error(path_ + ": there is no tensor '" + name + "'");
        }
        return found->second;
    }

  private:
    // `count` values of a type, or a string of `size` bytes.
    struct Field {
        uint32_t type;
        uint64_t count;
        const uint8_t *data;
        uint64_t size;
    };

    void require(bool good) const {
        if (!good) {
            throw Error(path_ + ": not a readable GGUF file");
        }
    }

    const uint8_t *take(uint64_t size) {
        require(size <= file_.size() - at_);
        at_ += size;
        return file_.data() + at_ - size;
    }

    template <typename T> T number() {
        T value;
        std::memcpy(&value, take(sizeof(T)), sizeof(T));
        return value;
    }

    std::string text() {
        const uint64_t size = number<uint64_t>();
        return std::string(reinterpret_cast<const char *>(take(size)), size);
    }

    Field field() {
        const uint32_t type = number<uint32_t>();
        return type == GGUF_TYPE_ARRAY ? values(number<uint32_t>(), true) : values(type, false);
    }

    Field values(uint32_t type, bool array) {
        const uint64_t count = array ? number<uint64_t>() : 1;
        if (type == GGUF_TYPE_STRING) {
            require(!array); // case files have no lists of strings
            const uint64_t size = number<uint64_t>();
            return {type, count, take(size), size};
        }
        static constexpr uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
        require(type < sizeof(sizes) && sizes[type] > 0 && count <= file_.size());
        return {type, count, take(count * sizes[type]), count * sizes[type]};
    }

    Tensor tensor_info() {
        Tensor tensor;
        const uint32_t dims = number<uint32_t>();
        require(dims <= tensor.ne.size());
        for (uint32_t i = 0; i < dims; i++) {
            tensor.ne[i] = number<int64_t>();
        }
        const uint32_t type = number<uint32_t>();
        require(type < GGML_TYPE_COUNT && ggml_blck_size(ggml_type(type)) > 0);
        tensor.type = ggml_type(type);
        tensor.size = size_of(tensor);
        tensor.offset = number<uint64_t>();
        return tensor;
    }

    size_t size_of(const Tensor &tensor) const {
        const int64_t limit = file_.size();
        for (const int64_t ne : tensor.ne) {
            require(ne > 0 && ne <= limit);
        }
        require(tensor.ne[0] % ggml_blck_size(tensor.type) == 0);
        size_t size = ggml_row_size(tensor.type, tensor.ne[0]);
        for (int i = 1; i < 4; i++) {
            require(size <= file_.size() / tensor.ne[i]);
            size *= tensor.ne[i];
        }
        return size;
    }

    void place_tensors() {
        at_ = GGML_PAD(at_, GGUF_DEFAULT_ALIGNMENT);
        for (auto &[name, tensor] : tensors_) {
            require(at_ <= file_.size() && tensor.offset <= file_.size() - at_ &&
                    tensor.size <= file_.size() - at_ - tensor.offset);
            tensor.data = file_.data() + at_ + tensor.offset;
        }
    }

    const Field &find(const std::string &key, gguf_type type, uint64_t count) const {
        const auto found = fields_.find(key);
        if (found == fields_.end()) {
            throw Error(path_ + ": the key " + key + " is missing");
        }
        if (found->second.type != type || found->second.count != count) {
            throw Error(path_ + ": the key " + key + " must have " + std::to_string(count) + " of GGUF's type " +
                        std::to_string(type));
        }
        return found->second;
    }

    std::string path_;
    MappedFile file_;
    uint64_t at_ = 0;
    std::map<std::string, Field> fields_;
    std::map<std::string, Tensor> tensors_;
};
