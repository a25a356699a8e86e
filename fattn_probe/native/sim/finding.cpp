#include "finding.h"

#include "environment.h"
#include "host_memory.h"
#include "worker.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <execinfo.h>
#include <mutex>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

// From UndefinedBehaviorSanitizer's library, which has no header; null if it is not linked.
extern "C" __attribute__((weak)) void __ubsan_get_current_report_data(const char **, const char **, const char **,
                                                                      unsigned *, unsigned *, char **);

namespace simt {
namespace {

std::string json_triple(uint32_t x, uint32_t y, uint32_t z) {
    return "[" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + "]";
}

std::string json_frames(const Stack &stack) {
    std::string frames;
    for (void *address : stack) {
        Dl_info info;
        if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
            continue;
        }
        char text[600];
        snprintf(text, sizeof(text), "%s+0x%zx", info.dli_fname,
                 static_cast<size_t>(static_cast<char *>(address) - static_cast<char *>(info.dli_fbase)));
        frames += (frames.empty() ? "" : ",") + json_string(text);
    }
    return "[" + frames + "]";
}

Finding fault_at(const void *address) {
    if (worker->owns_stack(address)) {
        return {"stack-overflow", "the thread's stack overflowed (its local arrays do not fit in " +
                                      std::to_string((stack_bytes - guard_bytes) >> 10) + " KiB)"};
    }
    const char *start = worker->dynamic_memory();
    const char *end = worker->shared_arena() + Worker::arena_bytes;
    if (address >= end && address < end + guard_bytes) {
        return {"out-of-bounds", "byte " + std::to_string(static_cast<const char *>(address) - start) +
                                     " of the dynamic shared memory is accessed, which has " +
                                     std::to_string(end - start)};
    }
    return {kind_of_fault(address), describe_fault(address)};
}

// x86-64 reports a misaligned vector access as a general protection fault, which has no address.
bool is_misaligned(int number, const siginfo_t &info) {
#if defined(__x86_64__)
    return number == SIGSEGV && info.si_code == SI_KERNEL && info.si_addr == nullptr;
#else
    return number == SIGBUS && info.si_code == BUS_ADRALN;
#endif
}

void *program_counter(const void *context) {
    const mcontext_t &machine = static_cast<const ucontext_t *>(context)->uc_mcontext;
#if defined(__x86_64__)
    return reinterpret_cast<void *>(machine.gregs[REG_RIP]);
#else
    return reinterpret_cast<void *>(machine.pc);
#endif
}

// The stack of the interrupted code, without the handler's own frames.
Stack interrupted_stack(void *pc) {
    Stack stack = call_stack();
    const auto found = std::find(stack.begin(), stack.end(), static_cast<char *>(pc) - 1);
    if (found == stack.end()) {
        return stack;
    }
    *found = pc;
    return {found, stack.end()};
}

struct sigaction previous_segv, previous_bus;

void on_signal(int number, siginfo_t *info, void *context) {
    if (self == nullptr) {
        sigaction(number, number == SIGSEGV ? &previous_segv : &previous_bus, nullptr);
        return; // the faulting instruction runs again, and ends the process as without this handler
    }
    Finding finding =
        is_misaligned(number, *info)
            ? Finding{"misaligned", "a vector is accessed at an address that is not a multiple of its size"}
            : fault_at(info->si_addr);
    finding.stack = interrupted_stack(program_counter(context));
    report(finding);
}

#if defined(__SANITIZE_ADDRESS__)
// AddressSanitizer has printed its report: add the kernel and the thread.
void on_address_error(const char *text) {
    if (self != nullptr) {
        const std::string all = text;
        const size_t start = all.find("AddressSanitizer");
        end_with(json_of({"address", all.substr(start, all.find('\n', start) - start)}));
    }
}
#endif

} // namespace

std::string json_string(const std::string &text) {
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            quoted += '\\';
        }
        quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return quoted + "\"";
}

Stack call_stack() {
    void *addresses[64];
    const int count = backtrace(addresses, 64);
    Stack stack;
    for (int i = 0; i < count; i++) {
        stack.push_back(static_cast<char *>(addresses[i]) - 1); // inside the call, not after it
    }
    return stack;
}

std::string json_of(const Finding &finding) {
    std::string text = "{\"kind\":" + json_string(finding.kind) + ",\"message\":" + json_string(finding.message);
    if (finding.fiber != nullptr) {
        const uint3 thread = finding.fiber->thread_idx;
        text += ",\"kernel\":" + json_string(worker->launch->kernel.signature) +
                ",\"block\":" + json_triple(blockIdx.x, blockIdx.y, blockIdx.z) +
                ",\"thread\":" + json_triple(thread.x, thread.y, thread.z);
    }
    return text + ",\"frames\":" + json_frames(finding.stack.empty() ? call_stack() : finding.stack) + "}";
}

void report(const Finding &finding) {
    if (self == nullptr) {
        end_with(json_of(finding));
    }
    check_pending(); // an earlier race of this thread comes first
    worker->note_fault(finding);
    worker->stop_thread();
}

void end_with(const std::string &json) {
    static std::mutex only_one;
    only_one.lock(); // never unlocked: only the first finding is reported
    fflush(stdout);
    fprintf(stderr, "fattn-probe: finding: %s\n", json.c_str());
    fflush(stderr);
    _exit(86);
}

void fail(const std::string &message) {
    fprintf(stderr, "fattn-probe: simulator: %s\n", message.c_str());
    fflush(stderr);
    _exit(1);
}

void catch_signals() {
    static const bool once = [] {
        call_stack(); // the first call of backtrace() allocates, which a signal handler must not do
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(SIGSEGV, &action, &previous_segv);
        sigaction(SIGBUS, &action, &previous_bus);
#if defined(__SANITIZE_ADDRESS__)
        __asan_set_error_report_callback(on_address_error);
#endif
        return true;
    }();
    static_cast<void>(once);
}

void catch_signals_on_this_thread() {
#if !defined(__SANITIZE_ADDRESS__) // AddressSanitizer gives every thread such a stack itself
    static thread_local char stack[64 << 10];
    stack_t alternative = {};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof(stack);
    sigaltstack(&alternative, nullptr);
#endif
}

} // namespace simt

// UndefinedBehaviorSanitizer calls this for each of its findings; after one in host code the program continues.
extern "C" void __ubsan_on_report() {
    if (simt::self != nullptr) {
        const char *kind, *message, *file;
        unsigned line, column;
        char *address;
        __ubsan_get_current_report_data(&kind, &message, &file, &line, &column, &address);
        simt::end_with(simt::json_of({"undefined", std::string(message) + " in " + file + ":" + std::to_string(line)}));
    }
}
