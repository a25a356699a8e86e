// Checks every memory access of a kernel. Compiled in with -DSIMT_CHECK and -fsanitize=thread: the compiler then calls
// a function at each access, and these functions take the place of ThreadSanitizer's.
//
// It reports:
// - an access outside its allocation, or outside the block's shared memory, to the byte;
// - an access to an address that is not a multiple of the type's alignment (a GPU traps there);
// - a read of shared memory that was not written in this block;
// - races in shared memory, by the rules of compute-sanitizer's racecheck: two threads access a byte, at least one of
//   them writes, and nothing orders them. Only a block barrier orders threads of different warps. Any warp-wide
//   instruction orders the lanes of a warp, and nothing else does: since Volta they need not run in lockstep. Two
//   writes of the same value are no race, nor are two atomic accesses;
// - an access to a byte while a cp.async copies to it, that is, before the thread that started the copy has waited.
// Not checked: races in global memory, and memcpy of a size that g++ does not turn into one move (llama.cpp's kernels
// have none).
#pragma once

#include <cstddef>

namespace simt {

#if defined(SIMT_CHECK)
constexpr bool checking = true;
void check_new_block();
void check_new_shared(const void *address, size_t bytes);
void check_copy_begins(const void *to, size_t bytes);
void check_copy_ends(const void *to, size_t bytes);
#else
constexpr bool checking = false;
inline void check_new_block() {}
inline void check_new_shared(const void *, size_t) {}
inline void check_copy_begins(const void *, size_t) {}
inline void check_copy_ends(const void *, size_t) {}
#endif

} // namespace simt
