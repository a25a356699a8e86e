#include "check_memory.h"

#include "attempt.h"
#include "check_host.h"
#include "check_order.h"
#include "check_undo.h"
#include "check_words.h"
#include "check_writers.h"
#include "finding.h"
#include "host_memory.h"
#include "worker.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <utility>
#include <vector>

namespace simt {

// 16 bytes of global memory. Most are only read in a launch, by whole words, and need no other record.
struct alignas(8) Granule {
    uint16_t written; // the bytes that were ever written, a bit each
    uint16_t launch;  // the launch of `reader`
    uint32_t reader;  // the block that read, counted from 1, or `several` (27 bits); which of the four words; whether
                      // the words' cells say more
};

// Untouched pages cost nothing.
struct GlobalShadow {
    char *start;
    size_t bytes;
    Granule *granules;
    WordCell *cells;
    Writer *writers;
    std::atomic<bool> *kept;          // by chunk
    std::atomic<bool> touched{false}; // the cells

    size_t granule_bytes() const { return (bytes + 15) / 16 * sizeof(Granule); }
    size_t writer_bytes() const { return (bytes + 15) / 16 * 4 * sizeof(Writer); }
    size_t cell_bytes() const { return (bytes + 15) / 16 * 4 * sizeof(WordCell); }
    size_t kept_bytes() const { return (bytes + chunk - 1) / chunk * sizeof(*kept); }

    static constexpr size_t chunk = 4096;
};

namespace {

constexpr uint32_t detailed = 1; // of Granule::reader; a bit for each word follows

// Allocations are so far apart that a slot of 8 GiB contains parts of at most one.
constexpr int slot_bits = 33, address_bits = 48;
std::atomic<GlobalShadow *> slots[size_t{1} << (address_bits - slot_bits)];
std::mutex mutex;
std::vector<GlobalShadow *> live;
std::atomic<bool> ordered_by_fences{false};
uint16_t this_launch = 0;

size_t slot_of(const void *address) {
    return reinterpret_cast<uintptr_t>(address) >> slot_bits & ((size_t{1} << (address_bits - slot_bits)) - 1);
}

void set_slots(const GlobalShadow &shadow, GlobalShadow *value) {
    for (size_t slot = slot_of(shadow.start); slot <= slot_of(shadow.start + shadow.bytes - 1); slot++) {
        slots[slot] = value;
    }
}

// Called before a write in a shared attempt: keeps the chunks that contain the memory.
void keep_chunks(GlobalShadow &shadow, size_t start, size_t bytes) {
    constexpr size_t chunk = GlobalShadow::chunk;
    for (size_t i = start / chunk; i <= (start + bytes - 1) / chunk; i++) {
        if (__builtin_expect(!shadow.kept[i].load(std::memory_order_acquire), 0)) {
            const size_t begin = i * chunk, size = std::min(chunk, shadow.bytes - begin), granules = (size + 15) / 16;
            keep_parts(shadow.kept[i], {{shadow.start + begin, size},
                                        {shadow.granules + begin / 16, granules * sizeof(Granule)},
                                        {shadow.writers + begin / 4, 4 * granules * sizeof(Writer)}});
        }
    }
}

void mark_written(Granule &granule, uint32_t bytes) {
    update(granule, [bytes](Granule now) {
        now.written |= static_cast<uint16_t>(bytes);
        return now;
    });
}

[[gnu::noinline, gnu::cold, noreturn]] void report_unwritten(const char *address) {
    report({"uninitialized-global", name_byte(address) + " is read, but was never written"});
}

// The words that some of a granule's bytes touch, as bits of Granule::reader.
uint32_t words_of(uint32_t bytes) {
    const uint32_t any = bytes | bytes >> 1 | bytes >> 2 | bytes >> 3;
    return (any & 1) << 1 | (any >> 4 & 1) << 2 | (any >> 8 & 1) << 3 | (any >> 12 & 1) << 4;
}

uint32_t reader_of(const Granule &granule) { return granule.launch == this_launch ? granule.reader : 0; }

Granule load(const Granule &granule) {
    Granule now;
    __atomic_load(&granule, &now, __ATOMIC_ACQUIRE);
    return now;
}

Granule with_reader(Granule granule, uint32_t reader) {
    granule.launch = this_launch;
    granule.reader = reader;
    return granule;
}

// From now on, the cells of a granule's words record the blocks' accesses. Other threads may note reads in the
// granule meanwhile, so its contents are moved to the cells until nothing is new.
WordCell *cells_of(GlobalShadow &shadow, Granule &granule) {
    WordCell *const cells = shadow.cells + 4 * (&granule - shadow.granules);
    if ((reader_of(load(granule)) & detailed) != 0) {
        return cells;
    }
    shadow.touched.store(true, std::memory_order_relaxed);
    update(granule, [&](Granule now) {
        const uint32_t reader = reader_of(now);
        for (uint32_t word = 0; word < 4 && (reader & detailed) == 0; word++) {
            if ((reader >> (word + 1) & 1) != 0) {
                join_reader(cells[word], reader);
            }
        }
        return with_reader(now, detailed);
    });
    return cells;
}

// Records a read of whole words if the granule alone can hold the record; otherwise returns false.
bool note_read_of(Granule &granule, uint32_t words) {
    bool told = true;
    update(granule, [&](Granule now) {
        const uint32_t reader = reader_of(now), number = reader >> 5, read = reader & 30;
        const bool mine = reader == 0 || number == this_block;
        told = (reader & detailed) == 0 && (mine || read == words);
        return !told ? now : with_reader(now, mine ? this_block << 5 | read | words : several << 5 | words);
    });
    return told;
}

// Calls `visit(cell, offset, bytes)` for the words of some bytes of a granule.
template <class Visit> void visit_words(size_t offset, uint32_t bytes, WordCell *cells, Visit visit) {
    for (uint32_t word = 0; word < 4; word++) {
        if (const uint32_t mask = bytes >> 4 * word & all_bytes) {
            const size_t first = std::max(offset, offset / 16 * 16 + 4 * word);
            visit(cells[word], first, mask);
        }
    }
}

void read_granule(GlobalShadow &shadow, Granule &granule, size_t offset, uint32_t bytes, bool races) {
    const Granule now = load(granule);
    const uint32_t words = words_of(bytes), reader = races ? reader_of(now) : 0, number = reader >> 5;
    if ((number == this_block || number == several) && (reader & (words | detailed)) == words) {
        return; // as before, and already found to be written
    }
    const uint32_t missing = bytes & ~uint32_t{now.written};
    if (__builtin_expect(missing != 0, 0)) {
        const size_t word = offset / 16 * 16 + __builtin_ctz(missing) / 4 * 4;
        report_unwritten(shadow.start + std::max(offset, word));
    }
    const bool whole = (bytes & 0x1111) * 15 == bytes;
    if (!races || (whole && note_read_of(granule, words))) {
        return;
    }
    visit_words(offset, bytes, cells_of(shadow, granule), [&](WordCell &cell, size_t first, uint32_t mask) {
        read_word(cell, {shadow.start + first, mask, false});
    });
}

} // namespace

GlobalShadow *global_shadow(const char *address, size_t bytes) {
    GlobalShadow *shadow = slots[slot_of(address)].load(std::memory_order_relaxed);
    const bool inside =
        shadow != nullptr && address >= shadow->start && address + bytes <= shadow->start + shadow->bytes;
    return inside ? shadow : nullptr;
}

void check_global(GlobalShadow &shadow, const char *address, size_t bytes, AccessKind kind, const void *place) {
    const bool races = this_block != 0 && !ordered_by_fences.load(std::memory_order_relaxed);
    const auto start = static_cast<size_t>(address - shadow.start);
    if (__builtin_expect(kind != AccessKind::read && attempt.shared, 0)) {
        keep_chunks(shadow, start, bytes);
    }
    check_order(shadow.writers, shadow.start, start, bytes, kind, place);
    if (kind == AccessKind::read) {
        if (const size_t first = start % 16; __builtin_expect(first + bytes <= 16, 1)) {
            read_granule(shadow, shadow.granules[start / 16], start, ((1u << bytes) - 1) << first, races);
            return;
        }
        visit_range<16>(shadow.granules, start, start + bytes, [&](Granule &granule, size_t offset, uint32_t mask) {
            read_granule(shadow, granule, offset, mask, races);
        });
        return;
    }
    size_t first = 0, last = 0; // the bytes that another block wrote
    uint32_t other = 0;
    visit_range<16>(shadow.granules, start, start + bytes, [&](Granule &granule, size_t offset, uint32_t mask) {
        mark_written(granule, mask);
        if (!races) {
            return;
        }
        visit_words(offset, mask, cells_of(shadow, granule), [&](WordCell &cell, size_t begin, uint32_t part) {
            const GlobalAccess access{shadow.start + begin, part, kind == AccessKind::atomic};
            if (const uint32_t before = write_word(cell, access)) {
                other = before;
                first = last == 0 ? begin : first;
                last = begin + static_cast<size_t>(__builtin_popcount(part));
            }
        });
    });
    if (other != 0) {
        Finding finding = race(shadow.start + first, "written", other, "writes another value to");
        if (attempt.shared) { // the earlier value is uncertain
            report(finding);
        }
        note_overwrite(std::move(finding), shadow.start + first, last - first);
    }
}

namespace {

void check_allocated(char *start, size_t bytes) {
    auto *shadow = new GlobalShadow{start, std::max<size_t>(bytes, 1), nullptr, nullptr, nullptr, nullptr};
    shadow->granules = static_cast<Granule *>(map_pages(shadow->granule_bytes()));
    shadow->cells = static_cast<WordCell *>(map_pages(shadow->cell_bytes()));
    shadow->writers = static_cast<Writer *>(map_pages(shadow->writer_bytes()));
    shadow->kept = static_cast<std::atomic<bool> *>(map_pages(shadow->kept_bytes()));
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
    munmap(shadow->granules, shadow->granule_bytes());
    munmap(shadow->cells, shadow->cell_bytes());
    munmap(shadow->writers, shadow->writer_bytes());
    munmap(shadow->kept, shadow->kept_bytes());
    forget_transfers(shadow->start, shadow->bytes);
    delete shadow;
}

// The bytes of the granule at `offset` that count as written after a copy: unwritten bytes stay unwritten.
uint32_t written_in(const GlobalShadow *source, size_t offset) {
    return source == nullptr ? 0xFFFF : source->granules[offset / 16].written;
}

void check_host_write(const void *to, const void *from, size_t bytes) {
    GlobalShadow *target = global_shadow(static_cast<const char *>(to), bytes);
    if (target == nullptr || bytes == 0) {
        return;
    }
    const auto start = static_cast<size_t>(static_cast<const char *>(to) - target->start);
    const GlobalShadow *source = global_shadow(static_cast<const char *>(from), bytes);
    const size_t source_start =
        source != nullptr ? static_cast<size_t>(static_cast<const char *>(from) - source->start) : 0;
    const bool in_step = (start - source_start) % 16 == 0; // otherwise all of it counts as written
    visit_range<16>(target->granules, start, start + bytes, [&](Granule &granule, size_t offset, uint32_t mask) {
        const uint32_t written = in_step ? written_in(source, source_start + (offset - start)) : 0xFFFF;
        granule.written = static_cast<uint16_t>((granule.written & ~mask) | (written & mask));
    });
}

void forget_blocks() {
    ordered_by_fences = false;
    forget_parted_words();
    const std::lock_guard<std::mutex> lock(mutex);
    const bool wrapped = ++this_launch == 0;
    for (GlobalShadow *shadow : live) {
        if (shadow->touched.exchange(false)) {
            madvise(shadow->cells, shadow->cell_bytes(), MADV_DONTNEED);
        }
        for (size_t i = 0; wrapped && i < shadow->granule_bytes() / sizeof(Granule); i++) {
            shadow->granules[i].reader = 0;
        }
    }
}

void check_new_launch(const Launch &launch) {
    begin_kernel(launch);
    forget_blocks();
}

void check_launch_done(bool whole) {
    end_kernel(whole);
    forget_writes();
}

void check_undo_launch() {
    undo_writes();
    begin_kernel_again();
    forget_blocks();
}

Written written_at(const void *memory, size_t bytes) {
    const GlobalShadow *shadow = global_shadow(static_cast<const char *>(memory), bytes);
    return shadow != nullptr ? Written{shadow->writers, shadow->start} : Written{};
}

void check_transferred(const Transfer &transfer) {
    check_transfer(transfer, written_at(transfer.to, transfer.bytes), written_at(transfer.from, transfer.bytes));
}

[[gnu::constructor]] void register_checker() {
    checker = {true,           check_new_launch,      check_undo_launch,    check_launch_done, check_allocated,
               check_released, check_host_write,      check_written_before, check_transferred, record_event,
               wait_for_event, host_waits_for_stream, host_waits_for_event, host_waits_for_all};
}

} // namespace

void check_new_block_of_launch() {
    const bool alone = static_cast<uint64_t>(gridDim.x) * gridDim.y * gridDim.z == 1;
    this_block = alone ? 0 : static_cast<uint32_t>(worker->block_index() % (several - 1)) + 1;
}

void forget_writers() {
    forget_transfers(nullptr, SIZE_MAX);
    const std::lock_guard<std::mutex> lock(mutex);
    for (const GlobalShadow *shadow : live) {
        madvise(shadow->writers, shadow->writer_bytes(), MADV_DONTNEED);
    }
}

void note_fence() {
    ordered_by_fences = true;
    if (attempt.shared) { // whether a race came before the first fence depends on the order of blocks
        worker->leave_attempt();
    }
}

} // namespace simt
