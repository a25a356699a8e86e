// Joins loads and stores of shared memory that nvcc merges into one instruction.
//
// g++ compiles each access separately. nvcc unrolls loops, and joins neighbouring accesses in one basic block; the
// rules here were read from its machine code for sm_90 (nvcc and ptxas 13.0, tests/lab/profile/joined.cu).
#pragma once

#include "count_tally.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace simt {

// An instruction of a warp that accesses memory, in the order of the program.
struct WarpInstruction {
    const void *place = nullptr; // in the code
    MemoryOperation kind = MemoryOperation::load;
    bool shared = false;
    // Earlier instructions by which all lanes have loaded the same bytes, which nvcc then has in a register.
    std::vector<size_t> same;
    bool repeated() const { return !same.empty(); }
    WarpAccess access;
    WarpAccess target; // of a cp.async
};

// Splits each copy of a structure into several instructions, with pieces_of().
void split(std::vector<WarpInstruction> &instructions);

// The number of the basic block of each instruction, as nvcc makes them, from their places in the code alone.
//
// A repeated place begins another turn of a loop. nvcc unrolls a loop by four if its body is short and by two if it is
// longer; that many turns, counted from the loop's first one, form one block. Each remaining turn is a separate block.
// A loop with exactly that many turns vanishes, so the code after it is in the same block.
std::vector<uint32_t> blocks_of(const std::vector<WarpInstruction> &instructions);

// Joins the instructions that are adjacent in one block; a joined instruction takes the place of its first part.
//
// Parts are elements of 2 bytes, or words of 4 bytes. All lanes must access them at the same place of an aligned group
// of four (one instruction then loads all four if at least three are accessed, or stores all four if all are) or of an
// aligned pair. Between two loads there is no store to shared memory, and between two stores no load from it.
void join(std::vector<WarpInstruction> &instructions);

} // namespace simt
