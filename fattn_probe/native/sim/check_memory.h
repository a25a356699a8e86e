// The checker's shadow memory: which bytes were written, and by which blocks and threads of this launch.
#pragma once

#include "check.h"
#include "finding.h"

namespace simt {

struct GlobalShadow;

// The shadow of the allocation that contains a whole access; nullptr if no allocation does.
GlobalShadow *global_shadow(const char *address, size_t bytes);

void check_new_block_of_launch();
void check_global(GlobalShadow &shadow, const char *address, size_t bytes, AccessKind kind, const void *place);
// Checks an access to the block's shared memory, and records its thread and time.
void check_shared(const char *address, size_t bytes, AccessKind kind);

// A write over another thread's or block's write is a race unless the values are equal: the running thread is about to
// overwrite `bytes` bytes at `address`; if this changes their values, `finding` is reported. This is known only after
// the write, so it is checked when this thread writes next, or when another thread accesses memory.
void note_overwrite(Finding finding, const char *address, size_t bytes);
void settle_overwrite(bool write);

} // namespace simt
