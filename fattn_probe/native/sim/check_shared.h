// The checker's shadow of a block's shared memory: who has accessed each byte, and when.
#pragma once

#include "check.h"

namespace simt {

void check_shared(const char *address, size_t bytes, AccessKind kind);

} // namespace simt
