// What a launch has overwritten, so that it can begin again (attempt.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <initializer_list>

namespace simt {

struct Part {
    void *start;
    size_t bytes;
};

// Keeps some memory that the running thread is about to change, the first time that a thread of the attempt does so:
// `kept` tells.
void keep_parts(std::atomic<bool> &kept, std::initializer_list<Part> parts);

// Keeps just these bytes: those beside them may be the host's.
void keep_bytes(const void *address, size_t bytes);

// Puts everything back as it was before the attempt, or forgets what it was.
void undo_writes();
void forget_writes();

} // namespace simt
