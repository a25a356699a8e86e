// Many cases in one process, so that the GPU is set up once.
//
// The runner prints `fattn-runner: ready`, then reads lines `case.gguf<TAB>out.gguf[<TAB>selection.gguf]` from standard
// input, and answers each with `fattn-runner: done` on standard output once out.gguf is written. Each case has its own
// backend, so no CUDA graph or memory pool is reused; with `--keep`, all share one backend. A failing case ends the
// process, as it would in its own process; with `--fork`, it ends only its child process (fork.h).
#pragma once

#include "fork.h"
#include "options.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <sys/prctl.h>
#include <vector>

inline void answer(const std::string &word) {
    std::printf("fattn-runner: %s\n", word.c_str());
    std::fflush(stdout);
}

// Ends this process with its parent, even if a case hangs.
inline void end_with_parent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

// The fields of a line; missing fields are empty.
inline std::vector<std::string> fields_of(const std::string &line, size_t count) {
    std::vector<std::string> fields;
    std::istringstream text(line);
    for (std::string field; std::getline(text, field, '\t');) {
        fields.push_back(field);
    }
    fields.resize(std::max(count, fields.size()));
    return fields;
}

template <typename Run> void each_of_batch(Options options, const Run &run) {
    end_with_parent();
    answer("ready");
    std::string line;
    while (std::getline(std::cin, line)) {
        if (line.find('\t') == std::string::npos) {
            throw Error("--batch: expected `case.gguf<TAB>out.gguf`, found '" + line + "'");
        }
        const std::vector<std::string> fields = fields_of(line, 5);
        options.case_path = fields[0];
        options.out_path = fields[1];
        options.selection_path = fields[2];
        if (!options.fork) {
            run(options);
            answer("done");
            continue;
        }
        answer(run_in_child(std::atoi(fields[3].c_str()), std::atof(fields[4].c_str()), [&] {
            end_with_parent();
            run(options);
        }));
    }
}
