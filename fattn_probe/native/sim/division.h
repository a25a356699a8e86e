// Division as nvcc's -use_fast_math compiles it, in device code: a/b is a * rcp(b) for float, exact for integers.
//
// The rewriter turns `a / b` into `a *divided_by* b` and `a /= b` into `a *= reciprocal_of = b`: same precedence, same
// associativity, and the types decide here what is meant.
#pragma once

#include <type_traits>

namespace simt {

float rcp_approx(float x);

struct DividedBy {};
inline constexpr DividedBy divided_by{};

template <class T> struct Dividend {
    T value;
};

template <class T> constexpr Dividend<T> operator*(const T & value, DividedBy) {
    return {value};
}

template <class T, class U> constexpr auto operator*(const Dividend<T> & dividend, const U & divisor) {
    if constexpr (std::is_arithmetic_v<T> && std::is_arithmetic_v<U>) {
        if constexpr (std::is_same_v<std::common_type_t<T, U>, float>) {
            return static_cast<float>(dividend.value) * rcp_approx(static_cast<float>(divisor));
        } else {
            return dividend.value / divisor;
        }
    } else {
        return dividend.value / divisor;
    }
}

template <class U> struct Reciprocal {
    U divisor;
};

struct ReciprocalOf {
    template <class U> constexpr Reciprocal<U> operator=(const U & divisor) const { return {divisor}; }
};
inline constexpr ReciprocalOf reciprocal_of{};

template <class T, class U> constexpr T & operator*=(T & value, const Reciprocal<U> & reciprocal) {
    return value = Dividend<T>{value} * reciprocal.divisor;
}

}  // namespace simt
