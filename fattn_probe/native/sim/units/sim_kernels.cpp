// The part that runs kernels: threads and warps, their instructions, the checker. One translation unit, like
// sim_host.cpp; without the tensor cores, which differ between GPUs.
#include "ahead.cpp"
#include "check.cpp"
#include "check_sites.cpp"
#include "group.cpp"
#include "mathematics.cpp"
#include "program/kernel_heap.cpp"
#include "ptx.cpp"
#include "register_file.cpp"
#include "switch_stack.cpp"
#include "symbols.cpp"
#include "warp.cpp"
#include "worker.cpp"

#if defined(SIMT_CHECK) || defined(SIMT_ALIGNED)
#include "alignment.cpp"
#endif
#if defined(SIMT_CHECK) || defined(SIMT_COUNT)
#include "check_hooks.cpp"
#endif
#if defined(SIMT_CHECK)
#include "check_arithmetic.cpp"
#include "check_global.cpp"
#include "check_order.cpp"
#include "check_shared.cpp"
#include "check_undo.cpp"
#include "check_words.cpp"
#include "check_writers.cpp"
#endif
#if defined(SIMT_COUNT)
#include "count.cpp"
#include "count_join.cpp"
#include "count_rules.cpp"
#include "count_tally.cpp"
#endif
