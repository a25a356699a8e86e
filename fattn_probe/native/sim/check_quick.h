// Which accesses the checker passes over. Nearly all that kernels make are to local variables, so that test is inlined
// where it is made, and is short.
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

// Many addresses at once: their distances from the start, combined by `|`, are no less than the largest.
template <class... Ts> SIMT_PART inline bool are_local(const Ts *...addresses) {
    return ((reinterpret_cast<uintptr_t>(addresses) - passed_over.start) | ...) < passed_over.bytes;
}

// A kernel may name any memory as the registers of an instruction; mostly it names local variables.
template <class... Ts> SIMT_PART inline void check_registers(AccessKind kind, const Ts &...registers) {
    if (__builtin_expect(!are_local(&registers...), 0)) {
        (check_access(&registers, sizeof(registers), kind), ...);
    }
}

#else
template <class... Ts> inline void check_registers(AccessKind, const Ts &...) {}
#endif

} // namespace simt
