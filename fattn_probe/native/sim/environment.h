// The settings that fattn-probe passes to the simulator in environment variables, read once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

namespace simt {

class Environment {
    static std::string text(const char *name) {
        const char *value = getenv(name);
        return value != nullptr ? value : "";
    }
    static uint64_t number(const char *name, uint64_t otherwise = 0) {
        const std::string value = text(name);
        return value.empty() ? otherwise : strtoull(value.c_str(), nullptr, 10);
    }

  public:
    // "major=9 minor=0 multiProcessorCount=132 ... name=NVIDIA H200"
    std::string device = text("FATTN_PROBE_DEVICE");
    // The files for launch records (appended), for a finding (instead of stderr), and for the counts of a build with
    // counters (appended).
    std::string launches = text("FATTN_PROBE_LAUNCHES");
    std::string findings = text("FATTN_PROBE_FINDINGS");
    std::string counts = text("FATTN_PROBE_COUNTS");
    // A file of registers and memory of kernels, by origin; the folder of the special functions' tables.
    std::string resources = text("FATTN_PROBE_RESOURCES");
    std::string tables = text("FATTN_PROBE_SIM_DATA");
    // Host threads; 1 runs every block in the caller's own thread.
    unsigned threads = number("FATTN_PROBE_SIM_THREADS", std::max(1u, std::thread::hardware_concurrency()));
    uint64_t schedule_seed = number("FATTN_PROBE_SCHEDULE"); // 0 is the fixed order
    std::string gfx = text("FATTN_PROBE_GFX");               // the architecture of an AMD GPU, such as gfx942
    bool dry = number("FATTN_PROBE_DRY") != 0;               // record launches, run no kernel
    bool in_step = number("FATTN_PROBE_SIM_IN_STEP") != 0;   // lanes wait for each other at every warp instruction
    // Whether kernels keep denormal float32, as without -use_fast_math. On AMD they do unless this is 0, as is clang's
    // default for HIP.
    bool denormals = number("FATTN_PROBE_SIM_DENORMALS", gfx.empty() ? 0 : 1) != 0;
    bool program = number("FATTN_PROBE_PROGRAM") != 0;       // a whole program: registers were not measured
    bool reuse = number("FATTN_PROBE_SIM_REUSE") != 0;       // a released address is allocated again, as on a GPU
    bool portable = number("FATTN_PROBE_SIM_PORTABLE") != 0; // no instructions that only some processors have
};

const Environment &environment();

} // namespace simt
