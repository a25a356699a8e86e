#include "environment.h"

#include <cstdlib>
#include <thread>

namespace simt {
namespace {

std::string text(const char *name) {
    const char *value = getenv(name);
    return value != nullptr ? value : "";
}

uint64_t number(const char *name, uint64_t otherwise) {
    const std::string value = text(name);
    return value.empty() ? otherwise : strtoull(value.c_str(), nullptr, 10);
}

Environment read() {
    const unsigned cores = std::thread::hardware_concurrency();
    return {
        text("FATTN_PROBE_DEVICE"),
        text("FATTN_PROBE_LAUNCHES"),
        text("FATTN_PROBE_RESOURCES"),
        text("FATTN_PROBE_SIM_DATA"),
        static_cast<unsigned>(number("FATTN_PROBE_SIM_THREADS", cores != 0 ? cores : 1)),
        number("FATTN_PROBE_SCHEDULE", 0),
        text("FATTN_PROBE_FINDINGS"),
        text("FATTN_PROBE_GFX"),
        text("FATTN_PROBE_COUNTS"),
        number("FATTN_PROBE_DRY", 0) != 0,
        number("FATTN_PROBE_SIM_IN_STEP", 0) != 0,
        number("FATTN_PROBE_SIM_DENORMALS", text("FATTN_PROBE_GFX").empty() ? 0 : 1) != 0,
        number("FATTN_PROBE_PROGRAM", 0) != 0,
        number("FATTN_PROBE_SIM_REUSE", 0) != 0,
        number("FATTN_PROBE_SIM_PORTABLE", 0) != 0,
    };
}

} // namespace

const Environment &environment() {
    static const Environment once = read();
    return once;
}

} // namespace simt
