// The accesses of the blocks of a launch to each word of global memory.
#pragma once

#include "attempt.h"
#include "finding.h"
#include "thread.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace simt {

constexpr uint32_t several = (1u << 27) - 1, atomic_bit = 16, all_bytes = 15;
extern SIMT_THREAD_LOCAL uint32_t this_block; // counted from 1; 0 if the launch has only one

// Accesses to a word by blocks of the running launch: the block's number (27 bits), whether it was atomic, and which of
// the four bytes it touched; 0 is none.
struct alignas(8) WordCell {
    uint32_t writer; // the last block that wrote; in a shared attempt, the only one, or `several`
    uint32_t reader; // the block that read, or `several`
};

// Applies `change` to a cell that other host threads may change too; returns the old value.
template <class T, class Change> T update(T &cell, Change change) {
    static_assert(sizeof(T) == sizeof(uint64_t));
    T before, after;
    __atomic_load(&cell, &before, __ATOMIC_ACQUIRE);
    do {
        after = change(before);
        if (memcmp(&before, &after, sizeof(T)) == 0) {
            return before;
        }
        if (!attempt.shared) {
            cell = after;
            return before;
        }
    } while (!__atomic_compare_exchange(&cell, &before, &after, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return before;
}

// Calls `visit(cell, offset, bytes)` for the cells of `size` bytes in a range; `bytes` has a bit for each byte in the
// range.
template <size_t size, class Cell, class Visit> void visit_range(Cell *cells, size_t start, size_t stop, Visit visit) {
    for (size_t offset = start; offset < stop; offset = offset / size * size + size) {
        const size_t end = std::min(stop, offset / size * size + size);
        visit(cells[offset / size], offset, (1u << (end - offset)) - 1u << offset % size);
    }
}

// An access to the bytes of a word in `mask`.
struct GlobalAccess {
    const char *address;
    uint32_t mask;
    bool atomic;

    bool conflicts(uint32_t cell) const {
        return cell >> 5 != this_block && (cell & mask) != 0 && !(atomic && (cell & atomic_bit) != 0);
    }
};

void read_word(WordCell &cell, const GlobalAccess &access);

// The cell of another block's write that this write overwrites, or 0.
uint32_t write_word(WordCell &cell, const GlobalAccess &access);

// Records that one block or several have read a whole word; the number is in the upper 27 bits.
void join_reader(WordCell &cell, uint32_t reader);

void forget_parted_words();

// The finding that another block, or several, also access memory that this block accesses.
Finding race(const char *address, const char *what, uint32_t other, const char *does);

} // namespace simt
