// Reads lines "KIND BYTES ADDRESS..." (an address for each lane from 0 on; -1: it takes no part) and prints for each
// the sectors, wavefronts and conflicts.
#include "count_rules.h"

#include <iostream>
#include <sstream>
#include <string>

int main() {
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
        const simt::Wavefronts wavefronts = kind == "load"    ? simt::load_wavefronts_of(access)
                                            : kind == "store" ? simt::store_wavefronts_of(access)
                                                              : simt::atomic_wavefronts_of(access);
        std::cout << simt::sectors_of(access) << ' ' << wavefronts.all << ' ' << wavefronts.conflicts << '\n';
    }
}
