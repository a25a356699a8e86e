// What the host tells the checker. The host's half of the simulator is the same whether the checker is compiled in or
// not, and a dry run has nothing else, so these are pointers: null without a checker.
#pragma once

#include <cstddef>

namespace simt {

struct CheckerOfHost {
    void (*new_launch)();
    void (*allocated)(char *start, size_t bytes);
    void (*released)(const char *start);
    void (*written)(const void *to, const void *from, size_t bytes); // from: nullptr for cudaMemset
};
extern const CheckerOfHost *checker;

} // namespace simt
