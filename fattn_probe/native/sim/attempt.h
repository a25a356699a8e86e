// Several host threads run the blocks of a launch in varying order, and the checker's findings may depend on that
// order: either of two racing blocks may come second, and a block may read memory that another block has yet to write.
// So a finding, or anything that could be one in a different order, only makes the attempt doubtful. Its blocks stop,
// its writes are undone (check_undo.h), and the launch runs again on one host thread, whose finding is reported.
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
