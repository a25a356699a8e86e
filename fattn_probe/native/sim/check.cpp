#include "check.h"

#include "attempt.h"
#include "check_memory.h"
#include "check_order.h"
#include "check_quick.h"
#include "check_undo.h"
#include "finding.h"
#include "host_memory.h"
#include "ptx.h"
#include "symbols.h"
#include "worker.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace simt {

#if !defined(SIMT_CHECK)

void note_read(const void *, size_t) {}
void note_write(const void *, size_t) {}
void check_pending() {}

#else

namespace {

struct Overwrite {
    Finding finding;
    const char *address;
    std::vector<char> before;
};

SIMT_THREAD_LOCAL Overwrite *pending = nullptr;

constexpr PassedOver in_host_code = {0, SIZE_MAX};

// Whether an address is the simulator's own memory, or a variable of this host thread, such as threadIdx, near `self`.
bool is_simulator_s(const void *address) {
    constexpr ptrdiff_t reach = 4096;
    const ptrdiff_t distance = static_cast<const char *>(address) - reinterpret_cast<const char *>(&self);
    return (distance > -reach && distance < reach) || worker->owns(address);
}

bool is_shared(const char *address) {
    return address >= worker->shared_arena() && address < worker->shared_arena() + Worker::arena_bytes + guard_bytes;
}

// Whether an address is in the launch's captured data: the kernel and its arguments.
bool is_of_launch(const char *address) {
    const auto *start = static_cast<const char *>(worker->launch->call);
    return address >= start && address < start + worker->launch->call_bytes;
}

// Checks an access outside all allocations: module constants, pinned memory, the device heap, or inaccessible memory.
void check_elsewhere(const char *address, size_t bytes) {
    constexpr size_t pages = 64;
    static SIMT_THREAD_LOCAL uintptr_t fine[pages]; // numbers of pages with such constants only
    const uintptr_t page = reinterpret_cast<uintptr_t>(address) >> 12;
    if (fine[page % pages] == page) {
        return;
    }
    const SymbolAccess lies = check_symbols(address, bytes);
    if (lies == SymbolAccess::within) {
        return;
    }
    if (const Allocation *allocation = find_allocation(address)) {
        const bool behind = allocation->live && address >= allocation->start;
        const char *end = allocation->start + allocation->bytes;
        report({kind_of_fault(address), describe_fault(behind && address < end ? end : address)});
    }
    if (const HeapBlock block = heap_block_at(address); block.start != nullptr) {
        if (!block.live || address < block.start || address + bytes > block.start + block.bytes) {
            report({block.live ? "out-of-bounds" : "use-after-free",
                    "global memory is accessed " + name_heap_byte(block, address)});
        }
        return;
    }
    if (is_host_memory(address)) {
        report({"host-memory",
                std::to_string(bytes) +
                    " bytes of host memory are accessed, but this GPU cannot access it (cudaErrorIllegalAddress)"});
    }
    if (lies == SymbolAccess::elsewhere) {
        fine[page % pages] = page;
    }
}

// Completes the pending checks of earlier accesses before an access of this thread.
void settle(AccessKind kind) {
    if (__builtin_expect(attempt.doubtful.load(std::memory_order_relaxed), 0)) {
        worker->leave_attempt();
    }
    if (__builtin_expect(pending != nullptr || worker->has_fault(), 0)) {
        settle_overwrite(kind != AccessKind::read);
        worker->stop_if_after_fault();
    }
}

} // namespace

SIMT_THREAD_LOCAL PassedOver passed_over = in_host_code;

void check_new_block() {
    passed_over = {reinterpret_cast<uintptr_t>(worker->stacks()), Worker::threads_bytes};
    check_new_block_of_launch();
}

void check_end_of_block() {
    passed_over = in_host_code;
    end_block_of_kernel();
    settle_overwrite(true);
}

void note_overwrite(Finding finding, const char *address, size_t bytes) {
    finding.stack = call_stack();
    pending = new Overwrite{std::move(finding), address, {address, address + bytes}};
}

void settle_overwrite(bool write) {
    if (__builtin_expect(pending == nullptr, 1) || (self == pending->finding.fiber && !write)) {
        return;
    }
    const std::unique_ptr<Overwrite> overwrite(std::exchange(pending, nullptr));
    if (memcmp(overwrite->address, overwrite->before.data(), overwrite->before.size()) != 0) {
        worker->note_fault(overwrite->finding);
    }
}

void check_access(const void *pointer, size_t bytes, AccessKind kind, const void *place) {
    const char *address = static_cast<const char *>(pointer);
    if (are_local(address)) {
        return;
    }
    if (is_shared(address)) {
        settle(kind);
        check_shared(address, bytes, kind);
    } else if (GlobalShadow *shadow = global_shadow(address, bytes)) {
        settle(kind);
        check_global(*shadow, address, bytes, kind, place != nullptr ? place : __builtin_return_address(0));
    } else if (!is_of_launch(address) && !is_simulator_s(address)) {
        settle(kind);
        check_elsewhere(address, bytes);
        if (kind != AccessKind::read && attempt.shared) {
            keep_bytes(address, bytes);
        }
    }
}

void check_misaligned(const void *address, size_t bytes) {
    if (!is_simulator_s(address)) {
        report({"misaligned", "an access of " + std::to_string(bytes) +
                                  " bytes at an address that is not a multiple of " + std::to_string(bytes)});
    }
}

void note_read(const void *address, size_t bytes) {
    check_access(address, bytes, AccessKind::read, __builtin_return_address(0));
}
void note_write(const void *address, size_t bytes) {
    check_access(address, bytes, AccessKind::write, __builtin_return_address(0));
}

void check_pending() { settle_overwrite(true); }

#endif

} // namespace simt
