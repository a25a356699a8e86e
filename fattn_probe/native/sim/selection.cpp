#include "selection.h"

#include "finding.h"

#include <algorithm>
#include <string>

namespace simt {
namespace {

// The launches of one run, in order, and how many have begun; a benchmark repeats them.
std::vector<Selection> selections;
size_t launched = 0;

} // namespace

Selection::Selection(dim3 grid, const uint64_t *ranges, size_t count) : grid_(grid), before_{0} {
    for (size_t i = 0; i < count; i++) {
        first_.push_back(ranges[2 * i]);
        before_.push_back(before_.back() + ranges[2 * i + 1] - ranges[2 * i]);
    }
}

uint64_t Selection::block(uint64_t turn) const {
    const auto range = std::upper_bound(before_.begin(), before_.end(), turn) - before_.begin() - 1;
    return first_[static_cast<size_t>(range)] + turn - before_[static_cast<size_t>(range)];
}

uint64_t Selection::turn_after(uint64_t block) const {
    const auto after = static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), block) - first_.begin());
    return after == 0 ? 0 : std::min(before_[after], before_[after - 1] + block - first_[after - 1]);
}

const Selection *next_selection(dim3 grid) {
    if (selections.empty()) {
        return nullptr;
    }
    const size_t number = launched++ % selections.size();
    const Selection &found = selections[number];
    if (grid.x != found.grid().x || grid.y != found.grid().y || grid.z != found.grid().z) {
        fail("launch " + std::to_string(number) + " has a grid of " + text_of(grid, "x") +
             " blocks, and blocks were chosen from " + text_of(found.grid(), "x"));
    }
    return &found;
}

} // namespace simt

// In the next launch without a selection, only these blocks run: `count` ranges, as pairs of first and stop.
extern "C" void fattn_probe_select_blocks(const uint32_t *grid, const uint64_t *ranges, size_t count) {
    simt::selections.emplace_back(dim3(grid[0], grid[1], grid[2]), ranges, count);
}

// From now on all blocks run.
extern "C" void fattn_probe_run_all_blocks() {
    simt::selections.clear();
    simt::launched = 0;
}
