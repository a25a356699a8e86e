// Every memory access of a kernel, watched. Compiled in with -DSIMT_CHECK, which goes with -fsanitize=thread: the
// compiler then calls a function at each access, and these functions are ours instead of ThreadSanitizer's.
//
// What is reported:
// - an access out of the bounds of its allocation, or of the block's shared memory, to the byte;
// - an access to an address that is not a multiple of what the type promises (a GPU traps there);
// - a read of shared memory that nobody has written in this block;
// - races in shared memory, by the rules of compute-sanitizer's racecheck: two threads access a byte, one of them
// writes,
//   and nothing orders them. Threads of two warps are ordered by a block barrier only. Lanes of one warp are ordered by
//   any warp-wide instruction, and by nothing else: since Volta they need not run in step. Two writes of the same value
//   are no race, nor are two atomic accesses;
// - a byte that is read or written while a cp.async copies to it, that is before the thread that began it has waited.
// Not watched: races in global memory, and memcpy of a size that g++ does not turn into one move (llama.cpp's kernels
// have none).
#pragma once

#include <cstddef>

namespace simt {

#if defined(SIMT_CHECK)
constexpr bool checking = true;
void check_new_block();
void check_pending(); // a race whose write has happened by now
void check_new_shared(const void *address, size_t bytes);
void check_copy_begins(const void *to, size_t bytes);
void check_copy_ends(const void *to, size_t bytes);
#else
constexpr bool checking = false;
inline void check_new_block() {}
inline void check_pending() {}
inline void check_new_shared(const void *, size_t) {}
inline void check_copy_begins(const void *, size_t) {}
inline void check_copy_ends(const void *, size_t) {}
#endif

} // namespace simt
