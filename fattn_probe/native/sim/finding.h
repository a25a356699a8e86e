// A fault in a kernel: said once, with where it is, and the process ends with status 86.
#pragma once

#include "thread.h"

#include <string>
#include <vector>

namespace simt {

// Addresses within the instructions that called, the innermost first.
using Stack = std::vector<void *>;
Stack call_stack();

struct Finding {
    const char *kind;
    std::string message;
    const Fiber *fiber = self; // whose fault it is; nullptr in host code
    Stack stack = {};          // where it happened; if empty, the caller's
};

// Prints `fattn-probe: finding: {json}` on stderr and ends the process; `frames` are "module+0xoffset" for addr2line.
[[noreturn]] void report(const Finding &finding);

// An error of the set-up, not of a kernel.
[[noreturn]] void fail(const std::string &message);

std::string json_string(const std::string &text);

// From now on a SIGSEGV or SIGBUS in a kernel is reported as a finding, as is what a sanitizer finds in one.
void catch_signals();
void catch_signals_on_this_thread();

} // namespace simt
