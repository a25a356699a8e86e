// The only assembly: saves the callee-saved registers on the current stack and switches to another.
#pragma once

// Stores the stack pointer at `*save`, and continues where `resume` was stored, returning false. A function that ends
// with this call therefore ends at the switch, and the other stack continues in its caller.
//
// It jumps instead of returning: a processor predicts a return to the last caller, but the lanes of a warp continue
// after different calls. The target is usually where the previous lane continued, as a processor predicts for a jump.
extern "C" bool simt_switch_stack(void **save, void *resume);

namespace simt {

// A stack that calls `entry` (which must not return) when it is first switched to. `top` is one past its highest
// address.
void *new_stack(void *top, void (*entry)());

} // namespace simt
