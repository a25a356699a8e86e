// A fault in a kernel: reported once, with its place, and the process ends with status 86.
//
// The reported fault is the first in block order, then thread order, then program order, not the first in time:
// - a thread with a fault stops, and threads of its block with lower numbers run on as far as they can without it;
// - then the block waits for earlier blocks on other host threads. If one of them has a fault, that fault is reported.
// Without a fault, this costs nothing. Findings of AddressSanitizer and UndefinedBehaviorSanitizer end the process at
// once, because these hold locks while they report.
#pragma once

#include "thread.h"

#include <string>
#include <vector>

namespace simt {

// Addresses inside the calling instructions, innermost first.
using Stack = std::vector<void *>;
Stack call_stack();

struct Finding {
    const char *kind;
    std::string message;
    const Fiber *fiber = self; // the thread with the fault; nullptr in host code
    Stack stack = {};          // the place of the fault; if empty, the caller's
    Stack earlier = {};        // the other place of a race, or of diverged lanes
    const char *kernel = "";   // in host code, the signature of the kernel that was to be launched
};

// For the checker: reports a race whose write is now complete.
void check_pending();

// Reports a fault of the running thread and stops the thread; in host code it ends the process.
[[noreturn]] void report(const Finding &finding);

// The finding that this host thread is reporting. Reporting may crash, because the faulting thread may have no room
// left on its stack. The report is then repeated on another stack (signals.cpp), with less information each time.
struct Report {
    const Finding *finding = nullptr;
    int crashes = 0;
};
extern SIMT_THREAD_LOCAL Report report_in_progress;

// The finding as `report` prints it: {json}, whose `frames` are "module+0xoffset" for addr2line.
std::string json_of(const Finding &finding);

// Prints `fattn-probe: finding: {json}` on stderr, or into the file for it, and ends the process.
[[noreturn]] void end_with(const std::string &json);

// Ends the process for an error in the setup, not in a kernel.
[[noreturn]] void fail(const std::string &message);

std::string json_string(const std::string &text);

// Three numbers: "4x2x1", "0,3,1".
std::string text_of(dim3 numbers, const char *between);
// The index of block or thread `number` out of `size`, counted x fastest.
dim3 place_in(dim3 size, uint64_t number);

// From now on a SIGSEGV, a SIGBUS or a sanitizer's report in a kernel becomes a finding.
void catch_signals();
void catch_signals_on_this_thread();

} // namespace simt
