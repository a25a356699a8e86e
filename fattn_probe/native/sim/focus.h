// Switches for the following launches. Only a debugger sets these variables, by name.
#pragma once

#include <cstdint>

namespace simt {

struct Focus {
    bool scout = false; // run only thread 0 of every block, which is enough to read the block's work
    bool skip = false;  // record launches without running them
    int64_t block = -1; // run only this block (linear index)
};
extern volatile Focus focus;

} // namespace simt
