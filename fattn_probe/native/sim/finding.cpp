#include "finding.h"

#include "environment.h"
#include "host_memory.h"
#include "worker.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <execinfo.h>
#include <mutex>
#include <unistd.h>

namespace simt {
namespace {

std::string json_triple(uint32_t x, uint32_t y, uint32_t z) {
    return "[" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + "]";
}

std::string json_frames() {
    void *      addresses[64];
    const int   count = backtrace(addresses, 64);
    std::string frames;
    for (int i = 0; i < count; i++) {
        Dl_info info;
        if (dladdr(addresses[i], &info) == 0 || info.dli_fname == nullptr) {
            continue;
        }
        char text[600];
        snprintf(text, sizeof(text), "%s+0x%zx", info.dli_fname,
                 static_cast<size_t>(static_cast<char *>(addresses[i]) - static_cast<char *>(info.dli_fbase)));
        frames += (frames.empty() ? "" : ",") + json_string(text);
    }
    return "[" + frames + "]";
}

std::string described_fault(const void * address) {
    if (worker->owns_stack(address)) {
        return "the thread's stack overflowed (its local arrays do not fit in " +
               std::to_string(Worker::stack_bytes >> 10) + " KiB)";
    }
    const char * start = worker->dynamic_memory();
    const char * end   = worker->shared_arena() + Worker::arena_bytes;
    if (address >= end && address < end + guard_bytes) {
        return "shared memory is accessed " + std::to_string(static_cast<const char *>(address) - end) +
               " bytes past its end (" + std::to_string(end - start) + " bytes of dynamic shared memory)";
    }
    return describe_address(address);
}

void on_signal(int number, siginfo_t * info, void *) {
    if (self == nullptr) {
        signal(number, SIG_DFL);
        return;  // the faulting instruction runs again and ends the process as if nothing had been here
    }
    report({"out-of-bounds", described_fault(info->si_addr)});
}

}  // namespace

std::string json_string(const std::string & text) {
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            quoted += '\\';
        }
        quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return quoted + "\"";
}

void report(const Finding & finding) {
    static std::mutex only_one;
    only_one.lock();  // never unlocked: the first finding is the one
    std::string text = "{\"kind\":" + json_string(finding.kind) + ",\"message\":" + json_string(finding.message);
    if (finding.fiber != nullptr) {
        const uint3 thread = finding.fiber->thread_idx;
        text += ",\"kernel\":" + json_string(worker->launch->kernel.signature) +
                ",\"block\":" + json_triple(blockIdx.x, blockIdx.y, blockIdx.z) +
                ",\"thread\":" + json_triple(thread.x, thread.y, thread.z);
    }
    text += ",\"frames\":" + json_frames() + "}";
    fflush(stdout);
    fprintf(stderr, "fattn-probe: finding: %s\n", text.c_str());
    fflush(stderr);
    _exit(86);
}

void fail(const std::string & message) {
    fprintf(stderr, "fattn-probe: simulator: %s\n", message.c_str());
    fflush(stderr);
    _exit(1);
}

void catch_signals() {
#if !defined(__SANITIZE_ADDRESS__)
    struct sigaction action = {};
    action.sa_sigaction     = on_signal;
    action.sa_flags         = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
#endif
}

void catch_signals_on_this_thread() {
    static thread_local char stack[64 << 10];
    stack_t                  alternative = {};
    alternative.ss_sp                    = stack;
    alternative.ss_size                  = sizeof(stack);
    sigaltstack(&alternative, nullptr);
}

}  // namespace simt
