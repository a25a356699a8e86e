#include "check_memory.h"

#include "finding.h"
#include "host_memory.h"
#include "worker.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace simt {
namespace {

// An access: the worker's barriers passed (26 bits), the warp's instructions executed (26), the thread (10), whether it
// is atomic, and whether it is the write of a pending cp.async. 0 means no access.
struct Access {
    uint64_t bits = 0;

    static Access now(AccessKind kind) {
        return {static_cast<uint64_t>(worker->block.epoch) << 38 |
                static_cast<uint64_t>(self->warp->generation + self->warp->of_groups + self->passed & (1u << 26) - 1)
                    << 12 |
                self->thread_number() << 2 | (kind == AccessKind::atomic ? 2u : 0u)};
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
    Access read_elsewhere; // the last read by a different warp from that of `read`
};

// Shared memory in units of 16 bytes, words and bytes. A block's accesses are noted at the coarsest scale that each of
// them fills: a cell records the accesses to all of its bytes; if it is parted, the cells of the next scale do so.
struct Shadow {
    template <size_t size> struct Scale {
        Cell cells[Worker::arena_bytes / size];
        uint32_t parted[Worker::arena_bytes / size]; // the epoch of the last access to a part
    };
    Scale<16> lines;
    Scale<4> words;
    Scale<1> bytes;

    template <size_t size> Scale<size> &scale() {
        if constexpr (size == 16) {
            return lines;
        } else if constexpr (size == 4) {
            return words;
        } else {
            return bytes;
        }
    }
};

SIMT_THREAD_LOCAL Shadow *own_shadow = nullptr;

Shadow &shadow() {
    if (__builtin_expect(own_shadow == nullptr, 0)) {
        own_shadow = static_cast<Shadow *>(map_pages(sizeof(Shadow)));
    }
    return *own_shadow;
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
    return {"race", name_place(offset) + " is " + what + " thread (" +
                        text_of(worker->thread(earlier.thread()).thread_idx, ",") + ") of warp " +
                        std::to_string(earlier.warp())};
}

[[gnu::noinline, gnu::cold, noreturn]] void report_race(const char *what, Access earlier, size_t offset) {
    report(race(what, earlier, offset));
}

[[gnu::noinline, gnu::cold, noreturn]] void report_unwritten(size_t offset) {
    report({"uninitialized-shared", name_place(offset) + " is read, but no thread of this block wrote it"});
}

inline void read_cell(Cell &cell, Access access, size_t offset) {
    if (__builtin_expect(!cell.write.of_this_block(), 0)) {
        report_unwritten(offset);
    }
    if (__builtin_expect(unordered(cell.write, access), 0)) {
        report_race("read, with no barrier between, after a write by", cell.write, offset);
    }
    if (cell.read.warp() != access.warp()) {
        cell.read_elsewhere = cell.read;
    }
    cell.read = access;
}

// The write that this write overwrites, if the two race unless their values are equal.
inline Access write_cell(Cell &cell, Access access, size_t offset) {
    for (const Access earlier : {cell.read, cell.read_elsewhere}) {
        if (__builtin_expect(unordered(earlier, access), 0)) {
            report_race("overwritten, with no barrier between, after a read by", earlier, offset);
        }
    }
    const Access before = cell.write;
    cell.write = access;
    return unordered(before, access) ? before : Access{};
}

// Whether the cells of the next scale say what this block has done to some bytes.
template <size_t size> bool is_parted(Shadow &all, size_t index) {
    return all.scale<size>().parted[index] >= worker->block.first_epoch;
}

template <size_t size> void part(Shadow &all, size_t index) {
    if (!is_parted<size>(all, index)) {
        auto &parts = all.scale<size / 4>();
        std::fill_n(parts.cells + 4 * index, 4, all.scale<size>().cells[index]);
        std::fill_n(parts.parted + 4 * index, 4, 0);
    }
    all.scale<size>().parted[index] = worker->block.epoch;
}

// A write of all words of a line after a barrier: earlier accesses to these words no longer count, unless a cp.async is
// still copying to them.
void join(Shadow &all, size_t line) {
    bool settled = all.lines.parted[line] < worker->block.epoch;
    for (size_t word = 4 * line; word < 4 * line + 4; word++) {
        settled &= !is_parted<4>(all, word) && !all.words.cells[word].write.copying();
    }
    if (settled) {
        all.lines.parted[line] = 0;
        all.lines.cells[line] = {};
    }
}

// Calls `visit(cell, offset, bytes)` for the cells of some bytes: the largest cells that are not parted. `joins` means
// that the bytes are written.
template <size_t size = 16, class Visit> void visit_cells(size_t start, size_t stop, bool joins, Visit visit) {
    Shadow &all = shadow();
    for (size_t offset = start; offset < stop;) {
        const size_t index = offset / size, end = std::min(stop, size * index + size);
        if constexpr (size == 1) {
            visit(all.bytes.cells[index], offset, size);
        } else {
            const bool whole = end - offset == size;
            if (size == 16 && whole && joins && is_parted<size>(all, index)) {
                join(all, index);
            }
            if (__builtin_expect(whole && !is_parted<size>(all, index), 1)) {
                visit(all.scale<size>().cells[index], offset, size);
            } else {
                part<size>(all, index);
                visit_cells<size / 4>(offset, end, joins, visit);
            }
        }
        offset = end;
    }
}

// Whether one static variable contains a whole access: usually the variable of the last access.
bool is_in_static_variable(const char *address, size_t bytes) {
    static SIMT_THREAD_LOCAL size_t last = 0;
    const std::vector<StaticVariable> &variables = worker->static_variables();
    const auto offset = static_cast<size_t>(address - worker->shared_arena());
    for (size_t tried = 0; tried < variables.size(); tried++, last++) {
        last = last < variables.size() ? last : 0;
        const StaticVariable &variable = variables[last];
        if (offset >= variable.offset && offset + bytes <= variable.offset + variable.bytes) {
            return true;
        }
    }
    return false;
}

[[gnu::noinline, gnu::cold, noreturn]] void report_bounds(const char *address, size_t bytes, bool write) {
    const char *arena = worker->shared_arena();
    const char *dynamic = worker->dynamic_memory();
    report({"out-of-bounds", std::to_string(bytes) + " bytes are " + (write ? "written" : "read") + " at " +
                                 name_place(static_cast<size_t>(address - arena)) + ", which has " +
                                 std::to_string(address >= dynamic ? worker->dynamic_bytes() : worker->static_bytes()) +
                                 " bytes"});
}

} // namespace

void check_shared(const char *address, size_t bytes, AccessKind kind) {
    const char *dynamic = worker->dynamic_memory();
    const bool inside = address >= dynamic && address + bytes <= dynamic + worker->dynamic_bytes();
    if (__builtin_expect(!inside && !is_in_static_variable(address, bytes), 0)) {
        report_bounds(address, bytes, kind != AccessKind::read);
    }
    const auto start = static_cast<size_t>(address - worker->shared_arena());
    const Access access = Access::now(kind);
    Access overwritten;
    size_t first = 0, stop = 0; // the bytes that other threads wrote
    visit_cells(start, start + bytes, kind == AccessKind::write, [&](Cell &cell, size_t offset, size_t size) {
        if (__builtin_expect(cell.write.copying(), 0) && cell.write.of_this_block()) {
            report_race("accessed while a cp.async copies to it, begun but not waited for by", cell.write, offset);
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
    if (__builtin_expect(stop != 0, 0)) {
        note_overwrite(
            race("overwritten, with no barrier between, after a write of another value by", overwritten, first),
            worker->shared_arena() + first, stop - first);
    }
}

void check_copy_begins(const void *to, size_t bytes) {
    check_access(to, bytes, AccessKind::write);
    const auto start = static_cast<size_t>(static_cast<const char *>(to) - worker->shared_arena());
    visit_cells(start, start + bytes, false, [](Cell &cell, size_t, size_t) { cell.write.bits |= 1; });
}

void check_copy_ends(const void *to, size_t bytes) {
    settle_overwrite(true);
    worker->stop_if_after_fault();
    const auto start = static_cast<size_t>(static_cast<const char *>(to) - worker->shared_arena());
    const Access access = Access::now(AccessKind::write);
    visit_cells(start, start + bytes, false, [access](Cell &cell, size_t, size_t) { cell.write = access; });
}

} // namespace simt
