// A fault in a kernel: reported once, with its place, and the process ends with status 86.
//
// The fault that is reported is the first in order of blocks, then threads, then the program, whichever came up first:
// - a thread with a fault stops, and threads of its block with lower numbers run on as far as they can without it;
// - then the block waits for the blocks before it that other host threads run. One with a fault ends the process.
// Without a fault this costs nothing. What AddressSanitizer and UndefinedBehaviorSanitizer find ends the process at
// once: they hold locks while they report.
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

// A fault of the running thread, which does not go on; in host code it ends the process.
[[noreturn]] void report(const Finding &finding);

// The finding as `report` prints it: {json}, whose `frames` are "module+0xoffset" for addr2line.
std::string json_of(const Finding &finding);

// Prints `fattn-probe: finding: {json}` on stderr and ends the process.
[[noreturn]] void end_with(const std::string &json);

// An error of the set-up, not of a kernel.
[[noreturn]] void fail(const std::string &message);

std::string json_string(const std::string &text);

// From now on a SIGSEGV or SIGBUS in a kernel is reported as a finding, as is what a sanitizer finds in one.
void catch_signals();
void catch_signals_on_this_thread();

} // namespace simt
