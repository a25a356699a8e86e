// Division as nvcc's -use_fast_math compiles it, in device code: a/b is a * rcp(b) for float, exact for integers.
//
// With SIMT_PRECISE, floats are divided as without -use_fast_math.
//
// The rewriter turns `a / b` into `a *divided_by* b` and `a /= b` into `a *= reciprocal_of = b`: precedence and
// associativity are kept, and overloads choose by type. Likewise `a % b` becomes `a *remainder_by* b`.
//
// A GPU does not trap on an integer division by zero (without a mask, kernels compute `sequence % ne33`, and ignore the
// result). On a GPU the result is undefined; here the divisor counts as 1, without a branch.
#pragma once

#include <type_traits>

namespace simt {

float rcp_approx(float x);

template <class T> constexpr T nonzero(T divisor) {
    if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(divisor + (divisor == 0));
    } else {
        return divisor;
    }
}

struct DividedBy {};
inline constexpr DividedBy divided_by{};

template <class T> struct Dividend {
    T value;
};

template <class T> constexpr Dividend<T> operator*(const T &value, DividedBy) { return {value}; }

template <class T, class U> constexpr auto operator*(const Dividend<T> &dividend, const U &divisor) {
    if constexpr (std::is_arithmetic_v<T> && std::is_arithmetic_v<U>) {
        if constexpr (std::is_same_v<std::common_type_t<T, U>, float>) {
#if defined(SIMT_PRECISE)
            return static_cast<float>(dividend.value) / static_cast<float>(divisor);
#else
            return static_cast<float>(dividend.value) * rcp_approx(static_cast<float>(divisor));
#endif
        } else {
            return dividend.value / nonzero(divisor);
        }
    } else {
        return dividend.value / divisor;
    }
}

struct RemainderBy {};
inline constexpr RemainderBy remainder_by{};

template <class T> struct RemainderOf {
    T value;
};

template <class T> constexpr RemainderOf<T> operator*(const T &value, RemainderBy) { return {value}; }

template <class T, class U> constexpr auto operator*(const RemainderOf<T> &dividend, const U &divisor) {
    return dividend.value % nonzero(divisor);
}

template <class U> struct Reciprocal {
    U divisor;
};

struct ReciprocalOf {
    template <class U> constexpr Reciprocal<U> operator=(const U &divisor) const { return {divisor}; }
};
inline constexpr ReciprocalOf reciprocal_of{};

template <class T, class U> constexpr T &operator*=(T &value, const Reciprocal<U> &reciprocal) {
    return value = Dividend<T>{value} * reciprocal.divisor;
}

} // namespace simt
