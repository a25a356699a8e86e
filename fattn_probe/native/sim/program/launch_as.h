// Launches of kernels whose parameters are known: the arguments are converted to them, as by nvcc.
#pragma once

#include "../conversion.h"
#include "../launch.h"

#include <cstddef>
#include <type_traits>

namespace simt {

// A parameter of a launch, with the type of the kernel's parameter: NULL, 0 and {1, 2.0f} are converted to it.
#if defined(SIMT_CHECK)
template <class T> struct Narrow {
    T value;
    template <class U, class = std::enable_if_t<std::is_convertible_v<U, T>>>
    Narrow(const U &from) : value(static_cast<T>(from)) {
        check_fits<T>(from);
    }
    operator T() const { return value; }
};
template <class T> using Passed = std::conditional_t<std::is_integral_v<T> && sizeof(T) == 4, Narrow<T>, T>;
#else
template <class T> using Passed = T;
#endif

template <class Kernel, class... Parameters> struct ConfiguredAs {
    Configured<Kernel> launch;

    cudaError_t operator()(Passed<Parameters>... arguments) const {
        return launch(static_cast<Parameters>(arguments)...);
    }
    // The rest are the kernel's default arguments.
    template <class... Arguments>
    std::enable_if_t<sizeof...(Arguments) < sizeof...(Parameters), cudaError_t> operator()(Arguments... some) const {
        return launch(some...);
    }
};

// Makes the call for a kernel whose parameters are known; the lambda calls the kernel.
template <class... Parameters, class Kernel>
ConfiguredAs<Kernel, Parameters...> launch_as(void (*)(Parameters...), Kernel kernel, dim3 grid, dim3 block,
                                              size_t shared = 0, cudaStream_t stream = nullptr) {
    return {{kernel, grid, block, shared, {stream}}};
}

} // namespace simt
