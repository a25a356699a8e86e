// The registers that a loop of matrix instructions uses, [register][lane]. They are fetched from the lanes' stacks
// once, and written back once (ahead.h).
#pragma once

#include "warp.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace simt {

// Its rows are the words of a lane's stack, so neighbouring registers stay neighbours, and a fragment can be used in
// place. Only the pages of rows in use take memory.
class RegisterFile {
  public:
    using Row = LaneWords;
    static constexpr uint32_t rows = stack_bytes / 4;

    // read: fetched from the lanes. loaded: written by ldmatrix. computed: written by a matrix instruction.
    enum class State : uint8_t { unknown, read, loaded, computed };

    RegisterFile();

    void begin(const Warp &warp); // whose registers these are
    Row *read(uint32_t first, uint32_t count);
    Row *write(uint32_t first, uint32_t count, State state);
    void end(bool loads_end); // writes computed registers back to the stacks, and loaded ones unless `loads_end`

  private:
    void note(uint32_t row, State state);

    Row *values_;
    std::unique_ptr<State[]> states_;
    std::vector<uint32_t> used_;
    char *bottoms_[warp_size]; // where each lane's row 0 would be
};

} // namespace simt
