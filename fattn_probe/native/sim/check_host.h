// What the host tells the checker. The host's half of the simulator is the same whether the checker is compiled in or
// not, and a dry run has nothing else, so these are pointers: null without a checker.
#pragma once

#include "streams.h"

#include <cstddef>
#include <cstdint>

namespace simt {

struct Launch;

// A copy or a fill on a stream. `host_waits`: the host goes on when it is done.
struct Transfer {
    const char *call; // the function of the runtime
    Stream stream;
    const void *to;
    const void *from; // nullptr: a fill
    size_t bytes;
    bool host_waits;
};

struct CheckerOfHost {
    void (*new_launch)(const Launch &launch);
    void (*undo_launch)();           // its blocks have stopped, and will run again
    void (*launch_done)(bool whole); // whether all its blocks ran
    void (*allocated)(char *start, size_t bytes);
    void (*released)(const char *start);
    void (*written)(const void *to, const void *from, size_t bytes); // by the host; from: nullptr if it has no source
    void (*written_before)(const void *memory, size_t bytes); // as by a kernel that comes before the next operation
    void (*transferred)(const Transfer &transfer);
    void (*recorded)(uint32_t event, Stream stream);
    void (*waits)(Stream stream, uint32_t event);
    void (*host_waits)(Stream stream);
    void (*host_waits_for_event)(uint32_t event);
    void (*host_waits_for_all)();
};
extern const CheckerOfHost *checker;

} // namespace simt
