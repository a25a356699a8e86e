// The simulator's own functions that are compiled into kernels. They touch registers and the simulator's memory, which
// the checker would only pass over, at the cost of most of its time: SIMT_UNCHECKED keeps it out of such a function.
// What these call is inlined into them only if it must be: SIMT_PART. For checked kernels prelude.h defines both.
#pragma once

#if !defined(SIMT_UNCHECKED)
#define SIMT_UNCHECKED
#define SIMT_PART
#endif
