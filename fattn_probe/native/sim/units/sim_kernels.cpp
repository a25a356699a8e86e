// What runs kernels: threads and warps, their instructions, the checker. One unit, as sim_host.cpp is; without the
// tensor cores, which differ between GPUs.
#include "ahead.cpp"
#include "check.cpp"
#include "check_arithmetic.cpp"
#include "check_global.cpp"
#include "check_hooks.cpp"
#include "check_shared.cpp"
#include "mathematics.cpp"
#include "ptx.cpp"
#include "register_file.cpp"
#include "switch_stack.cpp"
#include "worker.cpp"
