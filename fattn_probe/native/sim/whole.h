// A copy of a vector: `((int4 *) to)[i] = ((const int4 *) from)[i]`, to whose sides the rewriter puts SIMT_WHOLE. A GPU
// copies it at once, and stops if it is not aligned. g++ may copy its components, by which the processor does not
// notice that, and for each of which the checker would be called; so it copies it at once too.
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
