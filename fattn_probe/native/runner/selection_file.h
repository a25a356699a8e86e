// Reads the selection: the blocks of each launch that a simulated GPU runs, and the parts of dst to read.
#pragma once

#include "gguf_file.h"

// Defined by the simulated GPU; a real one runs all blocks.
extern "C" __attribute__((weak)) void fattn_probe_select_blocks(const uint32_t *grid, const uint64_t *ranges, size_t n);
extern "C" __attribute__((weak)) void fattn_probe_run_all_blocks();

// A range of a tensor's bytes.
struct Range {
    uint64_t offset;
    uint64_t size;
};

class SelectionFile {
  public:
    explicit SelectionFile(const std::string &path) : path_(path), file_(path) {}

    // Tells a simulated GPU which blocks of the next launches to run: for each launch, grid.x, y and z, the number of
    // ranges, and the first block and the end of each range.
    void select_blocks() const {
        const std::vector<uint64_t> numbers = file_.array<uint64_t>("fattn.selection.blocks");
        for (size_t at = 0; at < numbers.size();) {
            require(numbers.size() - at >= 4 && (numbers.size() - at - 4) / 2 >= numbers[at + 3]);
            const uint32_t grid[3] = {uint32_t(numbers[at]), uint32_t(numbers[at + 1]), uint32_t(numbers[at + 2])};
            const size_t count = numbers[at + 3];
            if (fattn_probe_select_blocks != nullptr) {
                fattn_probe_select_blocks(grid, numbers.data() + at + 4, count);
            }
            at += 4 + 2 * count;
        }
    }

    static void run_all_blocks() {
        if (fattn_probe_run_all_blocks != nullptr) {
            fattn_probe_run_all_blocks();
        }
    }

    std::vector<Range> dst_ranges() const {
        const std::vector<uint64_t> numbers = file_.array<uint64_t>("fattn.selection.dst");
        require(numbers.size() % 2 == 0);
        std::vector<Range> ranges;
        for (size_t at = 0; at < numbers.size(); at += 2) {
            ranges.push_back({numbers[at], numbers[at + 1]});
        }
        return ranges;
    }

  private:
    void require(bool good) const {
        if (!good) {
            throw Error(path_ + ": not a selection of blocks");
        }
    }

    std::string path_;
    GgufFile file_;
};
