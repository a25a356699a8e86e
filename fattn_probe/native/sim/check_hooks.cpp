// The functions that g++ and clang++ call under -fsanitize=thread (gcc/sanitizer.def): read4 if the type promises an
// address that is a multiple of 4, else read_range or unaligned_read4.
#include "check.h"
#include "check_quick.h"
#include "count.h"

#include <cstdint>
#include <type_traits>

namespace {

// Inlined into the hook, whose return address is the place of the access.
#define SIMT_IN_HOOK __attribute__((always_inline)) inline

#if defined(SIMT_COUNT)

SIMT_IN_HOOK void see(const void *address, size_t bytes, simt::AccessKind kind) {
    simt::count_access(address, bytes, kind, __builtin_return_address(0));
}
SIMT_IN_HOOK void see_typed(const void *address, size_t bytes, simt::AccessKind kind) { see(address, bytes, kind); }
template <class T> T *seen_load(T *address) { return address; } // its loop, which ends with an exchange, counts once

#else

SIMT_IN_HOOK void see(const void *address, size_t bytes, simt::AccessKind kind) {
    simt::check_access(address, bytes, kind, __builtin_return_address(0));
}
SIMT_IN_HOOK void see_typed(const void *address, size_t bytes, simt::AccessKind kind) {
    if (__builtin_expect(simt::are_local(address), 1)) {
        return;
    }
    if (__builtin_expect((reinterpret_cast<uintptr_t>(address) & (bytes - 1)) != 0, 0)) {
        simt::check_misaligned(address, bytes);
    }
    see(address, bytes, kind);
}

#endif

template <class T> SIMT_IN_HOOK T *seen(T *address) {
    see_typed(const_cast<const std::remove_volatile_t<T> *>(address), sizeof(T), simt::AccessKind::atomic);
    return address;
}

#if defined(SIMT_CHECK)
template <class T> SIMT_IN_HOOK T *seen_load(T *address) { return seen(address); }
#endif

} // namespace

#define SIMT_TSAN_ACCESS(bytes)                                                                                        \
    void __tsan_read##bytes(void *address) { see_typed(address, bytes, simt::AccessKind::read); }                      \
    void __tsan_write##bytes(void *address) { see_typed(address, bytes, simt::AccessKind::write); }                    \
    void __tsan_unaligned_read##bytes(void *address) { see(address, bytes, simt::AccessKind::read); }                  \
    void __tsan_unaligned_write##bytes(void *address) { see(address, bytes, simt::AccessKind::write); }
#define SIMT_TSAN_FETCH(bits, type, operation)                                                                         \
    type __tsan_atomic##bits##_fetch_##operation(volatile type *address, type value, int) {                            \
        return __atomic_fetch_##operation(seen(address), value, __ATOMIC_SEQ_CST);                                     \
    }
#define SIMT_TSAN_ATOMIC(bits, type)                                                                                   \
    type __tsan_atomic##bits##_load(const volatile type *address, int) {                                               \
        return __atomic_load_n(seen_load(address), __ATOMIC_SEQ_CST);                                                  \
    }                                                                                                                  \
    void __tsan_atomic##bits##_store(volatile type *address, type value, int) {                                        \
        __atomic_store_n(seen(address), value, __ATOMIC_SEQ_CST);                                                      \
    }                                                                                                                  \
    type __tsan_atomic##bits##_exchange(volatile type *address, type value, int) {                                     \
        return __atomic_exchange_n(seen(address), value, __ATOMIC_SEQ_CST);                                            \
    }                                                                                                                  \
    bool __tsan_atomic##bits##_compare_exchange_strong(volatile type *address, type *expected, type desired, int,      \
                                                       int) {                                                          \
        return __atomic_compare_exchange_n(seen(address), expected, desired, false, __ATOMIC_SEQ_CST,                  \
                                           __ATOMIC_SEQ_CST);                                                          \
    }                                                                                                                  \
    bool __tsan_atomic##bits##_compare_exchange_weak(volatile type *address, type *expected, type desired, int, int) { \
        return __atomic_compare_exchange_n(seen(address), expected, desired, false, __ATOMIC_SEQ_CST,                  \
                                           __ATOMIC_SEQ_CST);                                                          \
    }                                                                                                                  \
    type __tsan_atomic##bits##_compare_exchange_val(volatile type *address, type expected, type desired, int, int) {   \
        __atomic_compare_exchange_n(seen(address), &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);     \
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
void __tsan_read_range(void *address, size_t bytes) { see(address, bytes, simt::AccessKind::read); }
void __tsan_write_range(void *address, size_t bytes) { see(address, bytes, simt::AccessKind::write); }
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
