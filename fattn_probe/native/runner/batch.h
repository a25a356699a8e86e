// Many cases in one process, so that the GPU is set up once.
//
// A line `case.gguf<TAB>out.gguf` of standard input is answered by the line `fattn-runner: done` of standard output
// once out.gguf is there; `fattn-runner: ready` comes before the first. Each case has a backend of its own: no CUDA
// graph and no pool of memory is left over from the one before. A case that fails ends the process, as it would alone.
#pragma once

#include "options.h"

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
    prctl(PR_SET_PDEATHSIG, SIGKILL); // a case that hangs does not outlive who waits for it
#endif
    answer("ready");
    std::string line;
    while (std::getline(std::cin, line)) {
        const size_t tab = line.find('\t');
        if (tab == std::string::npos) {
            throw Error("--batch: expected `case.gguf<TAB>out.gguf`, found '" + line + "'");
        }
        options.case_path = line.substr(0, tab);
        options.out_path = line.substr(tab + 1);
        run(options);
        answer("done");
    }
}
