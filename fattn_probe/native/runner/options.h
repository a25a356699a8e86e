// Command line of fattn-runner.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

// An error before or after the operator: printed as one line, exit status 1.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Options {
    std::string case_path;
    std::string out_path;
    std::string selection_path; // the blocks to run and parts of dst to read; empty: all
    std::string backend;        // ggml device name; empty: the first device
    int repeat = 1;
    int warmup = 0;
    int threads = 0; // 0: the backend's own default
    bool support_only = false;
    bool dry = false;   // only record launches: no tensor bytes, no kernel runs
    bool batch = false; // read cases from standard input, see batch.h
    bool keep = false;  // all cases of a batch on one backend, which keeps its memory pool
    bool fork = false;  // each case of a batch in a child process, see fork.h
};

inline const char *usage() {
    return "usage: fattn-runner case.gguf out.gguf [--backend NAME] [--repeat N] [--warmup N] [--threads N] "
           "[--support-only] [--dry] [--select selection.gguf]\n"
           "       fattn-runner --batch [--keep] [--backend NAME] ...   (lines "
           "`case.gguf<TAB>out.gguf[<TAB>selection.gguf]`)\n"
           "       fattn-runner --fork [--backend NAME] ...    (lines with "
           "`<TAB>selection.gguf<TAB>mutant<TAB>seconds`)";
}

inline int parse_count(const std::string &flag, const std::string &text, int least) {
    char *end = nullptr;
    const long value = std::strtol(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || value < least || value > 1000000) {
        throw Error(flag + ": expected a number of at least " + std::to_string(least) + ", found '" + text + "'");
    }
    return int(value);
}

inline Options parse_options(int argc, char **argv) {
    Options options;
    std::vector<std::string> paths;
    for (int i = 1; i < argc; i++) {
        const std::string word = argv[i];
        if (word.rfind("--", 0) != 0) {
            paths.push_back(word);
            continue;
        }
        if (bool *const set = word == "--support-only" ? &options.support_only
                              : word == "--dry"        ? &options.dry
                              : word == "--keep"       ? &options.keep
                                                       : nullptr) {
            *set = true;
            continue;
        }
        if (word == "--batch" || word == "--fork") {
            options.batch = true;
            options.fork = options.fork || word == "--fork";
            continue;
        }
        if (i + 1 == argc) {
            throw Error(word + ": unknown, or its value is missing\n" + usage());
        }
        const std::string value = argv[++i];
        if (word == "--backend") {
            options.backend = value;
        } else if (word == "--select") {
            options.selection_path = value;
        } else if (word == "--repeat") {
            options.repeat = parse_count(word, value, 1);
        } else if (word == "--warmup") {
            options.warmup = parse_count(word, value, 0);
        } else if (word == "--threads") {
            options.threads = parse_count(word, value, 1);
        } else {
            throw Error(word + ": unknown option\n" + usage());
        }
    }
    if (paths.size() != (options.batch ? 0 : 2)) {
        throw Error(usage());
    }
    if (!options.batch) {
        options.case_path = paths[0];
        options.out_path = paths[1];
    }
    return options;
}
