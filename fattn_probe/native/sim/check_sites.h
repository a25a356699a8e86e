// Lanes of a warp that execute one warp instruction at different places of the program.
//
// PTX demands that all threads of a warp execute the same `.aligned` instruction (ldmatrix, movmatrix, mma); an H100
// hangs if half of a warp is at a different ldmatrix. For shuffles, votes, reductions and __syncwarp(), Volta and newer
// GPUs only require the same kind and mask, wherever the lanes are: CUDA's guide says so, and an H100 gives the correct
// values (2026-11-25). On older GPUs, all lanes of the mask must be at the same instruction.
//
// AMD's shuffles exchange values only among lanes at the same place. AMD's matrix instructions read the registers of
// all lanes, even of lanes that are elsewhere (EXEC is ignored: CDNA3 ISA, RDNA3 ISA).
#pragma once

#include "thread.h"
#include "unchecked.h"

namespace simt {

// For the checker: the running lane executes a warp instruction for the function's caller. It must be called in a
// function outside kernels.
SIMT_PART inline void note_site() {
#if defined(SIMT_CHECK)
    self->site = __builtin_return_address(0);
#endif
}

void report_site(const void *first, const char *instruction);

// The running lane is at an instruction at which other lanes wait, the first of them at `first`.
inline void check_site(const void *first, const char *instruction) {
    if (__builtin_expect(self->site != first, 0)) {
        report_site(first, instruction);
    }
}

} // namespace simt
