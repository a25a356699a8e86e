// Which accesses the checker passes over: most of them, so this is inlined into the functions that the compiler calls.
#pragma once

#include "worker.h"

#include <cstddef>

namespace simt {

// Host code; local variables and the simulator's own memory; this thread's variables, such as threadIdx, which lie
// around `self`.
inline bool is_unchecked(const void *address) {
    constexpr ptrdiff_t reach = 4096;
    const ptrdiff_t distance = static_cast<const char *>(address) - reinterpret_cast<const char *>(&self);
    return (distance > -reach && distance < reach) || self == nullptr || worker->owns(address);
}

} // namespace simt
