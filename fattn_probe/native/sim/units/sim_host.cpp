// The host's part: devices, memory, launches, findings. All that a dry run needs; the same for all GPUs and flavours.
//
// One translation unit, because the C++ library's headers would take half of the time to compile these files
// separately.
#include "amd/occupancy.cpp"
#include "copies.cpp"
#include "cudart.cpp"
#include "device.cpp"
#include "device_limits.cpp"
#include "environment.cpp"
#include "finding.cpp"
#include "host_memory.cpp"
#include "launch.cpp"
#include "program/printing.cpp"
#include "program/runtime.cpp"
#include "selection.cpp"
#include "signals.cpp"
#include "streams.cpp"
