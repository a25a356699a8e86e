// Checks every memory access of a kernel. Compiled in with -DSIMT_CHECK and -fsanitize=thread: the compiler then calls
// a function at each access, and these functions take the place of ThreadSanitizer's (check_hooks.cpp).
//
// It reports:
// - an access outside its allocation or the block's shared memory, exact to the byte, and an access to host memory;
// - an access to an address that is not a multiple of the type's alignment (a GPU traps there), integer overflow, and
//   64-bit integers that do not fit where they are stored (check_arithmetic.cpp);
// - a read of shared memory that was not written in this block, and of global memory that was never written;
// - races in shared memory, by the rules of compute-sanitizer's racecheck: two threads access a byte, at least one of
//   them writes, and nothing orders them. Only a block barrier orders threads of different warps. Any warp-wide
//   instruction orders the lanes of a warp, and nothing else does: since Volta, lanes need not run in lockstep. Two
//   writes of the same value are not a race, nor are two atomic accesses;
// - races in global memory between blocks of a launch, by the same rules; nothing orders blocks. In a launch that calls
//   __threadfence(), blocks may synchronise through atomic operations, so no such races are reported;
// - races between kernels, and between kernels and copies: an access to memory that is written by an operation
//   which may still be running (check_order.h);
// - an access to a byte while a cp.async copies to it, that is, before the thread that started the copy has waited.
// Not checked: races in global memory within a block, and memcpy of a size that g++ does not turn into one move
// (llama.cpp's kernels have none).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace simt {

enum class AccessKind : uint8_t { read, write, atomic };

#if defined(SIMT_CHECK)
constexpr bool checking = true;
// `place`: an address in the code just after the access; nullptr: the caller's.
void check_access(const void *address, size_t bytes, AccessKind kind, const void *place = nullptr);
void check_misaligned(const void *address, size_t bytes); // reports it, if the address is the kernel's
void check_new_block();
void check_end_of_block();
void check_copy_begins(const void *to, size_t bytes);
void check_copy_ends(const void *to, size_t bytes);
void note_fence();
cudaError_t wait_for_kernels() noexcept; // cudaGridDependencySynchronize()
cudaError_t trigger_dependents() noexcept;
#else
constexpr bool checking = false;
inline void check_new_block() {}
inline void check_end_of_block() {}
inline void check_copy_begins(const void *, size_t) {}
inline void check_copy_ends(const void *, size_t) {}
inline void note_fence() {}
inline cudaError_t wait_for_kernels() noexcept { return cudaSuccess; }
inline cudaError_t trigger_dependents() noexcept { return cudaSuccess; }
#endif

} // namespace simt
