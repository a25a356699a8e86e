// Atomic operations: blocks run on several host threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace simt {

template <size_t bytes>
using Bits = std::conditional_t<bytes == 2, uint16_t, std::conditional_t<bytes == 4, uint32_t, uint64_t>>;

// Replaces a value with `operation(value)`; returns the old one.
template <class T, class Operation> T atomic_update(T *address, Operation operation) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "a type that a GPU can exchange");
    auto *bits = reinterpret_cast<Bits<sizeof(T)> *>(address);
    Bits<sizeof(T)> old = __atomic_load_n(bits, __ATOMIC_RELAXED), wanted;
    for (;;) {
        T value;
        memcpy(&value, &old, sizeof(T));
        const T next = operation(value);
        memcpy(&wanted, &next, sizeof(T));
        if (__atomic_compare_exchange_n(bits, &old, wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            return value;
        }
    }
}

} // namespace simt

template <class T, class U> inline T atomicAdd(T *address, U value) {
    if constexpr (std::is_integral_v<T>) {
        return __atomic_fetch_add(address, static_cast<T>(value), __ATOMIC_RELAXED);
    } else {
        return simt::atomic_update(address, [=](T old) { return static_cast<T>(old + static_cast<T>(value)); });
    }
}
template <class T> inline T atomicMax(T *address, T value) {
    return simt::atomic_update(address, [=](T old) { return old < value ? value : old; });
}
