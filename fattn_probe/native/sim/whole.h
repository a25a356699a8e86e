// A copy of a vector: `((int4 *) to)[i] = ((const int4 *) from)[i]`; the rewriter adds SIMT_WHOLE to both sides. A GPU
// copies the vector in one access, and stops if it is misaligned. g++ may copy single components; then the processor
// detects no misalignment, and each component calls the checker. With this macro, g++ also makes only one access.
#pragma once

#include <type_traits>

namespace simt {

typedef int Int2 __attribute__((vector_size(8), may_alias));
typedef int Int4 __attribute__((vector_size(16), may_alias));

template <class T> __attribute__((always_inline)) inline auto &whole(T &vector) {
    using Whole = std::conditional_t<sizeof(T) == sizeof(Int2), Int2, Int4>;
    static_assert(sizeof(T) == sizeof(Whole), "a vector of 8 or 16 bytes");
    return reinterpret_cast<std::conditional_t<std::is_const_v<T>, const Whole, Whole> &>(vector);
}

} // namespace simt

#define SIMT_WHOLE(vector) simt::whole(vector)
