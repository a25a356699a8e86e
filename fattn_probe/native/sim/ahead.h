// Running ahead: the lanes of a warp pass a loop of matrix instructions one after another. When the last lane has
// passed, the instructions are executed in order, each for all lanes at once.
//
// The rewriter encloses loops that only load fragments and multiply them in begin_ahead() and end_ahead(): in such a
// loop, no lane reads a value that one of the loop's instructions writes (build/rewrite_ahead.py). Otherwise, each lane
// waits for the 31 others at every warp instruction, which took half the time of the mma kernels. The bits do not
// change: every instruction gets the same operands.
//
// The first lane to pass records the instructions; the other lanes only add their load addresses. Registers are
// variables on a lane's stack, at the same distance from the top of the stack in all lanes, because all lanes run the
// same code from the same entry.
#pragma once

#include "warp.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace simt {

// D = A*B + C on fragments, [register][lane]; d may be c.
using MatrixWork = void (*)(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d);

#if defined(SIMT_AHEAD)

// Called before and after a loop. `local` means that loaded values are declared inside the loop, so nothing reads them
// afterwards.
void begin_ahead(bool local) noexcept;
void end_ahead() noexcept;
SIMT_PART inline bool runs_ahead() { return self->ahead != Ahead::off; }

#else
inline void begin_ahead(bool) noexcept {}
inline void end_ahead() noexcept {}
constexpr bool runs_ahead() { return false; }
#endif

struct AheadInstruction {
    MatrixWork work = nullptr; // nullptr: ldmatrix
    uint8_t counts[3] = {};    // registers of C and D, of A, of B
    uint8_t tiles = 0;         // of ldmatrix
    bool transposed = false;
    uint32_t rows[12] = {}; // the registers' rows in the RegisterFile, results first
};

// The instructions that a warp will execute when all its lanes have passed.
struct AheadWarp {
    static constexpr size_t most_loads = 512;

    bool recorded = false;
    bool loads_end = false; // see begin_ahead
    size_t loads = 0;
    std::vector<AheadInstruction> instructions;
    const void *addresses[most_loads * warp_size]; // [load][lane]
};

// Append an instruction for the running lane's warp. Passing the variables' addresses keeps the variables in memory.
void record_load(int tiles, bool transposed, const void *const *results);
void record_matrix(MatrixWork work, const uint8_t (&counts)[3], const void *const *registers);

// False if there is no room for another load; the lanes have then caught up, and continue in step.
template <class... Ts> SIMT_PART inline bool load_ahead(bool transposed, const void *address, Ts &...results) {
    Fiber &fiber = *self;
    if (__builtin_expect(fiber.next_address == fiber.last_address, 0)) {
        end_ahead();
        return false;
    }
    if (__builtin_expect(fiber.ahead == Ahead::records, 0)) {
        const void *const variables[] = {&results...};
        record_load(sizeof...(Ts), transposed, variables);
    }
    fiber.passed++;
    *fiber.next_address = address;
    fiber.next_address += warp_size;
    return true;
}

// `registers` are the registers of C and D, then of A, then of B; `counts` are their numbers.
template <class... Ts>
SIMT_PART inline void multiply_ahead(MatrixWork work, const uint8_t (&counts)[3], Ts &...registers) {
    Fiber &fiber = *self;
    fiber.passed++;
    if (__builtin_expect(fiber.ahead == Ahead::records, 0)) {
        const void *const variables[] = {&registers...};
        record_matrix(work, counts, variables);
    }
}

} // namespace simt
