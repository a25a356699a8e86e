#include "check.h"

#include "finding.h"
#include "host_memory.h"
#include "ptx.h"
#include "worker.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace simt {

#if !defined(SIMT_CHECK)

void note_read(const void *, size_t) {}
void note_write(const void *, size_t) {}
void check_pending() {}

#else

namespace {

// An access to a byte of shared memory.
struct Access {
    uint32_t epoch = 0; // block barriers passed, counted from 1; 0: no access
    uint32_t phase = 0; // instructions of the warp executed
    uint16_t thread = 0;
    bool atomic = false;

    uint32_t warp() const { return thread / warp_size; }
};

struct Byte {
    Access write;
    Access read;
    Access read_elsewhere; // the last read by another warp than that of `read`
    Access copy;           // a pending cp.async
};

// A write over another thread's write: a race unless the values are equal. This is known only after the write, so it is
// checked when this thread writes next, or when another thread accesses memory.
struct Overwrite {
    Finding finding;
    const char *address;
    std::vector<char> before;
};

struct Shadow {
    Byte bytes[Worker::arena_bytes];
    std::optional<Overwrite> overwrite;
};

Shadow &shadow() {
    static thread_local const std::unique_ptr<Shadow> own = std::make_unique<Shadow>();
    return *own;
}

enum class Kind : uint8_t { read, write, atomic };

Access now(Kind kind) {
    return {worker->block.epoch + 1, self->warp->generation, static_cast<uint16_t>(self->thread_number()),
            kind == Kind::atomic};
}

bool unordered(const Access &earlier, const Access &later) {
    if (earlier.epoch != later.epoch || earlier.thread == later.thread || (earlier.atomic && later.atomic)) {
        return false;
    }
    return earlier.warp() != later.warp() || earlier.phase == later.phase;
}

// "byte 640 of the dynamic shared memory".
std::string name_place(size_t offset) {
    const auto dynamic = static_cast<size_t>(worker->dynamic_memory() - worker->shared_arena());
    return offset >= dynamic ? "byte " + std::to_string(offset - dynamic) + " of the dynamic shared memory"
                             : "byte " + std::to_string(offset) + " of the static shared memory";
}

Finding race(const char *what, const Access &earlier, size_t offset) {
    const uint3 thread = worker->thread(earlier.thread).thread_idx;
    return {"race", name_place(offset) + " is " + what + " thread (" + std::to_string(thread.x) + "," +
                        std::to_string(thread.y) + "," + std::to_string(thread.z) + ") of warp " +
                        std::to_string(earlier.warp())};
}

void read_byte(Byte &byte, const Access &access, size_t offset) {
    if (byte.write.epoch == 0) {
        report({"uninitialized-shared", name_place(offset) + " is read, and nobody has written it in this block"});
    }
    if (unordered(byte.write, access)) {
        report(race("read, with no barrier between, after a write by", byte.write, offset));
    }
    if (byte.read.warp() != access.warp()) {
        byte.read_elsewhere = byte.read;
    }
    byte.read = access;
}

// True if the write is a race unless it leaves the byte as it is.
bool write_byte(Byte &byte, const Access &access, size_t offset) {
    for (const Access &earlier : {byte.read, byte.read_elsewhere}) {
        if (unordered(earlier, access)) {
            report(race("overwritten, with no barrier between, after a read by", earlier, offset));
        }
    }
    const bool overwrites = unordered(byte.write, access);
    byte.write = access;
    return overwrites;
}

void note_overwrite(const char *address, size_t bytes, const Access &earlier) {
    Finding finding = race("overwritten, with no barrier between, after a write of another value by", earlier,
                           static_cast<size_t>(address - worker->shared_arena()));
    finding.stack = call_stack();
    shadow().overwrite.emplace(Overwrite{std::move(finding), address, {address, address + bytes}});
}

void settle_overwrite(bool write) {
    std::optional<Overwrite> &pending = shadow().overwrite;
    if (!pending || (self == pending->finding.fiber && !write)) {
        return;
    }
    const Overwrite overwrite = std::move(*pending);
    pending.reset();
    if (memcmp(overwrite.address, overwrite.before.data(), overwrite.before.size()) != 0) {
        worker->note_fault(overwrite.finding);
    }
}

void check_bounds(const char *address, size_t bytes, bool write) {
    const char *arena = worker->shared_arena();
    const char *dynamic = worker->dynamic_memory();
    if (address >= dynamic && address + bytes <= dynamic + worker->dynamic_bytes()) {
        return;
    }
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

void check_shared(const char *address, size_t bytes, Kind kind) {
    check_bounds(address, bytes, kind != Kind::read);
    const char *arena = worker->shared_arena();
    const auto start = static_cast<size_t>(address - arena);
    const Access access = now(kind);
    Access overwritten;
    size_t first = 0, stop = 0; // the bytes that other threads wrote
    for (size_t offset = start; offset < start + bytes; offset++) {
        Byte &byte = shadow().bytes[offset];
        if (byte.copy.epoch != 0) {
            report(race("accessed while a cp.async copies to it, begun but not waited for by", byte.copy, offset));
        }
        if (kind != Kind::write) {
            read_byte(byte, access, offset);
        }
        const Access before = byte.write;
        if (kind != Kind::read && write_byte(byte, access, offset)) {
            overwritten = before;
            first = stop == 0 ? offset : first;
            stop = offset + 1;
        }
    }
    if (stop != 0) {
        note_overwrite(arena + first, stop - first, overwritten);
    }
}

void check_global(const char *address, size_t bytes) {
    static thread_local Allocation last;
    if (address >= last.start && address + bytes <= last.start + last.bytes) {
        return;
    }
    const Allocation *allocation = find_allocation(address);
    if (allocation == nullptr) {
        return; // host memory: kernel arguments, constant tables
    }
    const bool before = address < allocation->start;
    if (!allocation->live || before || address + bytes > allocation->start + allocation->bytes) {
        const char *first =
            before ? address : std::max(address, static_cast<const char *>(allocation->start + allocation->bytes));
        report({kind_of_fault(address), describe_fault(allocation->live ? first : address)});
    }
    last = *allocation;
}

void check_alignment(const void *address, size_t bytes) {
    if (reinterpret_cast<uintptr_t>(address) % bytes != 0) {
        report({"misaligned", "an access of " + std::to_string(bytes) +
                                  " bytes at an address that is not a multiple of " + std::to_string(bytes)});
    }
}

bool is_shared(const char *address) {
    return address >= worker->shared_arena() && address < worker->shared_arena() + Worker::arena_bytes + guard_bytes;
}

void check_access(const void *pointer, size_t bytes, size_t alignment, Kind kind) {
    if (self == nullptr || worker->owns_stack(pointer)) {
        return;
    }
    settle_overwrite(kind != Kind::read);
    worker->stop_if_after_fault();
    check_alignment(pointer, alignment);
    const char *address = static_cast<const char *>(pointer);
    if (is_shared(address)) {
        check_shared(address, bytes, kind);
    } else {
        check_global(address, bytes);
    }
}

} // namespace

void note_read(const void *address, size_t bytes) { check_access(address, bytes, 1, Kind::read); }
void note_write(const void *address, size_t bytes) { check_access(address, bytes, 1, Kind::write); }

void check_new_block() {
    const auto first = static_cast<size_t>(worker->dynamic_memory() - worker->shared_arena());
    std::fill(shadow().bytes + first, shadow().bytes + Worker::arena_bytes, Byte{});
    for (const StaticVariable &variable : worker->static_variables()) {
        std::fill_n(shadow().bytes + variable.offset, variable.bytes, Byte{});
    }
}

void check_pending() { settle_overwrite(true); }

void check_new_shared(const void *address, size_t bytes) {
    std::fill_n(shadow().bytes + (static_cast<const char *>(address) - worker->shared_arena()), bytes, Byte{});
}

void check_copy_begins(const void *to, size_t bytes) {
    note_write(to, bytes);
    Byte *first = shadow().bytes + (static_cast<const char *>(to) - worker->shared_arena());
    for (size_t i = 0; i < bytes; i++) {
        first[i].copy = first[i].write;
    }
}

void check_copy_ends(const void *to, size_t bytes) {
    settle_overwrite(true);
    worker->stop_if_after_fault();
    Byte *first = shadow().bytes + (static_cast<const char *>(to) - worker->shared_arena());
    for (size_t i = 0; i < bytes; i++) {
        first[i].copy = {};
        first[i].write = now(Kind::write);
    }
}

#endif

} // namespace simt

#if defined(SIMT_CHECK)

// The functions that g++ and clang++ call under -fsanitize=thread (gcc/sanitizer.def): read4 if the type promises an
// address that is a multiple of 4, else read_range or unaligned_read4.
namespace {

void check_typed(const void *address, size_t bytes, simt::Kind kind) {
    simt::check_access(address, bytes, bytes, kind);
}

template <class T> T *checked(T *address) {
    check_typed(const_cast<const std::remove_volatile_t<T> *>(address), sizeof(T), simt::Kind::atomic);
    return address;
}

} // namespace

#define SIMT_TSAN_ACCESS(bytes)                                                                                        \
    void __tsan_read##bytes(void *address) { check_typed(address, bytes, simt::Kind::read); }                          \
    void __tsan_write##bytes(void *address) { check_typed(address, bytes, simt::Kind::write); }                        \
    void __tsan_unaligned_read##bytes(void *address) { simt::note_read(address, bytes); }                              \
    void __tsan_unaligned_write##bytes(void *address) { simt::note_write(address, bytes); }
#define SIMT_TSAN_FETCH(bits, type, operation)                                                                         \
    type __tsan_atomic##bits##_fetch_##operation(volatile type *address, type value, int) {                            \
        return __atomic_fetch_##operation(checked(address), value, __ATOMIC_SEQ_CST);                                  \
    }
#define SIMT_TSAN_ATOMIC(bits, type)                                                                                   \
    type __tsan_atomic##bits##_load(const volatile type *address, int) {                                               \
        return __atomic_load_n(checked(address), __ATOMIC_SEQ_CST);                                                    \
    }                                                                                                                  \
    void __tsan_atomic##bits##_store(volatile type *address, type value, int) {                                        \
        __atomic_store_n(checked(address), value, __ATOMIC_SEQ_CST);                                                   \
    }                                                                                                                  \
    type __tsan_atomic##bits##_exchange(volatile type *address, type value, int) {                                     \
        return __atomic_exchange_n(checked(address), value, __ATOMIC_SEQ_CST);                                         \
    }                                                                                                                  \
    bool __tsan_atomic##bits##_compare_exchange_strong(volatile type *address, type *expected, type desired, int,      \
                                                       int) {                                                          \
        return __atomic_compare_exchange_n(checked(address), expected, desired, false, __ATOMIC_SEQ_CST,               \
                                           __ATOMIC_SEQ_CST);                                                          \
    }                                                                                                                  \
    bool __tsan_atomic##bits##_compare_exchange_weak(volatile type *address, type *expected, type desired, int, int) { \
        return __atomic_compare_exchange_n(checked(address), expected, desired, false, __ATOMIC_SEQ_CST,               \
                                           __ATOMIC_SEQ_CST);                                                          \
    }                                                                                                                  \
    type __tsan_atomic##bits##_compare_exchange_val(volatile type *address, type expected, type desired, int, int) {   \
        __atomic_compare_exchange_n(checked(address), &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);  \
        return expected;                                                                                               \
    }                                                                                                                  \
    SIMT_TSAN_FETCH(bits, type, add)                                                                                   \
    SIMT_TSAN_FETCH(bits, type, sub)                                                                                   \
    SIMT_TSAN_FETCH(bits, type, or)                                                                                    \
    SIMT_TSAN_FETCH(bits, type, and)                                                                                   \
    SIMT_TSAN_FETCH(bits, type, xor)

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_read_range(void *address, size_t bytes) { simt::note_read(address, bytes); }
void __tsan_write_range(void *address, size_t bytes) { simt::note_write(address, bytes); }
SIMT_TSAN_ACCESS(1)
SIMT_TSAN_ACCESS(2)
SIMT_TSAN_ACCESS(4)
SIMT_TSAN_ACCESS(8)
SIMT_TSAN_ACCESS(16)
SIMT_TSAN_ATOMIC(8, uint8_t)
SIMT_TSAN_ATOMIC(16, uint16_t)
SIMT_TSAN_ATOMIC(32, uint32_t)
SIMT_TSAN_ATOMIC(64, uint64_t)
}

#endif
