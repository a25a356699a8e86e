// Calls from the host to the checker. The host half of the simulator is the same with and without the checker, and is
// all that a dry run has. So these are pointers: without a checker, they point to a function that does nothing.
#pragma once

#include "streams.h"

#include <cstddef>
#include <cstdint>

namespace simt {

struct Launch;

// A copy or a fill on a stream. With `host_waits`, the host continues only when it is done, as after a copy to unpinned
// host memory.
struct Transfer {
    const char *call; // the function of the runtime
    Stream stream;
    const void *to;
    const void *from; // nullptr: a fill
    size_t bytes;
    bool host_waits;
};

template <class... Told> void ignore(Told...) {}

struct CheckerOfHost {
    bool watches = false;
    void (*new_launch)(const Launch &launch) = ignore;
    void (*undo_launch)() = ignore;           // its blocks have stopped, and will run again
    void (*launch_done)(bool whole) = ignore; // whether all its blocks ran
    void (*allocated)(char *start, size_t bytes) = ignore;
    void (*released)(const char *start) = ignore;
    // The host wrote memory; `from` is nullptr without a source.
    void (*written)(const void *to, const void *from, size_t bytes) = ignore;
    // Marks memory as written by a kernel before the next operation.
    void (*written_before)(const void *memory, size_t bytes) = ignore;
    void (*transferred)(const Transfer &transfer) = ignore;
    void (*recorded)(uint32_t event, Stream stream) = ignore;
    void (*waits)(Stream stream, uint32_t event) = ignore;
    void (*host_waits)(Stream stream) = ignore;
    void (*host_waits_for_event)(uint32_t event) = ignore;
    void (*host_waits_for_all)() = ignore;
};
extern CheckerOfHost checker;
// The call from the host to the counters: all blocks of a launch have run.
extern void (*count_launch)(unsigned order);

} // namespace simt
