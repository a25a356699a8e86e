// Run an attention kernel on the op in a file, and write its output to another file. fattn-probe compiles each kernel
// with this.
#pragma once

#include <fstream>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "timed.h"

constexpr unsigned UNWRITTEN = 0x7FC0DEAD; // what O holds before the first run

// A tensor in the file: the number of its memory, and, in elements, its start there and its strides.
struct place {
    int64_t memory, first;
    strides of;
};

// The file's first bytes. The sizes of the memories and their bytes follow.
struct header {
    int64_t n_seq, n_head, n_head_kv, n_q, n_kv, hsk, hsv, causal;
    double scale;
    place Q, K, V, mask; // without a mask, its memory is -1
    int64_t memories;
};

template <typename T> T read(std::ifstream &file) {
    T value;
    file.read((char *)&value, sizeof(value));
    return value;
}

// The file's memories, on the GPU.
inline std::vector<char *> memories_of(std::ifstream &file, int64_t number) {
    std::vector<int64_t> sizes(number);
    for (int64_t &size : sizes) {
        size = read<int64_t>(file);
    }
    std::vector<char *> found;
    for (const int64_t size : sizes) {
        std::vector<char> bytes(size);
        file.read(bytes.data(), size);
        char *memory;
        CHECKED(cudaMalloc(&memory, size));
        CHECKED(cudaMemcpy(memory, bytes.data(), size, cudaMemcpyHostToDevice));
        found.push_back(memory);
    }
    return found;
}

template <typename T> const T *tensor(const std::vector<char *> &memories, const place &at) {
    return at.memory < 0 ? nullptr : (const T *)memories[at.memory] + at.first;
}

template <typename KV> attention<KV> op_of(const header &h, const std::vector<char *> &memories, float *O) {
    const strides of_O = {h.n_head * h.hsv, h.hsv, h.n_q * h.n_head * h.hsv};
    return {tensor<float>(memories, h.Q),
            tensor<KV>(memories, h.K),
            tensor<KV>(memories, h.V),
            tensor<__half>(memories, h.mask),
            O,
            int(h.n_seq),
            int(h.n_head),
            int(h.n_head_kv),
            int(h.n_q),
            int(h.n_kv),
            int(h.hsk),
            int(h.hsv),
            h.Q.of,
            h.K.of,
            h.V.of,
            h.mask.of,
            of_O,
            float(h.scale),
            h.causal != 0};
}

// The first word of the output file; O and the seconds of each timed run follow, or the text of the reason.
enum ending : int64_t { RAN = 0, CANNOT = 1 };

inline void write(std::ofstream &file, const void *bytes, size_t size) { file.write((const char *)bytes, size); }

inline int cannot(const char *path, const std::string &why) {
    std::ofstream file(path, std::ios::binary);
    const int64_t how = CANNOT;
    write(file, &how, sizeof(how));
    write(file, why.data(), why.size());
    return file ? 0 : 1;
}

template <typename KV, typename Kernel>
int drive(const Kernel &kernel, std::ifstream &file, const char *out, int warmup, int repeats) {
    const header h = read<header>(file);
    const std::vector<char *> memories = memories_of(file, h.memories);
    std::vector<unsigned> output(h.n_seq * h.n_q * h.n_head * h.hsv, UNWRITTEN);
    float *O;
    CHECKED(cudaMalloc(&O, output.size() * sizeof(float)));
    CHECKED(cudaMemcpy(O, output.data(), output.size() * sizeof(float), cudaMemcpyHostToDevice));
    const attention<KV> op = op_of<KV>(h, memories, O);

    std::vector<double> seconds;
    for (int run = 0; run < 1 + warmup + repeats; run++) {
        const char *why = nullptr;
        const float time = milliseconds([&] { why = kernel(op); });
        if (why) {
            return cannot(out, why);
        }
        CHECKED(cudaGetLastError());
        CHECKED(cudaDeviceSynchronize());
        if (run > warmup) {
            seconds.push_back(time / 1000.0);
        }
    }
    CHECKED(cudaMemcpy(output.data(), O, output.size() * sizeof(float), cudaMemcpyDeviceToHost));
    std::ofstream to(out, std::ios::binary);
    const int64_t how = RAN;
    write(to, &how, sizeof(how));
    write(to, output.data(), output.size() * sizeof(float));
    write(to, seconds.data(), seconds.size() * sizeof(double));
    return to.flush() ? 0 : 1;
}

// Arguments: the op's file, the file for the output, the number of warm-up runs, and the number of timed runs.
template <typename KV, typename Kernel> int drive(const Kernel &kernel, int argc, char **argv) {
    static_assert(std::is_invocable_r_v<const char *, Kernel, const attention<__half> &> ||
                      std::is_invocable_r_v<const char *, Kernel, const attention<__nv_bfloat16> &>,
                  "the function of --kernel must take a `const attention<KV> &` and return a `const char *`");
    if constexpr (std::is_invocable_v<Kernel, const attention<KV> &>) {
        std::ifstream file(argv[1], std::ios::binary);
        return argc == 5 && file ? drive<KV>(kernel, file, argv[2], std::atoi(argv[3]), std::atoi(argv[4])) : 2;
    } else {
        return cannot(argv[2], "it takes another type of K and V");
    }
}
