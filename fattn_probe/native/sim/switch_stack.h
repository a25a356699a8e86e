// The only assembly: saves the callee-saved registers on the current stack and switches to another.
#pragma once

// Stores the stack pointer at `*save`, and continues where `resume` was stored, with the result false: so a function
// whose last call this is ends where it switches, and the other stack's goes on in its caller.
//
// It jumps there instead of returning: a processor expects a return to the last caller, but the lanes of a warp go on
// behind different calls. Mostly it is where the lane before went on, which is what a processor expects of a jump.
extern "C" bool simt_switch_stack(void **save, void *resume);

namespace simt {

// A stack that calls `entry` (which must not return) when it is first switched to. `top` is one past its highest
// address.
void *new_stack(void *top, void (*entry)());

} // namespace simt
