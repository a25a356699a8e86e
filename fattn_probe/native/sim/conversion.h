// 64-bit integers that are stored in 32 bits. The rewriter puts SIMT_INTO(int) before the value of every `int x =
// value` in device code, and SIMT_ARGUMENT around the arguments of a launch. With the checker compiled in, a value that
// does not fit is a finding; otherwise the macros are empty.
#pragma once

#include <type_traits>

#if defined(SIMT_CHECK)

namespace simt {

[[noreturn]] void report_lost_bits(long long value, bool is_signed, int bits);

template <class T, class U> constexpr void check_fits(const U &value) {
    if constexpr (std::is_integral_v<T> && std::is_integral_v<U> && sizeof(T) < sizeof(U) && sizeof(T) >= 4) {
        if (static_cast<U>(static_cast<T>(value)) != value || (static_cast<T>(value) < 0) != (value < 0)) {
            report_lost_bits(static_cast<long long>(value), std::is_signed_v<U>, 8 * sizeof(T));
        }
    }
}

template <class T> struct Into {
    template <class U> constexpr T operator=(const U &value) const {
        check_fits<T>(value);
        return static_cast<T>(value);
    }
};

// An argument of 64 bits, for a parameter of any type.
template <class U> struct Argument {
    U value;
    template <class T> operator T() const {
        check_fits<T>(value);
        return static_cast<T>(value);
    }
};
template <class U> decltype(auto) argument(U &value) {
    if constexpr (std::is_integral_v<U> && sizeof(U) == 8) {
        return Argument<U>{value};
    } else {
        return static_cast<U &>(value);
    }
}

} // namespace simt

#define SIMT_INTO(type) simt::Into<type>{} =
#define SIMT_ARGUMENT(name) simt::argument(name)

#else

#define SIMT_INTO(type)
#define SIMT_ARGUMENT(name) name

#endif
