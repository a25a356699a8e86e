// Counts what a kernel does: warp instructions by kind, sectors of global memory, wavefronts of shared memory.
//
// Compiled in with -DSIMT_COUNT and -fsanitize=thread (flavour `count`): the compiler then calls a function at each
// load and store (check_hooks.cpp). The accesses of a warp's lanes that come from one place in the code, with the same
// number of accesses from there before them, are one instruction. The count starts again whenever all lanes are
// together: at an instruction of the whole warp or a barrier of the block.
#pragma once

#include "check.h"
#include "unchecked.h"

#include <cstddef>
#include <cstdint>

namespace simt {

struct Warp;

enum class Instruction : uint8_t { tensor, movmatrix, shuffle, vote, barrier };

#if defined(SIMT_COUNT)
constexpr bool counting = true;
void count_instruction(Instruction kind, uint32_t times);
void count_matrix_product(const char *name);    // "mma.m16n8k16.f32.f16", "v_wmma_f32_16x16x16_f16"
void count_group_instruction(const char *name); // of some lanes, "shfl.sync.bfly"
void count_ldmatrix(const void *const *rows, int tiles);
void count_access(const void *address, size_t bytes, AccessKind kind, const void *place);
void count_copy(const void *to, const void *from, size_t bytes, const void *place); // cp.async
void count_warp_together(const Warp &warp);                                         // all its lanes
void count_block_together();                                                        // at a barrier, and at its end
void count_barrier();
#else
constexpr bool counting = false;
inline void count_instruction(Instruction, uint32_t) {}
inline void count_matrix_product(const char *) {}
inline void count_group_instruction(const char *) {}
inline void count_ldmatrix(const void *const *, int) {}
inline void count_copy(const void *, const void *, size_t, const void *) {}
inline void count_warp_together(const Warp &) {}
inline void count_block_together() {}
inline void count_barrier() {}
#endif

} // namespace simt
