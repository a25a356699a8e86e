// static_assert of HIP's device code, as a function: it is checked where it is reached.
#pragma once

#include "../thread.h"

namespace simt {

// g++ before 13 refuses a static_assert that fails in a branch of `if constexpr` that is not taken (CWG 2518); clang
// does not, and llama.cpp has such for waves of 64. So the rewriter puts this function in its place.
constexpr void assert_constant(bool holds, const char *message = "static_assert", const char *file = __builtin_FILE(),
                               int line = __builtin_LINE()) {
    if (!holds) {
        report_unsupported(message, file, line);
    }
}

} // namespace simt
