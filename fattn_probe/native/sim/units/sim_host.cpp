// What the host does: devices, memory, launches, findings. A dry run needs no more of the simulator; it is the same for
// all GPUs and flavours.
//
// One unit, because half of the time to compile these files alone is that of the C++ library's headers.
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
