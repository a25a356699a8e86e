// What a debugger asks of the launches that follow: it sets these variables by name, nothing in the program does.
#pragma once

#include <cstdint>

namespace simt {

struct Focus {
    bool scout = false; // run thread 0 of every block alone: enough to read which work a block takes on
    bool skip = false;  // record launches, run nothing
    int64_t block = -1; // run this block alone, by its linear index
};
extern volatile Focus focus;

} // namespace simt
