// Every memory access of a kernel, watched: bounds to the byte, reads of shared memory nobody wrote, races between
// warps. Compiled in with -DSIMT_CHECK, which goes with -fsanitize=thread: the compiler then calls a function at each
// access, and these functions are ours instead of ThreadSanitizer's.
#pragma once

#include <cstddef>

namespace simt {

#if defined(SIMT_CHECK)
void check_new_block();
void check_new_shared(const void * address, size_t bytes);
#else
inline void check_new_block() {}
inline void check_new_shared(const void *, size_t) {}
#endif

}  // namespace simt
