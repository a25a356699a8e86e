// clang's vectors, `T __attribute__((ext_vector_type(N)))`, which g++ does not have.
#pragma once

#include <cstddef>

namespace simt {

// As large as clang's vector for the N in use, but aligned like its elements: mma.cuh casts arrays of elements to
// vectors, and g++ would otherwise read these with instructions that need a larger alignment.
template <class T, int N> struct ext_vector {
    static_assert(N > 0 && (N & (N - 1)) == 0, "clang pads other vectors to a power of two");
    T elements[N];

    T &operator[](size_t i) { return elements[i]; }
    const T &operator[](size_t i) const { return elements[i]; }
};

template <class T, int N, class Operation>
inline ext_vector<T, N> elementwise(const ext_vector<T, N> &a, const ext_vector<T, N> &b, Operation operation) {
    ext_vector<T, N> result;
    for (int i = 0; i < N; i++) {
        result[i] = operation(a[i], b[i]);
    }
    return result;
}
template <class T, int N> inline ext_vector<T, N> operator+(const ext_vector<T, N> &a, const ext_vector<T, N> &b) {
    return elementwise(a, b, [](const T &x, const T &y) { return x + y; });
}
template <class T, int N> inline ext_vector<T, N> operator-(const ext_vector<T, N> &a, const ext_vector<T, N> &b) {
    return elementwise(a, b, [](const T &x, const T &y) { return x - y; });
}
template <class T, int N> inline ext_vector<T, N> operator*(const ext_vector<T, N> &a, const ext_vector<T, N> &b) {
    return elementwise(a, b, [](const T &x, const T &y) { return x * y; });
}

} // namespace simt
