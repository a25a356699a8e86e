// The PTX instructions of the attention kernels, as functions: the rewriter turns `asm("mnemonic ..." : outs : ins)`
// into `simt::ptx::mnemonic(outs, ins)`, and an unknown instruction into a call that aborts with its name. Semantics:
// PTX ISA, "Warp-level matrix instructions" and "Data movement instructions".
#pragma once

#include "ahead.h"
#include "check_quick.h"
#include "check_sites.h"
#include "count.h"
#include "tensor_core.h"
#include "warp.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace simt {

// A pointer into shared memory as the 32-bit address that PTX uses, and back.
uint32_t shared_address(const void *pointer);
void *shared_pointer(uint32_t address);

// One lane's copy of 4, 8 or 16 bytes to shared memory: `read` bytes are read, the others become 0. Under an
// adversarial schedule, they arrive only at the wait.
void copy_async(void *to, const void *from, size_t bytes, size_t read);
__attribute__((always_inline)) inline void copy_async(void *to, const void *from, size_t bytes = 16) {
    copy_async(to, from, bytes, bytes);
}
void commit_copies();                // the copies since the last commit become a group
void wait_for_copies();              // all
void wait_for_copies(uint32_t left); // all but the last `left` groups

// For the checker: memory accessed by an instruction, not by compiled code. Does nothing without the checker.
void note_read(const void *address, size_t bytes);
void note_write(const void *address, size_t bytes);

namespace ptx {

template <class T> SIMT_PART inline uint32_t word(const T &value) {
    static_assert(sizeof(T) == 4, "a 32-bit register");
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
template <class T> SIMT_PART inline void set_word(T &value, uint32_t bits) {
    static_assert(sizeof(T) == 4, "a 32-bit register");
    memcpy(&value, &bits, 4);
}

// Lane 8*i + r has the address of row r of 8x8 tile i, which is results[i].
void load_matrices(const void *const *addresses, int tiles, bool transposed, uint32_t *const *results);

void report_ldmatrix_address();

// Reads the running lane's row, so that a bad address is found in this lane.
SIMT_PART inline void probe_row(const void *address) {
    if (__builtin_expect(reinterpret_cast<uintptr_t>(address) % 16 != 0, 0)) {
        report_ldmatrix_address();
    }
    if constexpr (checking) {
        note_read(address, 16);
    }
    static_cast<void>(*static_cast<const volatile char *>(address));
}

// Reads the rows of all lanes, while these wait.
void probe_rows(const void *const *addresses, int rows);

template <int tiles, bool transposed, class... Ts> SIMT_UNCHECKED void ldmatrix(const void *address, Ts &...results) {
    note_site();
    if (runs_ahead()) {
        if (self->lane < 8 * tiles) {
            probe_row(address); // now, so that a bad address is found in this line
        }
        check_registers(AccessKind::write, results...);
        if (load_ahead(transposed, address, results...)) {
            return;
        }
    }
    Registers &registers = warp_instruction(
        "ldmatrix", [&](Registers &r, uint32_t lane) SIMT_PART { r.address[lane] = address; },
        [](Registers &r) SIMT_PART {
            uint32_t *const out[] = {r.out[0], r.out[1], r.out[2], r.out[3]};
            probe_rows(r.address, 8 * tiles);
            count_ldmatrix(r.address, tiles);
            load_matrices(r.address, tiles, transposed, out);
        });
    check_registers(AccessKind::write, results...);
    int i = 0;
    (set_word(results, registers.out[i++][self->lane]), ...);
}
// The pointer for an address, which is a pointer or a 32-bit address in shared memory.
SIMT_PART inline const void *pointer_of(const void *address) { return address; }
SIMT_PART inline const void *pointer_of(uint32_t address) { return shared_pointer(address); }
template <class T, class Address> SIMT_PART void ldmatrix_sync_aligned_m8n8_x1_b16(T &a, Address address) {
    ldmatrix<1, false>(pointer_of(address), a);
}
template <class T, class Address> SIMT_PART void ldmatrix_sync_aligned_m8n8_x1_trans_b16(T &a, Address address) {
    ldmatrix<1, true>(pointer_of(address), a);
}
template <class T, class Address> SIMT_PART void ldmatrix_sync_aligned_m8n8_x2_b16(T &a, T &b, Address address) {
    ldmatrix<2, false>(pointer_of(address), a, b);
}
template <class T, class Address> SIMT_PART void ldmatrix_sync_aligned_m8n8_x2_trans_b16(T &a, T &b, Address address) {
    ldmatrix<2, true>(pointer_of(address), a, b);
}
template <class T, class Address>
SIMT_PART void ldmatrix_sync_aligned_m8n8_x4_b16(T &a, T &b, T &c, T &d, Address address) {
    ldmatrix<4, false>(pointer_of(address), a, b, c, d);
}
template <class T, class Address>
SIMT_PART void ldmatrix_sync_aligned_m8n8_x4_trans_b16(T &a, T &b, T &c, T &d, Address address) {
    ldmatrix<4, true>(pointer_of(address), a, b, c, d);
}

// The `i`-th operand of a matrix instruction, if it is one of the results.
template <int results, class T> SIMT_PART inline void set_result(T &operand, const Registers &registers, int i) {
    if constexpr (!std::is_const_v<T>) {
        if (i < results) {
            check_registers(AccessKind::write, operand);
            set_word(operand, registers.out[i][self->lane]);
        }
    }
}

void transpose_matrix(Registers &registers);
template <class T, class U> SIMT_UNCHECKED void movmatrix_sync_aligned_m8n8_trans_b16(T &result, const U &value) {
    note_site();
    check_registers(AccessKind::read, value);
    Registers &registers = warp_instruction(
        "movmatrix", [&](Registers &r, uint32_t lane) SIMT_PART { r.in[0][lane] = word(value); }, transpose_matrix);
    check_registers(AccessKind::write, result);
    set_word(result, registers.out[0][self->lane]);
}

// A matrix instruction: the registers of C, which become D, then `as` registers of A and `bs` of B.
template <uint8_t as, uint8_t bs, class... Ts>
SIMT_UNCHECKED void matrix_instruction(const char *name, MatrixWork work, Ts &...operands) {
    note_site();
    constexpr uint8_t results = sizeof...(Ts) - as - bs;
    check_registers(AccessKind::read, operands...);
    if (runs_ahead()) {
        static constexpr uint8_t counts[] = {results, as, bs};
        multiply_ahead(work, counts, operands...);
        return;
    }
    Registers &registers = warp_instruction(
        name,
        [&](Registers &r, uint32_t lane) SIMT_PART {
            int i = 0;
            ((r.in[i++][lane] = word(operands)), ...);
        },
        [=](Registers &r) SIMT_PART {
            count_matrix_product(name);
            work(r.in + results, r.in + results + as, r.in, r.out);
        });
    int i = 0;
    (set_result<results>(operands, registers, i++), ...);
}

template <int K> void multiply_f32(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    mma_f16_accumulate_f32(K, a, b, c, d);
}
template <int K> void multiply_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    mma_f16_accumulate_f16(K, a, b, c, d);
}

template <class D, class A, class B>
SIMT_PART void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(D &d0, D &d1, D &d2, D &d3, const A &a0, const A &a1,
                                                                 const A &a2, const A &a3, const B &b0, const B &b1) {
    matrix_instruction<4, 2>("mma.m16n8k16.f32.f16", multiply_f32<16>, d0, d1, d2, d3, a0, a1, a2, a3, b0, b1);
}
template <class D, class A, class B>
SIMT_PART void mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32(D &d0, D &d1, D &d2, D &d3, const A &a0, const A &a1,
                                                                const B &b0) {
    matrix_instruction<2, 1>("mma.m16n8k8.f32.f16", multiply_f32<8>, d0, d1, d2, d3, a0, a1, b0);
}
template <class D, class A, class B>
SIMT_PART void mma_sync_aligned_m16n8k16_row_col_f16_f16_f16_f16(D &d0, D &d1, const A &a0, const A &a1, const A &a2,
                                                                 const A &a3, const B &b0, const B &b1) {
    matrix_instruction<4, 2>("mma.m16n8k16.f16.f16", multiply_f16<16>, d0, d1, a0, a1, a2, a3, b0, b1);
}
template <class D, class A, class B>
SIMT_PART void mma_sync_aligned_m16n8k8_row_col_f16_f16_f16_f16(D &d0, D &d1, const A &a0, const A &a1, const B &b0) {
    matrix_instruction<2, 1>("mma.m16n8k8.f16.f16", multiply_f16<8>, d0, d1, a0, a1, b0);
}
template <class D, class A, class B>
SIMT_PART void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(D &d0, D &d1, D &d2, D &d3, const A &a0, const A &a1,
                                                                   const A &a2, const A &a3, const B &b0, const B &b1) {
    matrix_instruction<4, 2>("mma.m16n8k16.f32.bf16", mma_bf16_accumulate_f32, d0, d1, d2, d3, a0, a1, a2, a3, b0, b1);
}
template <class D, class A, class B>
SIMT_PART void mma_sync_aligned_m8n8k4_row_col_f32_f16_f16_f32(D &d0, D &d1, D &d2, D &d3, D &d4, D &d5, D &d6, D &d7,
                                                               const A &a0, const A &a1, const B &b0, const B &b1) {
    matrix_instruction<2, 2>("mma.m8n8k4.f32.f16", mma_m8n8k4_f32, d0, d1, d2, d3, d4, d5, d6, d7, a0, a1, b0, b1);
}
template <class D, class A, class B>
SIMT_PART void mma_sync_aligned_m8n8k4_row_row_f16_f16_f16_f16(D &d0, D &d1, D &d2, D &d3, const A &a0, const A &a1,
                                                               const B &b0, const B &b1) {
    matrix_instruction<2, 2>("mma.m8n8k4.f16.f16", mma_m8n8k4_f16, d0, d1, d2, d3, a0, a1, b0, b1);
}

inline void cp_async_cg_shared_global_16(uint32_t shared, const void *global) {
    copy_async(shared_pointer(shared), global);
}
inline void cp_async_wait_all() { wait_for_copies(); }
inline void prefetch_global_L2(const void *) {}
inline void nothing() {} // an empty text: asm volatile("" ::: "memory")

} // namespace ptx
} // namespace simt

#define __cvta_generic_to_shared(pointer) simt::shared_address(pointer)
