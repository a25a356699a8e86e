#include "check.h"

#include "check_global.h"
#include "check_quick.h"
#include "check_shared.h"
#include "finding.h"
#include "host_memory.h"
#include "overwrite.h"
#include "ptx.h"
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

bool is_shared(const char *address) {
    return address >= worker->shared_arena() && address < worker->shared_arena() + Worker::arena_bytes + guard_bytes;
}

// The kernel's arguments, where the launch has put them.
bool is_argument(const char *address) {
    const auto *start = static_cast<const char *>(worker->launch->call);
    return address >= start && address < start + worker->launch->call_bytes;
}

// Memory outside of every allocation: constants of a module, pinned memory, or what no GPU can access.
void check_elsewhere(const char *address, size_t bytes) {
    constexpr size_t pages = 64;
    static SIMT_THREAD_LOCAL uintptr_t fine[pages]; // numbers of pages that hold nothing but such constants
    const uintptr_t page = reinterpret_cast<uintptr_t>(address) >> 12;
    if (fine[page % pages] == page || is_argument(address)) {
        return;
    }
    if (const Allocation *allocation = find_allocation(address)) {
        const bool behind = allocation->live && address >= allocation->start;
        const char *end = allocation->start + allocation->bytes;
        report({kind_of_fault(address), describe_fault(behind && address < end ? end : address)});
    }
    if (is_host_memory(address)) {
        report(
            {"host-memory", std::to_string(bytes) +
                                " bytes of host memory are accessed, which this GPU cannot (cudaErrorIllegalAddress)"});
    }
    fine[page % pages] = page;
}

} // namespace

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

void check_access(const void *pointer, size_t bytes, AccessKind kind) {
    const char *address = static_cast<const char *>(pointer);
    if (is_unchecked(address)) {
        return;
    }
    settle_overwrite(kind != AccessKind::read);
    worker->stop_if_after_fault();
    if (is_shared(address)) {
        check_shared(address, bytes, kind);
    } else if (GlobalShadow *shadow = global_shadow(address, bytes)) {
        check_global(*shadow, address, bytes, kind);
    } else {
        check_elsewhere(address, bytes);
    }
}

void report_misaligned(size_t bytes) {
    report({"misaligned", "an access of " + std::to_string(bytes) + " bytes at an address that is not a multiple of " +
                              std::to_string(bytes)});
}

void note_read(const void *address, size_t bytes) { check_access(address, bytes, AccessKind::read); }
void note_write(const void *address, size_t bytes) { check_access(address, bytes, AccessKind::write); }

void check_pending() { settle_overwrite(true); }

#endif

} // namespace simt
