// Warp instructions executed by some lanes: those in a mask, or those left in a warp when others have returned.
//
// The lanes that give the same mask form a group. The group waits for the lanes of the mask that have not returned, as
// PTX's `.sync` instructions do. Kernels whose warps stay together, like upstream's kernels, never need this.
#pragma once

#include "warp.h"

#include <cstdint>

namespace simt {

// The words that each lane of a group has handed in. There are two sets, as in Warp: a lane may arrive at the next
// instruction while other lanes still read.
struct GroupWords {
    uint32_t words[8][warp_size];
    LaneMask lanes; // that took part
};

struct Group {
    LaneMask mask = 0; // 0: free
    LaneMask arrived = 0;
    LaneMask reading = 0; // lanes that have been released and have not gone on yet
    uint32_t generation = 0;
    const char *instruction = "";
    const void *site = nullptr; // where the first lane to arrive is
    GroupWords sets[2];
};

struct Groups {
    Group of[warp_size]; // enough, as a lane waits or reads in at most one group, the running lane in none
};

// Executes an instruction that takes `count` words of each lane; returns the words of all.
const GroupWords &group_instruction(LaneMask mask, const char *name, const uint32_t *words, int count);

// A shuffle: `words` become the words of lane `from`.
void exchange_in_group(LaneMask mask, const char *name, uint32_t *words, int count, int from);

LaneMask ballot_in_group(LaneMask mask, bool predicate, const char *name);

// A lane has returned: groups of its warp that waited only for this lane continue.
void release_groups(Warp &warp);

// __activemask(): the lanes of the warp that reach this source line before all lanes wait. A GPU may return fewer.
LaneMask active_mask(int line);

// When no lane of a warp can continue, lets the lanes that wait in `active_mask` at the first line continue together.
// Other lanes may then catch up with lanes that have passed a branch.
void release_converged(Warp &warp);

} // namespace simt
