#include "register_file.h"

#include "host_memory.h"

#include <cstring>

namespace simt {

RegisterFile::RegisterFile()
    : values_(static_cast<Row *>(map_pages(rows * sizeof(Row)))), states_(std::make_unique<State[]>(rows)) {}

void RegisterFile::begin(const Warp &warp) {
    for (int lane = 0; lane < warp_size; lane++) {
        bottoms_[lane] = warp.lanes[lane]->stack_top - 4 * static_cast<ptrdiff_t>(rows);
    }
}

RegisterFile::Row *RegisterFile::read(uint32_t first, uint32_t count) {
    for (uint32_t row = first; row < first + count; row++) {
        if (states_[row] == State::unknown) {
            note(row, State::read);
            for (int lane = 0; lane < warp_size; lane++) {
                memcpy(&values_[row][lane], bottoms_[lane] + 4 * static_cast<size_t>(row), 4);
            }
        }
    }
    return values_ + first;
}

RegisterFile::Row *RegisterFile::write(uint32_t first, uint32_t count, State state) {
    for (uint32_t row = first; row < first + count; row++) {
        if (states_[row] != State::computed) {
            note(row, state);
        }
    }
    return values_ + first;
}

void RegisterFile::note(uint32_t row, State state) {
    if (states_[row] == State::unknown) {
        used_.push_back(row);
    }
    states_[row] = state;
}

void RegisterFile::end(bool loads_end) {
    for (const uint32_t row : used_) {
        if (states_[row] == State::computed || (states_[row] == State::loaded && !loads_end)) {
            for (int lane = 0; lane < warp_size; lane++) {
                memcpy(bottoms_[lane] + 4 * static_cast<size_t>(row), &values_[row][lane], 4);
            }
        }
        states_[row] = State::unknown;
    }
    used_.clear();
}

} // namespace simt
