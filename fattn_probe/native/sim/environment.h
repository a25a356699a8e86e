// What fattn-probe tells the simulator through environment variables, read once.
#pragma once

#include <cstdint>
#include <string>

namespace simt {

struct Environment {
    std::string device;     // FATTN_PROBE_DEVICE: "major=9 minor=0 multiProcessorCount=132 ... name=NVIDIA H200"
    std::string launches;   // FATTN_PROBE_LAUNCHES: the file that launch records are appended to
    std::string resources;  // FATTN_PROBE_RESOURCES: a file of registers and memory of kernels, by origin
    std::string tables;     // FATTN_PROBE_SIM_DATA: the folder of the special functions' tables
    unsigned threads;       // FATTN_PROBE_SIM_THREADS: host threads; 1 runs every block in the caller's own thread
    uint64_t schedule_seed; // FATTN_PROBE_SCHEDULE: 0 is the fixed order
    std::string findings;   // FATTN_PROBE_FINDINGS: the file for a finding, instead of stderr
    std::string gfx;        // FATTN_PROBE_GFX: the architecture of an AMD GPU, such as gfx942
    std::string counts;     // FATTN_PROBE_COUNTS: the file that a build with counters appends its counts to
    bool dry;               // FATTN_PROBE_DRY=1: record launches, run no kernel
    bool in_step;           // FATTN_PROBE_SIM_IN_STEP=1: lanes wait for each other at every warp instruction
    // FATTN_PROBE_SIM_DENORMALS=1: kernels keep denormal float32, as without -use_fast_math. On AMD they always do,
    // unless it is 0: that is clang's default for HIP.
    bool denormals;
    bool program;  // FATTN_PROBE_PROGRAM=1: a whole program, whose kernels' registers nobody has measured
    bool reuse;    // FATTN_PROBE_SIM_REUSE=1: a released address is allocated again, as on a GPU
    bool portable; // FATTN_PROBE_SIM_PORTABLE=1: no instructions that only some processors have
};

const Environment &environment();

} // namespace simt
