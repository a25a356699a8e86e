// A write over another thread's or block's write: a race unless the values are equal.
#pragma once

#include "finding.h"

#include <cstddef>

namespace simt {

// The running thread is about to overwrite `bytes` bytes at `address`; if their values change, that is `finding`. This
// is known only after the write, so it is checked when this thread writes next, or when another thread accesses memory.
void note_overwrite(Finding finding, const char *address, size_t bytes);

void settle_overwrite(bool write);

} // namespace simt
