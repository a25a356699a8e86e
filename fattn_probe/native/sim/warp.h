// Warp-wide instructions: every lane hands in registers, the last one to arrive does the work for all.
#pragma once

#include "lanes.h"
#include "thread.h"
#include "unchecked.h"

#include <cstdint>

namespace simt {

// Registers of one warp instruction, [register][lane]: for the fragments of matrix instructions this order is that of
// the 8x8 tiles themselves (PTX ISA, "Matrix Fragments"), row by row, two f16 in each word.
struct Registers {
    alignas(64) uint32_t in[12][warp_size];
    alignas(64) uint32_t out[8][warp_size];
    const void *address[warp_size];
    LaneMask lanes; // that took part
};

struct AheadWarp;
struct Groups;

struct Warp {
    uint32_t index = 0;
    LaneMask existing = 0; // lanes that the block's size gives this warp
    LaneMask alive = 0;    // of these, not yet returned
    LaneMask runnable = 0;
    bool nobody_returned = true;
    uint32_t arrived = 0;
    uint32_t generation = 0;         // warp instructions executed
    uint32_t of_groups = 0;          // and those of groups of lanes
    uint32_t waited_instruction = 0; // the first after a lane's cudaGridDependencySynchronize(); 0: none
    const char *instruction = "";
    const void *site = nullptr;        // where the first lane to arrive is
    const Fiber *substitute = nullptr; // has to do the work of the instruction for which the last lane did not come
    Fiber *lanes[warp_size];
    // Two sets: the first lane past an instruction may hand in the next one's registers while others still read.
    Registers registers[2];
    AheadWarp *ahead = nullptr;
    Groups *groups = nullptr; // of lanes that execute instructions without the others (group.h)

    SIMT_PART Registers &current() { return registers[generation & 1]; }
    // Whether the lanes of a mask are all of the warp's: unless some have returned, before others began to wait.
    SIMT_PART bool whole(LaneMask mask) const {
        return (nobody_returned || arrived != 0) && (mask == full_mask || (mask & existing) == existing);
    }
};

// Mark the running lane as arrived at `instruction`, which all lanes of the warp execute; true for the last lane, which
// must do the work, then call `release_warp`. The others must call `wait_for_warp` to sleep until that has happened; it
// is true for a lane that must do the work because the last one has returned instead of coming.
bool arrive_at_warp(const char *instruction);
void release_warp();
bool wait_for_warp();

// The whole of a warp instruction: `deposit(registers, lane)`, then once `work(registers)`, then the caller reads from
// the returned registers.
template <class Deposit, class Work>
SIMT_PART inline Registers &warp_instruction(const char *name, Deposit deposit, Work work) {
    Registers &registers = self->warp->current();
    deposit(registers, self->lane);
    if (arrive_at_warp(name) || wait_for_warp()) {
        work(registers);
        release_warp();
    }
    return registers;
}

} // namespace simt
