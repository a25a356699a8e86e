// cp.async through CUDA's C functions, for kernels of whole programs.
#pragma once

#include "../../ptx_more.h"

#include <cstddef>

// Copies `bytes` (4, 8 or 16) to shared memory; the last `zeros` of these are not read and become 0.
inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes, size_t zeros = 0) {
    simt::copy_async(to, from, bytes, bytes - zeros);
}
inline void __pipeline_commit() { simt::commit_copies(); }
// Waits for all groups but the last `left`.
inline void __pipeline_wait_prior(size_t left) { simt::wait_for_copies(static_cast<uint32_t>(left)); }
