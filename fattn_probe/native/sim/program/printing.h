// printf and assert in kernels. The rewriter turns printf(...) of device code into simt::print(...), and assert(...)
// into simt_assert(...).
#pragma once

namespace simt {

// Keeps the text until the launch ends; in host code it is printf.
[[gnu::format(printf, 1, 2)]] int print(const char *format, ...);

// Writes the kernels' output to stdout, sorted by block, warp, number of the thread's printf, and lane. So lanes of a
// warp that print at the same place print in order, as on a GPU; the order of blocks is undefined there.
void flush_prints();
// Discards the output of a launch that runs again.
void forget_prints();

[[noreturn]] void fail_assertion(const char *condition, const char *file, int line, const char *function);

} // namespace simt

#define simt_assert(...)                                                                                               \
    ((__VA_ARGS__) ? static_cast<void>(0) : simt::fail_assertion(#__VA_ARGS__, __FILE__, __LINE__, __func__))
