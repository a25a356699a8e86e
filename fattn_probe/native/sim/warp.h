// Warp-wide instructions: every lane hands in registers, and the last lane to arrive does the work for all.
#pragma once

#include "lanes.h"
#include "thread.h"
#include "unchecked.h"

#include <cstdint>

namespace simt {

#if defined(SIMT_AMD) // AMD's matrix instructions have at most 24 operands and 16 results
constexpr int most_operands = 24, most_results = 16;
#else
constexpr int most_operands = 12, most_results = 8;
#endif

// Registers of one warp instruction, [register][lane]: for the fragments of matrix instructions, this is the order of
// the 8x8 tiles themselves (PTX ISA, "Matrix Fragments"), row by row, with two f16 in each word.
struct Registers {
    alignas(64) uint32_t in[most_operands][warp_size];
    alignas(64) uint32_t out[most_results][warp_size];
    const void *address[warp_size];
    LaneMask lanes; // that took part
};

struct AheadWarp;
struct Groups;

struct Warp {
    uint32_t index = 0;
    LaneMask existing = 0; // lanes that the block's size gives this warp
    LaneMask alive = 0;    // those of them that have not returned
    LaneMask runnable = 0;
    LaneMask converging = 0; // wait in __activemask()
    bool nobody_returned = true;
    uint32_t arrived = 0;
    uint32_t generation = 0;         // warp instructions executed
    uint32_t of_groups = 0;          // and those of groups of lanes
    uint32_t waited_instruction = 0; // the first after a lane's cudaGridDependencySynchronize(); 0: none
    const char *instruction = "";
    const void *site = nullptr;        // where the first lane to arrive is
    const Fiber *substitute = nullptr; // does the work of the instruction that the last lane did not reach
    Fiber *lanes[warp_size];
    // Two sets: the first lane past an instruction may hand in registers for the next one while other lanes still read.
    Registers registers[2];
    AheadWarp *ahead = nullptr;
    Groups *groups = nullptr; // of lanes that execute instructions without the others (group.h)

    SIMT_PART Registers &current() { return registers[generation & 1]; }
    // Whether a mask has all lanes of the warp, and none of them returned before others began to wait.
    SIMT_PART bool whole(LaneMask mask) const {
        return (nobody_returned || arrived != 0) && (mask == full_mask || (mask & existing) == existing);
    }
};

// The running lane meets the others of its warp at `instruction`, which all of them execute. True for the last lane to
// arrive, which must do the work, then call `release_warp`. The others sleep until then. A lane that is woken earlier
// must call `wait_further`, which is true if this lane must do the work because the last lane has returned instead of
// arriving.
bool meet_warp(const char *instruction);
bool wait_further();
void release_warp();

// The whole of a warp instruction: `deposit(registers, lane)`, then once `work(registers)`, then the caller reads from
// the returned registers.
template <class Deposit, class Work>
SIMT_PART inline Registers &warp_instruction(const char *name, Deposit deposit, Work work) {
    Fiber &fiber = *self;
    Registers &registers = fiber.warp->current();
    deposit(registers, fiber.lane);
    if (meet_warp(name) || (__builtin_expect(fiber.wait != Wait::none, 0) && wait_further())) {
        work(registers);
        release_warp();
    }
    return registers;
}

void check_copy(const char *instruction, const LaneWords &words); // that lanes 16 to 31 have the words of 0 to 15

} // namespace simt
