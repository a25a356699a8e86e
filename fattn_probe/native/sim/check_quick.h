// The accesses that the checker skips. Nearly all accesses of kernels are to local variables, so this test is short and
// inlined.
#pragma once

#include "check.h"
#include "thread.h"
#include "unchecked.h"

#include <cstddef>
#include <cstdint>

namespace simt {

#if defined(SIMT_CHECK)

// The threads that the worker runs, and their stacks; in host code, all of memory.
struct PassedOver {
    uintptr_t start;
    size_t bytes;
};
extern SIMT_THREAD_LOCAL PassedOver passed_over;

// Many addresses at once: their distances from the start, combined with `|`, are at least the largest distance.
template <class... Ts> SIMT_PART inline bool are_local(const Ts *...addresses) {
    return ((reinterpret_cast<uintptr_t>(addresses) - passed_over.start) | ...) < passed_over.bytes;
}

// The registers of an instruction may be any memory in C++; mostly they are local variables.
template <class... Ts> SIMT_PART inline void check_registers(AccessKind kind, const Ts &...registers) {
    if (__builtin_expect(!are_local(&registers...), 0)) {
        (check_access(&registers, sizeof(registers), kind), ...);
    }
}

#else
template <class... Ts> inline void check_registers(AccessKind, const Ts &...) {}
#endif

} // namespace simt
