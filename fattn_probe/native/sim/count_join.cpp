#include "count_join.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

namespace simt {
namespace {

using Instructions = std::vector<WarpInstruction>;

constexpr uint32_t elements_of_a_group = 4, elements_of_a_pair = 2;
// nvcc unrolled bodies of 9 accesses by four, of 17 by two and of 33 not at all.
constexpr size_t accesses_of_an_unrolled_body = 48;

// Instructions from `first` up to `end`, at different places in the code: a whole body of a loop, or none of it.
struct Turn {
    size_t first;
    size_t end;

    size_t size() const { return end - first; }
};

bool begins_with(const Instructions &all, const Turn &turn, const Turn &body) {
    if (turn.size() < body.size()) {
        return false;
    }
    for (size_t i = 0; i < body.size(); i++) {
        if (all[turn.first + i].place != all[body.first + i].place) {
            return false;
        }
    }
    return true;
}

bool are_of_one_loop(const Instructions &all, const Turn &turn, const Turn &other) {
    return turn.size() == other.size() && begins_with(all, turn, other);
}

std::vector<Turn> turns_of(const Instructions &all) {
    std::vector<Turn> turns;
    const auto add = [&](Turn turn) {
        // The last turn of a loop ends where the first turn did; the instructions after that are not part of the loop.
        if (!turns.empty() && turns.back().size() < turn.size() && begins_with(all, turn, turns.back())) {
            const size_t end = turn.first + turns.back().size();
            turns.push_back({turn.first, end});
            turn.first = end;
        }
        if (turn.size() != 0) {
            turns.push_back(turn);
        }
    };
    std::unordered_map<const void *, size_t> last;
    size_t first = 0;
    for (size_t i = 0; i < all.size(); i++) {
        const auto [found, is_new] = last.try_emplace(all[i].place, i);
        if (!is_new && found->second >= first) {
            add({first, found->second});
            add({found->second, i});
            first = i;
        }
        found->second = i;
    }
    add({first, all.size()});
    return turns;
}

size_t unrolled_turns(size_t accesses) {
    const size_t turns = accesses_of_an_unrolled_body / accesses;
    return turns >= 4 ? 4 : turns >= 2 ? 2 : 1;
}

// Elements are of two bytes, or words: nvcc joins a float2 with two floats.
uint32_t element_bytes(const WarpAccess &access) { return access.bytes == 2 ? 2 : access.bytes % 4 == 0 ? 4 : 0; }

template <class Predicate> bool all_lanes(const WarpAccess &access, Predicate predicate) {
    for (LaneMask lanes = access.lanes; lanes != 0; lanes &= lanes - 1) {
        if (!predicate(lowest_lane(lanes))) {
            return false;
        }
    }
    return true;
}

// Whether the accesses of all lanes are at the same place of an aligned range, and lie within it.
bool lies_in_range(const WarpAccess &access, uint32_t bytes) {
    const uintptr_t place = access.first_address() % bytes;
    return place + access.bytes <= bytes &&
           all_lanes(access, [&](uint32_t lane) { return access.addresses[lane] % bytes == place; });
}

bool have_one_range(const WarpAccess &access, const WarpAccess &other, uint32_t bytes) {
    return access.lanes == other.lanes && element_bytes(access) == element_bytes(other) &&
           all_lanes(access,
                     [&](uint32_t lane) { return access.addresses[lane] / bytes == other.addresses[lane] / bytes; });
}

// The elements of a range that an access covers, as bits.
uint32_t elements_in(const WarpAccess &access, uint32_t bytes) {
    const uint32_t element = element_bytes(access);
    return ((1u << access.bytes / element) - 1) << access.first_address() % bytes / element;
}

// Instructions of one block and kind, with no instruction between them that nvcc could not move them past.
class Neighbours {
  public:
    explicit Neighbours(Instructions &all, std::vector<bool> &gone) : all_(all), gone_(gone) {}

    void add(size_t index) {
        if (element_bytes(all_[index].access) != 0) {
            indices_.push_back(index);
        }
    }

    void join() {
        if (indices_.size() > 1) {
            join_ranges_of(elements_of_a_group);
            join_ranges_of(elements_of_a_pair);
        }
        indices_.clear();
    }

  private:
    void join_ranges_of(uint32_t elements) {
        for (size_t i = 0; i < indices_.size(); i++) {
            const WarpAccess &access = all_[indices_[i]].access;
            const uint32_t bytes = elements * element_bytes(access);
            if (!gone_[indices_[i]] && access.bytes < bytes && lies_in_range(access, bytes)) {
                join_range(i, bytes, elements);
            }
        }
    }

    // Joins the i-th instruction with later ones in the same aligned range, if they access enough of the range.
    void join_range(size_t i, uint32_t bytes, uint32_t elements) {
        WarpInstruction &first = all_[indices_[i]];
        std::vector<size_t> parts;
        uint32_t wanted = 0;
        for (size_t j = i; j < indices_.size(); j++) {
            const WarpAccess &access = all_[indices_[j]].access;
            if (!gone_[indices_[j]] && have_one_range(access, first.access, bytes) && lies_in_range(access, bytes)) {
                parts.push_back(indices_[j]);
                wanted |= elements_in(access, bytes);
            }
        }
        const bool may_have_a_gap = first.kind == MemoryOperation::load && elements == elements_of_a_group;
        if (parts.size() < 2 || static_cast<uint32_t>(__builtin_popcount(wanted)) < elements - may_have_a_gap) {
            return;
        }
        for (const size_t part : parts) {
            if (!all_[part].repeated()) {
                first.same.clear();
            }
            gone_[part] = part != indices_[i];
        }
        first.access.bytes = bytes;
        for (uintptr_t &address : first.access.addresses) {
            address -= address % bytes;
        }
    }

    Instructions &all_;
    std::vector<bool> &gone_;
    std::vector<size_t> indices_;
};

bool is_one_instruction(const WarpInstruction &instruction) {
    const bool is_plain = instruction.kind == MemoryOperation::load || instruction.kind == MemoryOperation::store;
    return !is_plain || piece_bytes_of(instruction.access) == instruction.access.bytes;
}

// A separate place for each piece of a copy, so that the next piece is not taken for the next turn of a loop: code
// lies below 2^47.
const void *place_of_piece(const void *place, uintptr_t piece) {
    return reinterpret_cast<const void *>(reinterpret_cast<uintptr_t>(place) | piece << 48);
}

} // namespace

void split(Instructions &instructions) {
    if (std::all_of(instructions.begin(), instructions.end(), is_one_instruction)) {
        return;
    }
    Instructions all;
    for (const WarpInstruction &instruction : instructions) {
        if (is_one_instruction(instruction)) {
            all.push_back(instruction);
            continue;
        }
        uintptr_t piece = 0;
        for (const WarpAccess &access : pieces_of(instruction.access)) {
            all.push_back(instruction);
            all.back().place = place_of_piece(instruction.place, piece++);
            all.back().access = access;
        }
    }
    instructions = std::move(all);
}

std::vector<uint32_t> blocks_of(const Instructions &instructions) {
    const std::vector<Turn> turns = turns_of(instructions);
    std::vector<uint32_t> blocks(instructions.size());
    uint32_t block = 0;
    bool unrolled_before = false; // a loop of as many turns as are unrolled
    for (size_t i = 0; i < turns.size();) {
        size_t run = 1;
        while (i + run < turns.size() && are_of_one_loop(instructions, turns[i], turns[i + run])) {
            run++;
        }
        const size_t unrolled = unrolled_turns(turns[i].size());
        for (size_t turn = 0; turn < run; turn++) {
            const bool follows = run == 1 && unrolled_before;
            block += !follows && (turn % unrolled == 0 || turn >= run - run % unrolled);
            std::fill(blocks.begin() + static_cast<std::ptrdiff_t>(turns[i + turn].first),
                      blocks.begin() + static_cast<std::ptrdiff_t>(turns[i + turn].end), block);
        }
        unrolled_before = run > 1 && run == unrolled;
        i += run;
    }
    return blocks;
}

void join(Instructions &instructions) {
    const std::vector<uint32_t> blocks = blocks_of(instructions);
    std::vector<bool> gone(instructions.size());
    Neighbours loads(instructions, gone), stores(instructions, gone);
    for (size_t i = 0; i < instructions.size(); i++) {
        const bool is_load = instructions[i].kind == MemoryOperation::load;
        const bool is_store = instructions[i].kind == MemoryOperation::store;
        const bool is_new = i == 0 || blocks[i] != blocks[i - 1], shared = instructions[i].shared;
        if (is_new || (shared && !is_load)) {
            loads.join();
        }
        if (is_new || (shared && !is_store)) {
            stores.join();
        }
        if (shared && (is_load || is_store)) {
            (is_load ? loads : stores).add(i);
        }
    }
    loads.join();
    stores.join();
    size_t next = 0;
    const auto is_gone = [&](const WarpInstruction &) { return gone[next++]; };
    instructions.erase(std::remove_if(instructions.begin(), instructions.end(), is_gone), instructions.end());
}

} // namespace simt
