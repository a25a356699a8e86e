// Blocks that the following launches run; the others are skipped.
//
// A program chooses them for each launch in turn, before the first launch.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <vector>

namespace simt {

// Some blocks of a launch by linear index, x fastest: ranges in order, which do not touch.
class Selection {
  public:
    Selection(dim3 grid, const uint64_t *ranges, size_t count); // `count` pairs of first and stop

    dim3 grid() const { return grid_; }
    uint64_t blocks() const { return before_.back(); }
    uint64_t block(uint64_t turn) const;       // the block that has this turn
    uint64_t turn_after(uint64_t block) const; // turns of the blocks before this one

  private:
    dim3 grid_;
    std::vector<uint64_t> first_;
    std::vector<uint64_t> before_; // blocks in earlier ranges; at the end, in all
};

// The next launch's selection; nullptr if all its blocks run. Ends the process if the launch's grid differs from the
// grid from which the blocks were chosen.
const Selection *next_selection(dim3 grid);

} // namespace simt
