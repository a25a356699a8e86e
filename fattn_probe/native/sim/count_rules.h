// The cost of one memory instruction of a warp: sectors of global memory, wavefronts of shared memory.
#pragma once

#include "lanes.h"

#include <cstdint>
#include <vector>

namespace simt {

constexpr uint32_t sector_bytes = 32;

// A load or a store: each of `lanes` accesses `bytes` at its address. A GPU's instruction has 1, 2, 4, 8 or 16 bytes,
// as the functions below expect; a copy of a structure has any number until pieces_of splits it.
struct WarpAccess {
    uint32_t bytes = 0;
    LaneMask lanes = 0;
    uintptr_t addresses[warp_size] = {};

    uintptr_t first_address() const { return addresses[lowest_lane(lanes)]; }
};

struct Wavefronts {
    uint32_t all = 0;
    uint32_t conflicts = 0; // those that an access without bank conflicts would not need
};

// The instructions that nvcc emits for a copy of a structure. Each has the largest power of two, up to 16 bytes, that
// divides the size and all addresses. nvcc uses the alignment of the type, which the addresses only approximate: six
// floats at multiples of 8 bytes are three pieces here and six with nvcc.
std::vector<WarpAccess> pieces_of(const WarpAccess &access);
uint32_t piece_bytes_of(const WarpAccess &access);

// The different 32-byte sectors that the lanes touch.
uint32_t sectors_of(const WarpAccess &access);

// The sectors that a cp.async reads: each line of 128 bytes counts the sectors of shared memory that it fills, if these
// are more than the line's own sectors. So 128 bytes that go to an odd multiple of 16 bytes count 5, not 4 (Nsight
// Compute on an H100, tests/lab/profile/heads.json).
uint32_t copied_sectors_of(const WarpAccess &from, const WarpAccess &to);

// Shared memory has 32 banks of 4 bytes. A wavefront serves one word of each bank, to any number of lanes.
//
// Lanes that access 8 bytes are served in half warps, and lanes that access 16 bytes in quarter warps; twice as many
// are served at once if they load, and all lanes n and n^1, or all n and n^2, load from the same address (NVIDIA's
// forum, topic 77228, for compute capability 7.0 and newer).
Wavefronts load_wavefronts_of(const WarpAccess &access);
Wavefronts store_wavefronts_of(const WarpAccess &access);

// The wavefronts of lanes that update their words atomically: lanes with the same word take turns.
Wavefronts atomic_wavefronts_of(const WarpAccess &access);

} // namespace simt
