#include "count_rules.h"

#include <algorithm>

namespace simt {
namespace {

constexpr uint32_t banks = 32, word_bytes = 4, most_bytes = 16, line_bytes = 128;

// The different values of a small list, in order.
template <size_t size> struct Distinct {
    uintptr_t values[size];
    uint32_t count = 0;

    void add(uintptr_t value) { values[count++] = value; }
    void close() {
        std::sort(values, values + count);
        count = static_cast<uint32_t>(std::unique(values, values + count) - values);
    }
};

using Words = Distinct<warp_size * most_bytes / word_bytes>;

// The words of a part of the warp, from lane `first` on.
Words words_of(const WarpAccess &access, uint32_t first, uint32_t lanes) {
    Words words;
    for (uint32_t lane = first; lane < std::min(first + lanes, static_cast<uint32_t>(warp_size)); lane++) {
        if (access.lanes >> lane & 1) {
            const uintptr_t address = access.addresses[lane];
            for (uintptr_t word = address / word_bytes; word <= (address + access.bytes - 1) / word_bytes; word++) {
                words.add(word);
            }
        }
    }
    words.close();
    return words;
}

// The largest number of words in one bank.
uint32_t most_in_a_bank(const Words &words) {
    uint32_t in_bank[banks] = {};
    for (uint32_t i = 0; i < words.count; i++) {
        in_bank[words.values[i] % banks]++;
    }
    return *std::max_element(in_bank, in_bank + banks);
}

// Whether all lanes n and n^distance that take part have the same address.
bool are_pairs(const WarpAccess &access, uint32_t distance) {
    for (uint32_t lane = 0; lane < static_cast<uint32_t>(warp_size); lane++) {
        const LaneMask pair = lane_bit(lane) | lane_bit(lane ^ distance);
        if ((access.lanes & pair) == pair && access.addresses[lane] != access.addresses[lane ^ distance]) {
            return false;
        }
    }
    return true;
}

Wavefronts in_parts(const WarpAccess &access, uint32_t lanes) {
    Wavefronts total;
    for (uint32_t first = 0; first < static_cast<uint32_t>(warp_size); first += lanes) {
        const Words words = words_of(access, first, lanes);
        if (words.count != 0) {
            const uint32_t turns = most_in_a_bank(words);
            total.all += turns;
            total.conflicts += turns - 1;
        }
    }
    return total;
}

uint32_t lanes_at_once(const WarpAccess &access) {
    return static_cast<uint32_t>(warp_size) / std::max(1u, access.bytes / word_bytes);
}

} // namespace

uint32_t piece_bytes_of(const WarpAccess &access) {
    uintptr_t bits = access.bytes | most_bytes;
    for (LaneMask lanes = access.lanes; lanes != 0; lanes &= lanes - 1) {
        bits |= access.addresses[lowest_lane(lanes)];
    }
    return static_cast<uint32_t>(bits & -bits);
}

std::vector<WarpAccess> pieces_of(const WarpAccess &access) {
    const uint32_t bytes = piece_bytes_of(access);
    std::vector<WarpAccess> pieces(access.bytes / bytes, access);
    for (size_t piece = 0; piece < pieces.size(); piece++) {
        pieces[piece].bytes = bytes;
        for (uintptr_t &address : pieces[piece].addresses) {
            address += piece * bytes;
        }
    }
    return pieces;
}

uint32_t sectors_of(const WarpAccess &access) {
    Distinct<warp_size * 2> sectors; // an access that is aligned to its size lies in one
    for (uint32_t lane = 0; lane < static_cast<uint32_t>(warp_size); lane++) {
        if (access.lanes >> lane & 1) {
            sectors.add(access.addresses[lane] / sector_bytes);
            sectors.add((access.addresses[lane] + access.bytes - 1) / sector_bytes);
        }
    }
    sectors.close();
    return sectors.count;
}

uint32_t copied_sectors_of(const WarpAccess &from, const WarpAccess &to) {
    uint32_t total = 0;
    for (LaneMask left = from.lanes; left != 0;) {
        const uintptr_t line = from.addresses[lowest_lane(left)] / line_bytes;
        WarpAccess read, written;
        read.bytes = written.bytes = from.bytes;
        for (LaneMask lanes = left; lanes != 0; lanes &= lanes - 1) {
            const uint32_t lane = lowest_lane(lanes);
            if (from.addresses[lane] / line_bytes == line) {
                read.addresses[lane] = from.addresses[lane];
                written.addresses[lane] = to.addresses[lane];
                read.lanes |= lane_bit(lane);
            }
        }
        written.lanes = read.lanes;
        total += std::max(sectors_of(read), sectors_of(written));
        left &= ~read.lanes;
    }
    return total;
}

Wavefronts load_wavefronts_of(const WarpAccess &access) {
    const bool packed = access.bytes > word_bytes && (are_pairs(access, 1) || are_pairs(access, 2));
    return in_parts(access, lanes_at_once(access) * (packed ? 2 : 1));
}

Wavefronts store_wavefronts_of(const WarpAccess &access) { return in_parts(access, lanes_at_once(access)); }

Wavefronts atomic_wavefronts_of(const WarpAccess &access) {
    uint32_t in_bank[banks] = {};
    for (uint32_t lane = 0; lane < static_cast<uint32_t>(warp_size); lane++) {
        if (access.lanes >> lane & 1) {
            in_bank[access.addresses[lane] / word_bytes % banks]++;
        }
    }
    const uint32_t turns = *std::max_element(in_bank, in_bank + banks);
    return {turns, turns - 1};
}

} // namespace simt
