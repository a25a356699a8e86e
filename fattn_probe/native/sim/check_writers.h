// The last writers of global memory: kernels, by word of an allocation, and transfers that the host has not waited for.
#pragma once

#include "check.h"

#include <cstddef>
#include <cstdint>

namespace simt {

struct Transfer;

// The last kernel that wrote a word, its last block that wrote it (in the order of one host thread), and the place.
struct Writer {
    struct alignas(8) Thread {
        uint32_t block;
        uint16_t number; // and whether it was atomic
        uint16_t bytes;  // a bit for each that the kernel wrote
    };
    uint64_t place_and_kernel; // the address of the access (48 bits), and the operation's number; 0: none
    Thread thread;

    uint16_t kernel() const { return place_and_kernel & 0xFFFF; }
};

// Checks an access of the running thread to some bytes of an allocation. Reports the access if an operation that may
// still run writes one of these bytes. If the access is a write, it counts as the last one from now on.
void check_order(Writer *writers, const char *allocation, size_t start, size_t bytes, AccessKind kind,
                 const void *place);

// A transfer begins. `writers_of` returns the writers and the start of the allocation in which memory lies.
struct Written {
    Writer *writers = nullptr;
    const char *allocation = nullptr;
};
void check_transfer(const Transfer &transfer, Written to, Written from);

// An earlier kernel of a model's graph writes this memory. The kernel gets its number when it is queued.
void check_written_before(const void *memory, size_t bytes);
void number_announced(uint16_t number);

// Forgets all writers, so that operations can be counted anew.
void forget_writers();
void forget_transfers(const char *start, size_t bytes);

} // namespace simt
