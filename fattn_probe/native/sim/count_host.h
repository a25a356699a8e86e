// What the host tells the counters, as check_host.h does for the checker: null without counters.
#pragma once

namespace simt {

struct CountersOfHost {
    void (*launch_done)(unsigned order); // all blocks of a launch have run
};
extern const CountersOfHost *counters;

} // namespace simt
