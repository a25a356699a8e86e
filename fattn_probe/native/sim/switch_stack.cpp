#include "switch_stack.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)

asm(R"(
    .text
    .globl simt_switch_stack
    .type simt_switch_stack, @function
simt_switch_stack:
    .cfi_startproc
    pushq %rbp
    .cfi_adjust_cfa_offset 8
    pushq %rbx
    .cfi_adjust_cfa_offset 8
    pushq %r12
    .cfi_adjust_cfa_offset 8
    pushq %r13
    .cfi_adjust_cfa_offset 8
    pushq %r14
    .cfi_adjust_cfa_offset 8
    pushq %r15
    .cfi_adjust_cfa_offset 8
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    .cfi_adjust_cfa_offset -8
    popq %r14
    .cfi_adjust_cfa_offset -8
    popq %r13
    .cfi_adjust_cfa_offset -8
    popq %r12
    .cfi_adjust_cfa_offset -8
    popq %rbx
    .cfi_adjust_cfa_offset -8
    popq %rbp
    .cfi_adjust_cfa_offset -8
    popq %rcx
    .cfi_adjust_cfa_offset -8
    .cfi_register %rip, %rcx
    xorl %eax, %eax
    jmp *%rcx
    .cfi_endproc
    .size simt_switch_stack, .-simt_switch_stack
)");

void *simt::new_stack(void *top, void (*entry)()) {
    // Six registers, the return address that starts `entry`, and a null return address that ends every backtrace.
    auto *frame = reinterpret_cast<uint64_t *>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15}) - 8;
    memset(frame, 0, 64);
    frame[6] = reinterpret_cast<uint64_t>(entry);
    return frame;
}

#elif defined(__aarch64__)

asm(R"(
    .text
    .globl simt_switch_stack
    .type simt_switch_stack, %function
simt_switch_stack:
    stp x19, x20, [sp, #-160]!
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x19, x20, [sp], #160
    mov w0, wzr
    br x30
    .size simt_switch_stack, .-simt_switch_stack
)");

void *simt::new_stack(void *top, void (*entry)()) {
    auto *frame = reinterpret_cast<uint64_t *>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15}) - 20;
    memset(frame, 0, 160);
    frame[11] = reinterpret_cast<uint64_t>(entry);
    return frame;
}

#else
#error "the simulator knows how to switch stacks on x86-64 and aarch64"
#endif
