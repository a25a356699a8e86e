#include "check.h"

#include "finding.h"
#include "host_memory.h"
#include "ptx.h"
#include "worker.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace simt {

#if !defined(SIMT_CHECK)

void note_read(const void *, size_t) {}
void note_write(const void *, size_t) {}

#else

namespace {

// Who touched a byte of shared memory last. Two accesses by different warps, one of them a write, are ordered only if a
// block barrier lies between; two of one warp only if a warp instruction does.
struct Access {
    uint32_t epoch  = 0;  // of the block, counted from 1; 0: never
    uint32_t phase  = 0;  // of the warp
    uint16_t thread = 0;
};

struct Byte {
    Access write;
    Access read;
    bool   read_by_many = false;  // more than one warp in that epoch
};

struct Shadow {
    Byte bytes[Worker::arena_bytes];
};

Shadow & shadow() {
    static thread_local Shadow * const own = new Shadow;  // one per host thread, for its life
    return *own;
}

Access now() {
    return {worker->block.epoch + 1, self->warp->generation, static_cast<uint16_t>(self->thread_number())};
}

bool unordered(const Access & earlier, const Access & later) {
    if (earlier.epoch != later.epoch || earlier.thread == later.thread) {
        return false;
    }
    return earlier.thread / warp_size != later.thread / warp_size || earlier.phase == later.phase;
}

std::string name_thread(uint32_t thread) {
    return "thread " + std::to_string(thread) + " (warp " + std::to_string(thread / warp_size) + ")";
}

[[noreturn]] void report_race(const char * what, const Access & earlier, size_t offset) {
    report({"race", std::string("shared memory at byte ") + std::to_string(offset) + " is " + what + " " +
                        name_thread(earlier.thread) + ", with no barrier between"});
}

void check_shared_byte(size_t offset, bool write) {
    Byte &       byte   = shadow().bytes[offset];
    const Access access = now();
    if (!write) {
        if (byte.write.epoch == 0) {
            report({"uninitialized-shared",
                    "shared memory at byte " + std::to_string(offset) + " is read, and nobody has written it"});
        }
        if (unordered(byte.write, access)) {
            report_race("read after a write by", byte.write, offset);
        }
        byte.read_by_many = byte.read.epoch == access.epoch &&
                            (byte.read_by_many || byte.read.thread / warp_size != access.thread / warp_size);
        byte.read         = access;
        return;
    }
    if (unordered(byte.read, access) || (byte.read_by_many && byte.read.epoch == access.epoch)) {
        report_race("overwritten after a read by", byte.read, offset);
    }
    if (unordered(byte.write, access) && byte.write.thread / warp_size != access.thread / warp_size) {
        report_race("overwritten after a write by", byte.write, offset);
    }
    byte.write = access;
}

void check_shared(const char * address, size_t bytes, bool write) {
    const char * arena   = worker->shared_arena();
    const char * dynamic = worker->dynamic_memory();
    bool         inside  = address >= dynamic && address + bytes <= dynamic + worker->dynamic_bytes();
    for (const StaticVariable & variable : worker->static_variables()) {
        const char * start = arena + variable.offset;
        inside             = inside || (address >= start && address + bytes <= start + variable.bytes);
    }
    if (!inside) {
        const ptrdiff_t offset = address - dynamic;
        report({"out-of-bounds", "shared memory is " + std::string(write ? "written" : "read") + " at byte " +
                                     std::to_string(offset) + " of " + std::to_string(worker->dynamic_bytes())});
    }
    for (size_t i = 0; i < bytes; i++) {
        check_shared_byte(static_cast<size_t>(address - arena) + i, write);
    }
}

void check_global(const char * address, size_t bytes) {
    static thread_local Allocation last;
    if (address >= last.start && address + bytes <= last.start + last.bytes) {
        return;
    }
    const Allocation * allocation = find_allocation(address);
    if (allocation == nullptr) {
        return;  // the host's own memory: kernel arguments, constant tables
    }
    if (!allocation->live || address < allocation->start ||
        address + bytes > allocation->start + allocation->bytes) {
        report({"out-of-bounds", describe_address(address + (address < allocation->start ? 0 : bytes - 1))});
    }
    last = *allocation;
}

void check_access(const void * pointer, size_t bytes, bool write) {
    if (self == nullptr || worker->owns_stack(pointer)) {
        return;
    }
    const char * address = static_cast<const char *>(pointer);
    if (address >= worker->shared_arena() && address < worker->shared_arena() + Worker::arena_bytes + guard_bytes) {
        check_shared(address, bytes, write);
    } else {
        check_global(address, bytes);
    }
}

}  // namespace

void note_read(const void * address, size_t bytes) {
    check_access(address, bytes, false);
}
void note_write(const void * address, size_t bytes) {
    check_access(address, bytes, true);
}

void check_new_block() {
    const auto first = static_cast<size_t>(worker->dynamic_memory() - worker->shared_arena());
    std::fill(shadow().bytes + first, shadow().bytes + Worker::arena_bytes, Byte{});
    for (const StaticVariable & variable : worker->static_variables()) {
        std::fill_n(shadow().bytes + variable.offset, variable.bytes, Byte{});
    }
}

void check_new_shared(const void * address, size_t bytes) {
    std::fill_n(shadow().bytes + (static_cast<const char *>(address) - worker->shared_arena()), bytes, Byte{});
}

#endif

}  // namespace simt

#if defined(SIMT_CHECK)

// What g++ and clang++ call under -fsanitize=thread (gcc/sanitizer.def). Atomics keep their plain meaning.
#    define SIMT_TSAN_ACCESS(bytes)                                   \
        void __tsan_read##bytes(void * address) {                     \
            simt::note_read(address, bytes);                          \
        }                                                             \
        void __tsan_write##bytes(void * address) {                    \
            simt::note_write(address, bytes);                         \
        }                                                             \
        void __tsan_unaligned_read##bytes(void * address) {           \
            simt::note_read(address, bytes);                          \
        }                                                             \
        void __tsan_unaligned_write##bytes(void * address) {          \
            simt::note_write(address, bytes);                         \
        }                                                             \
        void __tsan_volatile_read##bytes(void * address) {            \
            simt::note_read(address, bytes);                          \
        }                                                             \
        void __tsan_volatile_write##bytes(void * address) {           \
            simt::note_write(address, bytes);                         \
        }
#    define SIMT_TSAN_FETCH(bits, type, operation)                                                \
        type __tsan_atomic##bits##_fetch_##operation(volatile type * address, type value, int) {  \
            return __atomic_fetch_##operation(address, value, __ATOMIC_SEQ_CST);                  \
        }
#    define SIMT_TSAN_ATOMIC(bits, type)                                                                             \
        type __tsan_atomic##bits##_load(const volatile type * address, int) {                                        \
            return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                                       \
        }                                                                                                            \
        void __tsan_atomic##bits##_store(volatile type * address, type value, int) {                                 \
            __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                                      \
        }                                                                                                            \
        type __tsan_atomic##bits##_exchange(volatile type * address, type value, int) {                              \
            return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);                                            \
        }                                                                                                            \
        bool __tsan_atomic##bits##_compare_exchange_strong(volatile type * address, type * expected, type desired,   \
                                                           int, int) {                                               \
            return __atomic_compare_exchange_n(address, expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        }                                                                                                            \
        bool __tsan_atomic##bits##_compare_exchange_weak(volatile type * address, type * expected, type desired,     \
                                                         int, int) {                                                 \
            return __atomic_compare_exchange_n(address, expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        }                                                                                                            \
        type __tsan_atomic##bits##_compare_exchange_val(volatile type * address, type expected, type desired, int,   \
                                                        int) {                                                       \
            __atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);     \
            return expected;                                                                                         \
        }                                                                                                            \
        SIMT_TSAN_FETCH(bits, type, add)                                                                             \
        SIMT_TSAN_FETCH(bits, type, sub)                                                                             \
        SIMT_TSAN_FETCH(bits, type, or)                                                                              \
        SIMT_TSAN_FETCH(bits, type, and)                                                                             \
        SIMT_TSAN_FETCH(bits, type, xor)

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_read_range(void * address, size_t bytes) {
    simt::note_read(address, bytes);
}
void __tsan_write_range(void * address, size_t bytes) {
    simt::note_write(address, bytes);
}
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
