// Warp-wide instructions: every lane hands in registers, the last one to arrive does the work for all.
#pragma once

#include "thread.h"
#include "unchecked.h"

#include <cstdint>

namespace simt {

constexpr int warp_size = 32;
constexpr uint32_t full_mask = 0xFFFFFFFF;

// Registers of one warp instruction, [register][lane]: for the fragments of matrix instructions this order is that of
// the 8x8 tiles themselves (PTX ISA, "Matrix Fragments"), row by row, two f16 in each word.
struct Registers {
    alignas(64) uint32_t in[12][warp_size];
    alignas(64) uint32_t out[8][warp_size];
    const void *address[warp_size];
};

struct AheadWarp;

struct Warp {
    uint32_t index = 0;
    uint32_t existing = 0; // lanes that the block's size gives this warp
    uint32_t alive = 0;    // of these, not yet returned
    uint32_t runnable = 0;
    uint32_t arrived = 0;
    uint32_t generation = 0; // warp instructions executed
    const char *instruction = "";
    Fiber *lanes[warp_size];
    // Two sets: the first lane past an instruction may hand in the next one's registers while others still read.
    Registers registers[2];
    AheadWarp *ahead = nullptr;

    SIMT_PART Registers &current() { return registers[generation & 1]; }
};

// Mark the running lane as arrived at `instruction`; true for the last lane, which must do the work, then call
// `release_warp`. The others must call `wait_for_warp` to sleep until that has happened. `mask` names the lanes that
// take part: upstream's attention kernels always name all.
bool arrive_at_warp(uint32_t mask, const char *instruction);
void release_warp();
void wait_for_warp();

// The whole of a warp instruction: `deposit(registers, lane)`, then once `work(registers)`, then the caller reads from
// the returned registers.
template <class Deposit, class Work>
SIMT_PART inline Registers &warp_instruction(uint32_t mask, const char *name, Deposit deposit, Work work) {
    Registers &registers = self->warp->current();
    deposit(registers, self->lane);
    if (arrive_at_warp(mask, name)) {
        work(registers);
        release_warp();
    } else {
        wait_for_warp();
    }
    return registers;
}

} // namespace simt
