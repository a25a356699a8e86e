// The atomic operations that llama.cpp's attention kernels do not use. Scopes make no difference here.
#pragma once

#include "../atomics.h"

template <class T, class U> inline T atomicSub(T *address, U value) {
    return simt::atomic_update(address, [=](T old) { return static_cast<T>(old - static_cast<T>(value)); });
}
template <class T, class U> inline T atomicExch(T *address, U value) {
    return simt::atomic_update(address, [=](T) { return static_cast<T>(value); });
}
template <class T, class U> inline T atomicMin(T *address, U value) {
    return simt::atomic_update(address,
                               [=](T old) { return static_cast<T>(value) < old ? static_cast<T>(value) : old; });
}
template <class T, class U, class = std::enable_if_t<!std::is_same_v<T, U>>> inline T atomicMax(T *address, U value) {
    return atomicMax(address, static_cast<T>(value));
}
template <class T, class U> inline T atomicAnd(T *address, U value) {
    return simt::atomic_update(address, [=](T old) { return static_cast<T>(old & static_cast<T>(value)); });
}
template <class T, class U> inline T atomicOr(T *address, U value) {
    return simt::atomic_update(address, [=](T old) { return static_cast<T>(old | static_cast<T>(value)); });
}
template <class T, class U> inline T atomicXor(T *address, U value) {
    return simt::atomic_update(address, [=](T old) { return static_cast<T>(old ^ static_cast<T>(value)); });
}
inline unsigned atomicInc(unsigned *address, unsigned limit) {
    return simt::atomic_update(address, [=](unsigned old) { return old >= limit ? 0 : old + 1; });
}
inline unsigned atomicDec(unsigned *address, unsigned limit) {
    return simt::atomic_update(address, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}
template <class T, class U, class V> inline T atomicCAS(T *address, U compare, V value) {
    const T wanted = static_cast<T>(compare);
    return simt::atomic_update(
        address, [=](T old) { return memcmp(&old, &wanted, sizeof(T)) == 0 ? static_cast<T>(value) : old; });
}

#define SIMT_SCOPED(name)                                                                                              \
    template <class T, class... U> inline T name##_block(T *address, U... values) { return name(address, values...); } \
    template <class T, class... U> inline T name##_system(T *address, U... values) { return name(address, values...); }
SIMT_SCOPED(atomicAdd)
SIMT_SCOPED(atomicSub)
SIMT_SCOPED(atomicExch)
SIMT_SCOPED(atomicMin)
SIMT_SCOPED(atomicMax)
SIMT_SCOPED(atomicAnd)
SIMT_SCOPED(atomicOr)
SIMT_SCOPED(atomicXor)
SIMT_SCOPED(atomicCAS)
#undef SIMT_SCOPED
