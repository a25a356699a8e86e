// A fault in a kernel: said once, with where it is, and the process ends with status 86.
#pragma once

#include "thread.h"

#include <string>

namespace simt {

struct Finding {
    const char *  kind;
    std::string   message;
    const Fiber * fiber = self;  // whose fault it is; nullptr in host code
};

// Prints `fattn-probe: finding: {json}` on stderr and ends the process. The stack is that of the caller; `frames` are
// return addresses as "module+0xoffset" for addr2line.
[[noreturn]] void report(const Finding & finding);

// An error of the set-up, not of a kernel.
[[noreturn]] void fail(const std::string & message);

std::string json_string(const std::string & text);

// From now on a SIGSEGV or SIGBUS in a kernel is reported as a finding.
void catch_signals();
void catch_signals_on_this_thread();

}  // namespace simt
