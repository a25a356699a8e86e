// The only assembly: saves the callee-saved registers on the current stack and switches to another.
#pragma once

// Stores the stack pointer at `*save`, and continues where `resume` was stored.
extern "C" void simt_switch_stack(void **save, void *resume);

namespace simt {

// A stack that calls `entry` (which must not return) when it is first switched to. `top` is one past its highest
// address.
void *new_stack(void *top, void (*entry)());

} // namespace simt
