// Runs a case in a child process: a crash, a hang or an exit ends only the child; the next case needs no new setup.
#pragma once

#include "options.h"

#include <cstdio>
#include <string>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

// Defined in a library with faults behind switches (native/sim/mutant.h); null in others.
extern "C" __attribute__((weak)) void fattn_probe_switch_on(int mutant);

inline double seconds_of(const timeval &time) { return double(time.tv_sec) + 1e-6 * double(time.tv_usec); }

// SIGPROF ends a child that takes more than `limit` seconds of CPU time (0: no limit).
inline void limit_seconds(double limit) {
    itimerval timer = {};
    timer.it_value.tv_sec = time_t(limit);
    timer.it_value.tv_usec = suseconds_t(1e6 * (limit - double(timer.it_value.tv_sec)));
    setitimer(ITIMER_PROF, &timer, nullptr);
}

// Calls `run` in a child process with a mutant switched on (0: none). The child's output goes to standard error,
// because standard output carries this process's answers. Returns `ended`, the exit code (negative for a signal), and
// the CPU time in seconds.
template <typename Run> std::string run_in_child(int mutant, double limit, const Run &run) {
    if (mutant != 0 && fattn_probe_switch_on == nullptr) {
        throw Error("--fork: this build has no switches for mutants");
    }
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid < 0) {
        throw Error("--fork: there can be no more processes");
    }
    if (pid == 0) {
        dup2(STDERR_FILENO, STDOUT_FILENO);
        limit_seconds(limit);
        int code = 0;
        try {
            if (mutant != 0) {
                fattn_probe_switch_on(mutant);
            }
            run();
        } catch (const std::exception &error) {
            std::fprintf(stderr, "fattn-runner: %s\n", error.what());
            code = 1;
        }
        std::exit(code);
    }
    int status = 0;
    rusage used = {};
    wait4(pid, &status, 0, &used);
    const int code = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    return "ended " + std::to_string(code) + " " +
           std::to_string(seconds_of(used.ru_utime) + seconds_of(used.ru_stime));
}
