// new, malloc, delete and free in kernels: the rewriter replaces `new T` with `new (simt::in_kernel) T`, and the
// other three with functions of namespace simt.
#pragma once

#include <cstddef>
#include <type_traits>

namespace simt {

struct InKernel {};
constexpr InKernel in_kernel;

// In host code these are malloc and free.
void *allocate_in_kernel(size_t bytes);
void free_in_kernel(void *memory);

template <class T> void delete_in_kernel(T *object) {
    if (object != nullptr) {
        void *memory = const_cast<std::remove_cv_t<T> *>(object);
        if constexpr (std::is_polymorphic_v<T>) {
            memory = const_cast<void *>(dynamic_cast<const volatile void *>(object));
        }
        object->~T();
        free_in_kernel(memory);
    }
}

// g++ stores the number of elements before an array whose elements have destructors.
template <class T> void delete_array_in_kernel(T *array) {
    char *memory = reinterpret_cast<char *>(const_cast<std::remove_cv_t<T> *>(array));
    if constexpr (!std::is_trivially_destructible_v<T>) {
        if (array == nullptr) {
            return;
        }
        for (size_t i = reinterpret_cast<const size_t *>(memory)[-1]; i > 0; i--) {
            array[i - 1].~T();
        }
        memory -= alignof(T) > sizeof(size_t) ? alignof(T) : sizeof(size_t);
    }
    free_in_kernel(memory);
}

} // namespace simt

inline void *operator new(size_t bytes, simt::InKernel) { return simt::allocate_in_kernel(bytes); }
inline void *operator new[](size_t bytes, simt::InKernel) { return simt::allocate_in_kernel(bytes); }
