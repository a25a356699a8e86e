// Several host threads run the blocks of a launch in an order of their own, and what the checker finds may depend on
// it: of two blocks that race either may come second, and a block may read what another one has yet to write. So a
// finding, or anything that might be one in another order, only makes such an attempt doubtful. Its blocks stop, its
// writes are undone (check_undo.h), and the launch runs again on one host thread: what that finds is reported.
//
// A launch without anything doubtful runs once.
#pragma once

#include <atomic>

namespace simt {

struct Attempt {
    bool shared = false; // the checker watches several host threads
    std::atomic<bool> doubtful{false};

    void begin(bool is_shared) {
        shared = is_shared;
        doubtful = false;
    }
};
extern Attempt attempt __attribute__((visibility("hidden"))); // read at every access

} // namespace simt
