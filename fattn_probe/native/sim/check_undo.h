// Keeps the memory that a launch overwrites, so that it can start again (attempt.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <initializer_list>

namespace simt {

struct Part {
    void *start;
    size_t bytes;
};

// Keeps some memory that the running thread is about to change, unless `kept` says that a thread of the attempt has
// already kept it.
void keep_parts(std::atomic<bool> &kept, std::initializer_list<Part> parts);

// Keeps only these bytes, because neighbouring bytes may belong to the host.
void keep_bytes(const void *address, size_t bytes);

// Restore the memory from before the attempt, or discard the kept copies.
void undo_writes();
void forget_writes();

} // namespace simt
