#include "check_writers.h"

#include "attempt.h"
#include "check_host.h"
#include "check_memory.h"
#include "check_order.h"
#include "check_words.h"
#include "environment.h"
#include "finding.h"
#include "host_memory.h"
#include "schedule.h"
#include "worker.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace simt {
namespace {

constexpr uint16_t atomic_write = 1 << 15, thread_bits = 1023;
constexpr uint16_t changing = 1 << 15; // of Thread::bytes: another host thread is changing the writer

// A transfer that the host has not waited for.
struct PendingTransfer {
    const char *start;
    size_t bytes;
    uint16_t number;

    bool touches(const char *address, size_t count) const { return address < start + bytes && start < address + count; }
};
std::mutex transfers_mutex;
std::vector<PendingTransfer> transfers;
constexpr uint16_t not_queued = 0;

// "is read before cudaGridDependencySynchronize(), while f may still run; its block (0,0,0), thread (3,1,0) writes
// it".
[[gnu::noinline, gnu::cold, noreturn]] void report_order(const char *address, bool write, uint16_t number,
                                                         const Writer *writer) {
    const Operation &other = operation(number);
    const Stream own = self != nullptr ? operation(running_kernel()).stream : Stream{UINT32_MAX, false};
    const bool before_wait = own.number == other.stream.number;
    Finding finding = {"race-between-kernels",
                       name_byte(address) + (write ? " is written" : " is read") +
                           (before_wait ? " before cudaGridDependencySynchronize(), while "
                                        : " with no event or host wait before it, while ") +
                           (other.is_kernel ? kernel_name(other.call).name : std::string(other.call)) +
                           (before_wait ? "" : " on another stream")};
    if (writer == nullptr) {
        finding.message += ", which writes it, may still run";
        finding.earlier = other.stack;
    } else {
        finding.message += " may still run; its block (" + text_of(place_in(other.grid, writer->thread.block), ",") +
                           "), thread (" + text_of(place_in(other.block, writer->thread.number & thread_bits), ",") +
                           ") writes it";
        finding.earlier = {reinterpret_cast<void *>((writer->place_and_kernel >> 16) - 1)};
    }
    report(finding);
}

void check_pending_transfers(const Done &done, const char *address, size_t bytes, bool write) {
    const std::lock_guard<std::mutex> lock(transfers_mutex);
    for (const PendingTransfer &transfer : transfers) {
        if (transfer.touches(address, bytes) && transfer.number != not_queued && !done.covers(transfer.number)) {
            transfers_mutex.unlock();
            report_order(std::max(address, transfer.start), write, transfer.number, nullptr);
        }
    }
}

// A writer that other host threads may change meanwhile.
Writer copy_of(const Writer &writer) {
    Writer copy;
    Writer::Thread after;
    do {
        __atomic_load(&writer.thread, &copy.thread, __ATOMIC_ACQUIRE);
        copy.place_and_kernel = __atomic_load_n(&writer.place_and_kernel, __ATOMIC_ACQUIRE);
        __atomic_load(&writer.thread, &after, __ATOMIC_ACQUIRE);
    } while ((after.bytes & changing) != 0 || memcmp(&copy.thread, &after, sizeof(after)) != 0);
    return copy;
}

void check_writers(const Done &done, const Written &memory, size_t start, size_t bytes, AccessKind kind) {
    visit_range<4>(memory.writers, start, start + bytes, [&](const Writer &cell, size_t offset, uint32_t mask) {
        const Writer writer = copy_of(cell);
        const uint32_t shared = writer.thread.bytes & mask;
        const bool both_atomic = kind == AccessKind::atomic && (writer.thread.number & atomic_write) != 0;
        if (__builtin_expect(writer.kernel() == 0 || shared == 0 || both_atomic, 1)) {
            return;
        }
        // In a shared attempt another block may have written over what an earlier kernel wrote.
        const bool hides = attempt.shared && writer.thread.block != worker->block_index();
        if (writer.kernel() == running_kernel() ? hides : !done.covers(writer.kernel())) {
            const size_t byte = std::max(offset, offset / 4 * 4 + static_cast<size_t>(__builtin_ctz(shared)));
            report_order(memory.allocation + byte, kind != AccessKind::read, writer.kernel(), &writer);
        }
    });
}

// Whether a block comes after another one where one host thread runs them.
bool comes_after(uint32_t block, uint32_t other) {
    static const bool backwards = blocks_run_backwards(environment().schedule_seed);
    return backwards ? block < other : block > other;
}

void note_writers(Writer *writers, size_t start, size_t bytes, AccessKind kind, const void *place) {
    const auto block = static_cast<uint32_t>(worker->block_index());
    const auto number =
        static_cast<uint16_t>(self->thread_number() | (kind == AccessKind::atomic ? atomic_write : uint16_t{0}));
    const uint64_t written = reinterpret_cast<uint64_t>(place) << 16 | running_kernel();
    visit_range<4>(writers, start, start + bytes, [&](Writer &writer, size_t, uint32_t mask) {
        Writer::Thread before;
        do { // the mark is in the writer: a separate lock would be one more contended cache line
            before = !attempt.shared ? writer.thread : update(writer.thread, [](Writer::Thread now) {
                now.bytes |= changing;
                return now;
            });
        } while ((before.bytes & changing) != 0);
        const bool again = writer.kernel() == running_kernel(), stays = again && comes_after(before.block, block);
        Writer::Thread after = stays ? before : Writer::Thread{block, number, 0};
        after.bytes = static_cast<uint16_t>((again ? before.bytes : 0) | mask);
        __atomic_store_n(&writer.place_and_kernel, stays ? writer.place_and_kernel : written, __ATOMIC_RELEASE);
        __atomic_store(&writer.thread, &after, __ATOMIC_RELEASE);
    });
}

} // namespace

void check_order(Writer *writers, const char *allocation, size_t start, size_t bytes, AccessKind kind,
                 const void *place) {
    const Done &done = done_here();
    if (__builtin_expect(!done.all, 0)) {
        check_writers(done, {writers, allocation}, start, bytes, kind);
        check_pending_transfers(done, allocation + start, bytes, kind != AccessKind::read);
    }
    if (kind != AccessKind::read) {
        note_writers(writers, start, bytes, kind, place);
    }
}

void check_transfer(const Transfer &transfer, Written to, Written from) {
    const bool host_waits = transfer.host_waits || is_host_memory(transfer.to);
    const Begun begun = simt::transfer(transfer.call, transfer.stream, host_waits);
    const auto check = [&](const Written &side, const void *memory, AccessKind kind) {
        const char *const address = static_cast<const char *>(memory);
        if (side.writers != nullptr && !begun.done.all) {
            check_writers(begun.done, side, static_cast<size_t>(address - side.allocation), transfer.bytes, kind);
            check_pending_transfers(begun.done, address, transfer.bytes, kind != AccessKind::read);
        }
    };
    check(from, transfer.from, AccessKind::read);
    check(to, transfer.to, AccessKind::write);
    const std::lock_guard<std::mutex> lock(transfers_mutex);
    transfers.erase(std::remove_if(transfers.begin(), transfers.end(),
                                   [](const PendingTransfer &other) {
                                       return other.number != not_queued && host_knows(other.number);
                                   }),
                    transfers.end());
    if (to.writers != nullptr && !host_waits) {
        transfers.push_back({static_cast<const char *>(transfer.to), transfer.bytes, begun.number});
    }
}

void check_written_before(const void *memory, size_t bytes) {
    announce_kernel();
    const std::lock_guard<std::mutex> lock(transfers_mutex);
    transfers.push_back({static_cast<const char *>(memory), bytes, not_queued});
}

void number_announced(uint16_t number) {
    const std::lock_guard<std::mutex> lock(transfers_mutex);
    for (PendingTransfer &transfer : transfers) {
        transfer.number = transfer.number == not_queued ? number : transfer.number;
    }
}

void forget_transfers(const char *start, size_t bytes) {
    const std::lock_guard<std::mutex> lock(transfers_mutex);
    transfers.erase(std::remove_if(transfers.begin(), transfers.end(),
                                   [=](const PendingTransfer &other) { return other.touches(start, bytes); }),
                    transfers.end());
}

} // namespace simt
