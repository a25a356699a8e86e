// The checker's shadow of global memory: what has been written, and by which block of this launch.
#pragma once

#include "check.h"

namespace simt {

struct GlobalShadow;

// That of the allocation that holds all of an access; nullptr if none does.
GlobalShadow *global_shadow(const char *address, size_t bytes);

void check_new_block_of_launch();
void check_global(GlobalShadow &shadow, const char *address, size_t bytes, AccessKind kind, const void *place);

} // namespace simt
