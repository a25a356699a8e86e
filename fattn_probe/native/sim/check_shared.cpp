#include "check_shared.h"

#include "finding.h"
#include "host_memory.h"
#include "overwrite.h"
#include "worker.h"

#include <algorithm>
#include <cstdint>
#include <string>

#if defined(SIMT_CHECK)

namespace simt {
namespace {

// An access: the worker's barriers passed (26 bits), the warp's instructions executed (26), the thread (10), whether
// it is atomic, and whether it is the write of a pending cp.async. No access at all is 0.
struct Access {
    uint64_t bits = 0;

    static Access now(AccessKind kind) {
        return {static_cast<uint64_t>(worker->block.epoch) << 38 |
                static_cast<uint64_t>(self->warp->generation & (1u << 26) - 1) << 12 | self->thread_number() << 2 |
                (kind == AccessKind::atomic ? 2u : 0u)};
    }

    uint32_t thread() const { return bits >> 2 & 1023; }
    uint32_t warp() const { return thread() / warp_size; }
    bool atomic() const { return bits >> 1 & 1; }
    bool copying() const { return bits & 1; }
    bool of_this_block() const { return bits >> 38 >= worker->block.first_epoch; }
};

struct Cell {
    Access write;
    Access read;
    Access read_elsewhere; // the last read by another warp than that of `read`
};

// A cell for each word, and for each byte of the words that a block has accessed in parts.
struct Shadow {
    Cell words[Worker::arena_bytes / 4];
    Cell bytes[Worker::arena_bytes];
    uint32_t split_in[Worker::arena_bytes / 4]; // first_epoch of the last such block
};

Shadow &shadow() {
    static SIMT_THREAD_LOCAL Shadow *own = nullptr;
    if (__builtin_expect(own == nullptr, 0)) {
        own = static_cast<Shadow *>(map_pages(sizeof(Shadow)));
    }
    return *own;
}

bool unordered(Access earlier, Access later) {
    const uint64_t difference = earlier.bits ^ later.bits;
    if (difference >> 38 != 0 || earlier.thread() == later.thread() || (earlier.atomic() && later.atomic())) {
        return false;
    }
    return earlier.warp() != later.warp() || (difference & ~uint64_t{0} >> 26) >> 12 == 0;
}

// "byte 640 of the dynamic shared memory".
std::string name_place(size_t offset) {
    const auto dynamic = static_cast<size_t>(worker->dynamic_memory() - worker->shared_arena());
    return offset >= dynamic ? "byte " + std::to_string(offset - dynamic) + " of the dynamic shared memory"
                             : "byte " + std::to_string(offset) + " of the static shared memory";
}

Finding race(const char *what, Access earlier, size_t offset) {
    const uint3 thread = worker->thread(earlier.thread()).thread_idx;
    return {"race", name_place(offset) + " is " + what + " thread (" + std::to_string(thread.x) + "," +
                        std::to_string(thread.y) + "," + std::to_string(thread.z) + ") of warp " +
                        std::to_string(earlier.warp())};
}

void read_cell(Cell &cell, Access access, size_t offset) {
    if (!cell.write.of_this_block()) {
        report({"uninitialized-shared", name_place(offset) + " is read, and nobody has written it in this block"});
    }
    if (unordered(cell.write, access)) {
        report(race("read, with no barrier between, after a write by", cell.write, offset));
    }
    if (cell.read.warp() != access.warp()) {
        cell.read_elsewhere = cell.read;
    }
    cell.read = access;
}

// The write that this one overwrites, if they are a race unless the values are equal.
Access write_cell(Cell &cell, Access access, size_t offset) {
    for (const Access earlier : {cell.read, cell.read_elsewhere}) {
        if (unordered(earlier, access)) {
            report(race("overwritten, with no barrier between, after a read by", earlier, offset));
        }
    }
    const Access before = cell.write;
    cell.write = access;
    return unordered(before, access) ? before : Access{};
}

// Calls `visit(cell, offset, bytes)` for the cells of some bytes: of words where that is all there has been, else of
// bytes.
template <class Visit> void visit_cells(size_t start, size_t stop, Visit visit) {
    Shadow &all = shadow();
    const uint32_t this_block = worker->block.first_epoch;
    for (size_t offset = start; offset < stop;) {
        const size_t word = offset / 4, end = std::min(stop, 4 * word + 4);
        if (end - offset == 4 && all.split_in[word] != this_block) {
            visit(all.words[word], offset, size_t{4});
            offset = end;
            continue;
        }
        if (all.split_in[word] != this_block) {
            all.split_in[word] = this_block;
            std::fill_n(all.bytes + 4 * word, 4, all.words[word]);
        }
        for (; offset < end; offset++) {
            visit(all.bytes[offset], offset, size_t{1});
        }
    }
}

void check_bounds(const char *address, size_t bytes, bool write) {
    const char *arena = worker->shared_arena();
    const char *dynamic = worker->dynamic_memory();
    for (const StaticVariable &variable : worker->static_variables()) {
        const char *start = arena + variable.offset;
        if (address >= start && address + bytes <= start + variable.bytes) {
            return;
        }
    }
    report(
        {"out-of-bounds", std::to_string(bytes) + " bytes are " + (write ? "written" : "read") + " at " +
                              name_place(static_cast<size_t>(address - arena)) + ", which has " +
                              std::to_string(address >= dynamic ? worker->dynamic_bytes() : worker->static_bytes())});
}

} // namespace

void check_shared(const char *address, size_t bytes, AccessKind kind) {
    const char *dynamic = worker->dynamic_memory();
    if (address < dynamic || address + bytes > dynamic + worker->dynamic_bytes()) {
        check_bounds(address, bytes, kind != AccessKind::read);
    }
    const auto start = static_cast<size_t>(address - worker->shared_arena());
    const Access access = Access::now(kind);
    Access overwritten;
    size_t first = 0, stop = 0; // the bytes that other threads wrote
    visit_cells(start, start + bytes, [&](Cell &cell, size_t offset, size_t size) {
        if (__builtin_expect(cell.write.copying(), 0) && cell.write.of_this_block()) {
            report(race("accessed while a cp.async copies to it, begun but not waited for by", cell.write, offset));
        }
        if (kind != AccessKind::write) {
            read_cell(cell, access, offset);
        }
        const Access before = kind != AccessKind::read ? write_cell(cell, access, offset) : Access{};
        if (__builtin_expect(before.bits != 0, 0)) {
            overwritten = before;
            first = stop == 0 ? offset : first;
            stop = offset + size;
        }
    });
    if (stop != 0) {
        note_overwrite(
            race("overwritten, with no barrier between, after a write of another value by", overwritten, first),
            worker->shared_arena() + first, stop - first);
    }
}

void check_copy_begins(const void *to, size_t bytes) {
    check_access(to, bytes, AccessKind::write);
    const auto start = static_cast<size_t>(static_cast<const char *>(to) - worker->shared_arena());
    visit_cells(start, start + bytes, [](Cell &cell, size_t, size_t) { cell.write.bits |= 1; });
}

void check_copy_ends(const void *to, size_t bytes) {
    settle_overwrite(true);
    worker->stop_if_after_fault();
    const auto start = static_cast<size_t>(static_cast<const char *>(to) - worker->shared_arena());
    const Access access = Access::now(AccessKind::write);
    visit_cells(start, start + bytes, [access](Cell &cell, size_t, size_t) { cell.write = access; });
}

} // namespace simt

#endif
