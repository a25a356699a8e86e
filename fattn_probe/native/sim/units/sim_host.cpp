// The host's part: devices, memory, launches, findings. A dry run needs only this. It is the same for all GPUs and
// flavours.
//
// One translation unit, because separate files would spend half of their compile time on the C++ library's headers.
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
