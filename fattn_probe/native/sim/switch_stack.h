// The only machine code: save the callee-saved registers on this stack, go on on another.
#pragma once

// Stores the stack pointer at `*save` and continues where `resume` was stored.
extern "C" void simt_switch_stack(void **save, void *resume);

namespace simt {

// A stack that, switched to, calls `entry` (which must not return). `top` is one past its highest address.
void *new_stack(void *top, void (*entry)());

} // namespace simt
