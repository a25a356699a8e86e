#include "count_rules.h"

#include <algorithm>

namespace simt {
namespace {

constexpr uint32_t banks = 32, word_bytes = 4;

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

using Words = Distinct<warp_size * 4>; // at most 16 bytes a lane

// The words of a part of the warp: lanes from `first` on.
Words words_of(const WarpAccess &access, uint32_t first, uint32_t lanes) {
    Words words;
    for (uint32_t lane = first; lane < first + lanes; lane++) {
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

// The most words that one bank has to give.
uint32_t most_in_a_bank(const Words &words) {
    uint32_t in_bank[banks] = {};
    for (uint32_t i = 0; i < words.count; i++) {
        in_bank[words.values[i] % banks]++;
    }
    return *std::max_element(in_bank, in_bank + banks);
}

bool same(const Words &a, const Words &b) {
    return a.count == b.count && std::equal(a.values, a.values + a.count, b.values);
}

} // namespace

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

Wavefronts wavefronts_of(const WarpAccess &access) {
    const uint32_t parts = std::max(1u, access.bytes / word_bytes);
    const uint32_t lanes = static_cast<uint32_t>(warp_size) / parts;
    Wavefronts total;
    Words served[4];
    uint32_t count = 0;
    for (uint32_t first = 0; first < static_cast<uint32_t>(warp_size); first += lanes) {
        const Words words = words_of(access, first, lanes);
        const bool again =
            std::any_of(served, served + count, [&](const Words &before) { return same(before, words); });
        if (words.count == 0 || again) {
            continue;
        }
        served[count++] = words;
        const uint32_t turns = most_in_a_bank(words);
        total.all += turns;
        total.conflicts += turns - 1;
    }
    return total;
}

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
