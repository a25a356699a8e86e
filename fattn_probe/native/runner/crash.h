// Reports a fatal signal: prints the stack of the interrupted code for addr2line, one line per frame.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#if !defined(__SANITIZE_ADDRESS__) // AddressSanitizer reports crashes itself

// Prints `fattn-runner: frame MODULE+0xOFFSET`, innermost first, and lets the signal end the process.
inline void report_crash(int number) {
    constexpr int own = 2; // this function, and the system's frame that called it
    void *frames[64];
    const int count = backtrace(frames, 64);
    for (int i = own; i < count; i++) {
        // The interrupted instruction; for its callers, an address inside the call, not after it.
        const char *const address = static_cast<char *>(frames[i]) - (i == own ? 0 : 1);
        Dl_info info;
        char text[1024];
        if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
            continue;
        }
        const int length = snprintf(text, sizeof(text), "fattn-runner: frame %s+0x%zx\n", info.dli_fname,
                                    static_cast<size_t>(address - static_cast<char *>(info.dli_fbase)));
        if (write(STDERR_FILENO, text, std::min(static_cast<size_t>(length), sizeof(text) - 1)) < 0) {
            break;
        }
    }
    signal(number, SIG_DFL);
    raise(number); // when this handler returns
}

inline void report_crashes() {
    static char memory[64 << 10]; // its own stack: the interrupted one may have overflowed
    void *first[1];
    backtrace(first, 1); // the first call allocates, later ones do not
    stack_t stack = {};
    stack.ss_sp = memory;
    stack.ss_size = sizeof(memory);
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_handler = report_crash;
    action.sa_flags = SA_ONSTACK;
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
        sigaction(number, &action, nullptr);
    }
}

#else
inline void report_crashes() {}
#endif
