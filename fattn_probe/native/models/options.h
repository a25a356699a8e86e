// Command line of fattn-capture.
#pragma once

#include "ggml.h"

#include <cstdint>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>

template <int exit_status> struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};
using InputError = Error<2>;   // the model or the command line is wrong
using MachineError = Error<3>; // not enough memory or disk space
using LostError = Error<4>;    // the run was lost

struct Options {
    std::string model_path;
    std::string raw_path;    // the file for the bytes of the current op
    std::string prompt_path; // a file with the prompt; empty: random tokens
    int tokens = 0;          // random tokens for each sequence
    uint32_t seed = 0;
    int generate = 0; // tokens after the prompt
    int context = 0;  // positions of each sequence; 0: as many as needed
    int batch = 512;  // tokens of one evaluation
    int sequences = 1;
    int threads = 1;
    int64_t memory = 0; // bytes that the process may allocate; 0: no limit
    ggml_type type_k = GGML_TYPE_F16;
    ggml_type type_v = GGML_TYPE_F16;
    std::set<int> layers; // empty: all
    bool every = false;   // every evaluation, not only the last one of the prompt and the very last
    bool without_flash_attn = false;
    bool walk = false;                // describe each tensor's values instead of writing attention ops
    bool on_device = false;           // the model runs on a CUDA device
    std::set<std::string> device_ops; // ggml's names of the ops for the device; with walk, the CPU runs them too
};

inline ggml_type parse_type(const std::string &name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char *known = ggml_type_name(ggml_type(i));
        if (known != nullptr && name == known) {
            return ggml_type(i);
        }
    }
    throw InputError("this llama.cpp has no type " + name);
}

inline int64_t parse_number(const std::string &flag, const std::string &text) {
    char *end = nullptr;
    const long long value = std::strtoll(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || value < 0) {
        throw InputError(flag + ": expected a number, found '" + text + "'");
    }
    return value;
}

// Sets the numeric option of a flag; false if there is none.
inline bool parse_numbers(Options &options, const std::string &flag, const std::string &value) {
    int *const place = flag == "--tokens"      ? &options.tokens
                       : flag == "--generate"  ? &options.generate
                       : flag == "--context"   ? &options.context
                       : flag == "--batch"     ? &options.batch
                       : flag == "--sequences" ? &options.sequences
                       : flag == "--threads"   ? &options.threads
                                               : nullptr;
    if (place != nullptr) {
        *place = int(parse_number(flag, value));
    } else if (flag == "--layer") {
        options.layers.insert(int(parse_number(flag, value)));
    } else if (flag == "--seed") {
        options.seed = uint32_t(parse_number(flag, value));
    } else if (flag == "--memory") {
        options.memory = parse_number(flag, value);
    } else {
        return false;
    }
    return true;
}

inline Options parse_options(int argc, char **argv) {
    if (argc < 3) {
        throw InputError("usage: fattn-capture model.gguf raw.bin [--prompt FILE | --tokens N] ...");
    }
    Options options;
    options.model_path = argv[1];
    options.raw_path = argv[2];
    for (int i = 3; i < argc; i++) {
        const std::string flag = argv[i];
        if (bool *const set = flag == "--every"           ? &options.every
                              : flag == "--no-flash-attn" ? &options.without_flash_attn
                              : flag == "--walk"          ? &options.walk
                              : flag == "--on-device"     ? &options.on_device
                                                          : nullptr) {
            *set = true;
            continue;
        }
        if (i + 1 == argc) {
            throw InputError(flag + ": unknown, or its value is missing");
        }
        const std::string value = argv[++i];
        if (flag == "--prompt") {
            options.prompt_path = value;
        } else if (flag == "--device-op") {
            options.device_ops.insert(value);
        } else if (flag == "--type-k") {
            options.type_k = parse_type(value);
        } else if (flag == "--type-v") {
            options.type_v = parse_type(value);
        } else if (!parse_numbers(options, flag, value)) {
            throw InputError(flag + ": unknown option");
        }
    }
    return options;
}
