#include "check_global.h"

#include "check_host.h"
#include "finding.h"
#include "host_memory.h"
#include "overwrite.h"
#include "worker.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <vector>

#if defined(SIMT_CHECK)

namespace simt {

// Pages that nobody touches cost nothing. Of an access by blocks of the running launch a word's cell holds the block's
// number, counted from 1 (27 bits), whether it was atomic, and which of the four bytes it touched; 0 is none.
struct GlobalShadow {
    char *start;
    size_t bytes;
    uint8_t *written; // of each word, the bytes that were ever written, a bit each
    uint32_t *writer; // of each word, the last block that wrote
    uint32_t *reader; // the block that read, or `several`
    std::atomic<bool> touched{false};

    size_t words() const { return (bytes + 3) / 4; }
};

namespace {

constexpr uint32_t several = (1u << 27) - 1, atomic_bit = 16, all_bytes = 15;

// Allocations lie so far apart that a slot of 8 GiB holds parts of one at most.
constexpr int slot_bits = 33, address_bits = 48;
std::atomic<GlobalShadow *> slots[size_t{1} << (address_bits - slot_bits)];
std::mutex mutex;
std::vector<GlobalShadow *> live;
std::atomic<bool> ordered_by_fences{false};
SIMT_THREAD_LOCAL uint32_t this_block = 0; // 0: the launch has no other

size_t slot_of(const void *address) {
    return reinterpret_cast<uintptr_t>(address) >> slot_bits & ((size_t{1} << (address_bits - slot_bits)) - 1);
}

void set_slots(const GlobalShadow &shadow, GlobalShadow *value) {
    for (size_t slot = slot_of(shadow.start); slot <= slot_of(shadow.start + shadow.bytes - 1); slot++) {
        slots[slot] = value;
    }
}

void mark_written(GlobalShadow &shadow, size_t start, size_t stop) {
    const size_t first = (start + 3) / 4, last = std::max(first, stop / 4);
    for (size_t byte = start; byte < std::min(stop, 4 * first); byte++) {
        shadow.written[byte / 4] |= static_cast<uint8_t>(1u << byte % 4);
    }
    memset(shadow.written + first, all_bytes, last - first);
    for (size_t byte = std::max(start, 4 * last); byte < stop; byte++) {
        shadow.written[byte / 4] |= static_cast<uint8_t>(1u << byte % 4);
    }
}

std::string name_block(uint32_t cell) {
    const uint32_t number = cell >> 5;
    if (number == several) {
        return "other blocks";
    }
    const uint64_t index = number - 1;
    return "block (" + std::to_string(index % gridDim.x) + "," + std::to_string(index / gridDim.x % gridDim.y) + "," +
           std::to_string(index / gridDim.x / gridDim.y) + ")";
}

Finding race(const char *address, const char *what, uint32_t other, const char *does) {
    return {"race", name_byte(address) + " is " + what + ", and " + name_block(other) + " " + does +
                        " it in the same launch: nothing orders the blocks"};
}

struct GlobalAccess {
    const char *address;
    uint32_t mask;
    bool atomic;
    bool races; // whether races are looked for

    bool conflicts(uint32_t cell) const {
        return races && cell >> 5 != this_block && (cell & mask) != 0 && !(atomic && (cell & atomic_bit) != 0);
    }
};

void read_word(GlobalShadow &shadow, size_t word, const GlobalAccess &access) {
    if (__builtin_expect((shadow.written[word] & access.mask) != access.mask, 0)) {
        report({"uninitialized-global", name_byte(access.address) + " is read, and nobody has ever written it"});
    }
    if (!access.races) {
        return;
    }
    const uint32_t writer = shadow.writer[word];
    if (__builtin_expect(access.conflicts(writer), 0)) {
        report(race(access.address, "read", writer, "writes"));
    }
    const uint32_t reader = shadow.reader[word], bytes = (reader | access.mask) & all_bytes;
    const uint32_t number = reader == 0 || reader >> 5 == this_block ? this_block : several;
    if (reader != (number << 5 | bytes)) {
        shadow.reader[word] = number << 5 | bytes;
    }
}

// The cell of a write of another block that this one overwrites, or 0.
uint32_t write_word(GlobalShadow &shadow, size_t word, const GlobalAccess &access) {
    if (access.mask == all_bytes) {
        shadow.written[word] = all_bytes;
    } else {
        __atomic_fetch_or(shadow.written + word, static_cast<uint8_t>(access.mask), __ATOMIC_RELAXED);
    }
    if (!access.races) {
        return 0;
    }
    const uint32_t reader = shadow.reader[word];
    if (__builtin_expect(access.conflicts(reader), 0)) {
        report(race(access.address, "written", reader, reader >> 5 == several ? "read" : "reads"));
    }
    const uint32_t before = shadow.writer[word];
    const bool mine = before >> 5 == this_block;
    const bool atomic = access.atomic && (!mine || (before & atomic_bit) != 0);
    shadow.writer[word] = this_block << 5 | (atomic ? atomic_bit : 0) | access.mask | (mine ? before & all_bytes : 0);
    return access.conflicts(before) ? before : 0;
}

} // namespace

GlobalShadow *global_shadow(const char *address, size_t bytes) {
    GlobalShadow *shadow = slots[slot_of(address)].load(std::memory_order_relaxed);
    const bool inside =
        shadow != nullptr && address >= shadow->start && address + bytes <= shadow->start + shadow->bytes;
    return inside ? shadow : nullptr;
}

void check_global(GlobalShadow &shadow, const char *address, size_t bytes, AccessKind kind) {
    const bool races = this_block != 0 && !ordered_by_fences.load(std::memory_order_relaxed);
    if (races && !shadow.touched.load(std::memory_order_relaxed)) {
        shadow.touched = true;
    }
    const auto start = static_cast<size_t>(address - shadow.start), stop = start + bytes;
    size_t first = 0, last = 0; // the bytes that another block wrote
    uint32_t other = 0;
    for (size_t offset = start; offset < stop;) {
        const size_t word = offset / 4, end = std::min(stop, 4 * word + 4);
        const uint32_t mask = (all_bytes >> (4 - (end - offset))) << offset % 4;
        const GlobalAccess access{shadow.start + offset, mask, kind == AccessKind::atomic, races};
        if (kind == AccessKind::read) {
            read_word(shadow, word, access);
        } else if (const uint32_t before = write_word(shadow, word, access)) {
            other = before;
            first = last == 0 ? offset : first;
            last = end;
        }
        offset = end;
    }
    if (other != 0) {
        note_overwrite(race(shadow.start + first, "written", other, "writes another value to"), shadow.start + first,
                       last - first);
    }
}

namespace {

void check_allocated(char *start, size_t bytes) {
    auto *shadow = new GlobalShadow{start, std::max<size_t>(bytes, 1), nullptr, nullptr, nullptr};
    shadow->written = static_cast<uint8_t *>(map_pages(shadow->words()));
    shadow->writer = static_cast<uint32_t *>(map_pages(4 * shadow->words()));
    shadow->reader = static_cast<uint32_t *>(map_pages(4 * shadow->words()));
    const std::lock_guard<std::mutex> lock(mutex);
    live.push_back(shadow);
    set_slots(*shadow, shadow);
}

void check_released(const char *start) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found =
        std::find_if(live.begin(), live.end(), [start](const GlobalShadow *shadow) { return shadow->start == start; });
    if (found == live.end()) {
        return;
    }
    GlobalShadow *shadow = *found;
    live.erase(found);
    set_slots(*shadow, nullptr);
    munmap(shadow->written, shadow->words());
    munmap(shadow->writer, 4 * shadow->words());
    munmap(shadow->reader, 4 * shadow->words());
    delete shadow;
}

void check_host_write(const void *to, const void *from, size_t bytes) {
    GlobalShadow *target = global_shadow(static_cast<const char *>(to), bytes);
    if (target == nullptr || bytes == 0) {
        return;
    }
    const auto start = static_cast<size_t>(static_cast<const char *>(to) - target->start);
    const GlobalShadow *source = global_shadow(static_cast<const char *>(from), bytes);
    const auto source_start =
        source != nullptr ? static_cast<size_t>(static_cast<const char *>(from) - source->start) : 1;
    if ((start | source_start | bytes) % 4 == 0) { // what nobody has written stays so in the copy
        memmove(target->written + start / 4, source->written + source_start / 4, bytes / 4);
    } else {
        mark_written(*target, start, start + bytes);
    }
}

void check_new_launch() {
    ordered_by_fences = false;
    const std::lock_guard<std::mutex> lock(mutex);
    for (GlobalShadow *shadow : live) {
        if (shadow->touched.exchange(false)) {
            madvise(shadow->writer, 4 * shadow->words(), MADV_DONTNEED);
            madvise(shadow->reader, 4 * shadow->words(), MADV_DONTNEED);
        }
    }
}

const CheckerOfHost host_side = {check_new_launch, check_allocated, check_released, check_host_write};
const bool registered = (checker = &host_side) != nullptr;

} // namespace

void check_new_block() {
    const bool alone = static_cast<uint64_t>(gridDim.x) * gridDim.y * gridDim.z == 1;
    this_block = alone ? 0 : static_cast<uint32_t>(worker->block_index() % (several - 1)) + 1;
}

void note_fence() { ordered_by_fences = true; }

} // namespace simt

#endif
