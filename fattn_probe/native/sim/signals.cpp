#include "finding.h"
#include "host_memory.h"
#include "stack_marks.h"
#include "worker.h"

#include <algorithm>
#include <csignal>
#include <dlfcn.h>
#include <execinfo.h>
#include <string>
#include <ucontext.h>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace simt {
namespace {

Finding fault_at(const void *address) {
    if (worker->owns_stack(address)) {
        return {"stack-overflow", "the thread's stack overflowed (its local arrays do not fit in " +
                                      std::to_string((stack_bytes - guard_bytes) >> 10) + " KiB)"};
    }
    const char *start = worker->dynamic_memory();
    const char *end = worker->shared_arena() + Worker::arena_bytes;
    if (address >= end && address < end + guard_bytes) {
        return {"out-of-bounds", "byte " + std::to_string(static_cast<const char *>(address) - start) +
                                     " of the dynamic shared memory is accessed, but it has only " +
                                     std::to_string(end - start) + " bytes"};
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

// A handler's notes on a fault. The interrupted code may hold a lock, for example malloc's, so the handler neither
// allocates nor locks: after its return, the thread continues in `report_crash`, on a separate stack.
struct Crash {
    const void *address;
    void *pc;
    bool misaligned;
    bool noting;      // the frames, which may crash again where the kernel has overwritten its stack
    void *frames[64]; // innermost first; as `call_stack` gives them
    void **first, **last;
};
SIMT_THREAD_LOCAL Crash crash;
SIMT_THREAD_LOCAL char *report_stack = nullptr;
constexpr size_t report_stack_bytes = 256 << 10, handler_stack_bytes = 64 << 10;

// The stack of the interrupted code, without the handler's own frames.
void note_frames() {
    crash.noting = true;
    crash.first = crash.frames;
    crash.last = crash.frames + backtrace(crash.frames, 64);
    crash.noting = false;
    std::transform(crash.first, crash.last, crash.first, [](void *frame) { return static_cast<char *>(frame) - 1; });
    void **found = std::find(crash.first, crash.last, static_cast<char *>(crash.pc) - 1);
    if (found != crash.last) {
        *found = crash.pc;
        crash.first = found;
    }
}

// Called when the report of a finding has crashed: it starts again on this stack, first with the frames of the crash,
// which include the same place in the kernel, then without frames.
[[noreturn]] void report_again() {
    constexpr int most = 2;
    if (++report_in_progress.crashes > most) {
        fail("a finding cannot be reported: " + report_in_progress.finding->message);
    }
    Finding finding = *std::exchange(report_in_progress.finding, nullptr);
    if (report_in_progress.crashes == most) {
        finding.stack = finding.earlier = {nullptr};
    } else if (finding.stack.empty()) {
        finding.stack = Stack(crash.first, crash.last);
    }
    report(finding);
}

[[noreturn]] void report_crash() {
    enter_stack(report_stack, report_stack_bytes);
    if (report_in_progress.finding != nullptr) {
        report_again();
    }
    Finding finding =
        crash.misaligned
            ? Finding{"misaligned", "a vector is accessed at an address that is not a multiple of its size"}
            : fault_at(crash.address);
    finding.stack = Stack(crash.first, crash.last);
    report(finding);
}

// When the handler has returned, the thread runs `function`, which must not return, on the stack below `top`.
void continue_in(void *context, void (*function)(), char *top) {
    mcontext_t &machine = static_cast<ucontext_t *>(context)->uc_mcontext;
#if defined(__x86_64__)
    auto *frame = reinterpret_cast<uint64_t *>(top) - 1; // aligned as after a call
    *frame = 0;
    machine.gregs[REG_RSP] = reinterpret_cast<greg_t>(frame);
    machine.gregs[REG_RIP] = reinterpret_cast<greg_t>(function);
#else
    machine.regs[30] = 0;
    machine.sp = reinterpret_cast<uintptr_t>(top);
    machine.pc = reinterpret_cast<uintptr_t>(function);
#endif
}

bool are_of_one_module(const void *a, const void *b) {
    Dl_info first, second;
    return dladdr(a, &first) != 0 && dladdr(b, &second) != 0 && first.dli_fbase == second.dli_fbase;
}

// Whether a library function, usually called for a report, may continue if it needs more stack than is left. The
// function may hold a lock that the report of an overflow needs, so it gets some room, once.
bool can_go_on(const void *pc, const void *address) {
    const bool of_kernel = are_of_one_module(pc, reinterpret_cast<const void *>(worker->launch->run));
    return (!of_kernel || report_in_progress.finding != nullptr) && worker->give_room_at(address);
}

struct sigaction previous_segv, previous_bus;

void on_signal(int number, siginfo_t *info, void *context) {
    if (self == nullptr) {
        sigaction(number, number == SIGSEGV ? &previous_segv : &previous_bus, nullptr);
        return; // the faulting instruction runs again, and ends the process as without this handler
    }
    if (crash.noting) { // only the place of the crash is known
        crash.noting = false;
        crash.frames[0] = crash.pc;
        crash.last = crash.frames + 1;
    } else {
        crash.pc = program_counter(context);
        if (can_go_on(crash.pc, info->si_addr)) {
            return;
        }
        crash.misaligned = is_misaligned(number, *info);
        crash.address = info->si_addr;
        note_frames();
    }
    unmark_stack(report_stack, report_stack_bytes);
    continue_in(context, report_crash, report_stack + report_stack_bytes);
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

void catch_signals() {
    static const bool once = [] {
        call_stack(); // the first call of backtrace() allocates and locks, later ones do not
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER; // noting the frames may crash
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
    if (report_stack != nullptr) {
        return;
    }
    report_stack = static_cast<char *>(map_pages(report_stack_bytes));
#if !defined(__SANITIZE_ADDRESS__) // AddressSanitizer gives every thread such a stack itself
    stack_t alternative = {};
    alternative.ss_sp = map_pages(handler_stack_bytes);
    alternative.ss_size = handler_stack_bytes;
    sigaltstack(&alternative, nullptr);
#endif
}

} // namespace simt
