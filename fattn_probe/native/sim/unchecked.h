// The simulator's own functions that are compiled into kernels. They access registers and the simulator's memory, and
// the checker would spend most of its time skipping these; SIMT_UNCHECKED keeps it out of such a function. SIMT_PART
// forces inlining of the functions that these call. For checked kernels, prelude.h defines both macros.
#pragma once

#if !defined(SIMT_UNCHECKED)
#define SIMT_UNCHECKED
#define SIMT_PART
#endif
