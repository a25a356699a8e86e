#pragma once
namespace simt {
template <class T, int N> struct alignas(sizeof(T) * N) ext_vector {
    T x[N];
    T &operator[](int i) { return x[i]; }
    const T &operator[](int i) const { return x[i]; }
};
} // namespace simt
