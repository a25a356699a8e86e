// Many cases in one process, so that the GPU is set up once.
//
// The runner prints `fattn-runner: ready`, then reads lines `case.gguf<TAB>out.gguf` from standard input, perhaps
// with `<TAB>selection.gguf`, and answers each with `fattn-runner: done` on standard output once out.gguf is written.
// Each case has its own backend, so no CUDA graph or memory pool is reused. A case that fails ends the process, as it
// would alone.
#pragma once

#include "options.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>

#if defined(__linux__)
#include <sys/prctl.h>
#endif

inline void answer(const char *word) {
    std::printf("fattn-runner: %s\n", word);
    std::fflush(stdout);
}

template <typename Run> void each_of_batch(Options options, const Run &run) {
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL); // a case that hangs ends with the parent process
#endif
    answer("ready");
    std::string line;
    while (std::getline(std::cin, line)) {
        const size_t tab = line.find('\t');
        if (tab == std::string::npos) {
            throw Error("--batch: expected `case.gguf<TAB>out.gguf`, found '" + line + "'");
        }
        const size_t second = std::min(line.find('\t', tab + 1), line.size());
        options.case_path = line.substr(0, tab);
        options.out_path = line.substr(tab + 1, second - tab - 1);
        options.selection_path = line.substr(std::min(second + 1, line.size()));
        run(options);
        answer("done");
    }
}
