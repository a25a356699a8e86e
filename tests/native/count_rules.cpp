// Reads lines "KIND BYTES ADDRESS..." (an address for each lane from 0 on; -1: it takes no part) and prints for each
// the sectors, wavefronts and conflicts. With an argument, each line is a copy of a structure: prints the number of its
// instructions, and their sums.
#include "count_rules.h"

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

static simt::Wavefronts wavefronts_of(const std::string &kind, const simt::WarpAccess &access) {
    return kind == "load"    ? simt::load_wavefronts_of(access)
           : kind == "store" ? simt::store_wavefronts_of(access)
                             : simt::atomic_wavefronts_of(access);
}

int main(int count, char **) {
    const bool is_copy = count > 1;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string kind;
        simt::WarpAccess access;
        words >> kind >> access.bytes;
        long long address = 0;
        for (uint32_t lane = 0; words >> address; lane++) {
            if (address >= 0) {
                access.lanes |= simt::lane_bit(lane);
                access.addresses[lane] = static_cast<uintptr_t>(address);
            }
        }
        const std::vector<simt::WarpAccess> pieces = is_copy ? simt::pieces_of(access) : std::vector{access};
        uint32_t sectors = 0, all = 0, conflicts = 0;
        for (const simt::WarpAccess &piece : pieces) {
            const simt::Wavefronts wavefronts = wavefronts_of(kind, piece);
            sectors += simt::sectors_of(piece);
            all += wavefronts.all;
            conflicts += wavefronts.conflicts;
        }
        if (is_copy) {
            std::cout << pieces.size() << ' ';
        }
        std::cout << sectors << ' ' << all << ' ' << conflicts << '\n';
    }
}
