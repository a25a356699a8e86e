// The counts of one launch.
#pragma once

#include "count.h"
#include "count_rules.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace simt {

struct Allocation;

enum class MemoryOperation : uint8_t { load, store, atomic, copy, ldmatrix }; // copy: cp.async

// Instructions that access shared memory, and their cost.
struct SharedTally {
    uint64_t instructions = 0;
    uint64_t wavefronts = 0;
    uint64_t conflicts = 0;

    void add(const Wavefronts &more) {
        wavefronts += more.all;
        conflicts += more.conflicts;
    }
};
struct GlobalTally {
    uint64_t instructions = 0;
    uint64_t sectors = 0;
    uint64_t bytes = 0; // that the lanes asked for
};

struct Tally {
    static constexpr size_t kinds = 5, instruction_kinds = 5;

    uint64_t instructions[instruction_kinds] = {}; // by Instruction
    uint64_t tensor_flops = 0;
    SharedTally shared[kinds];                               // by MemoryOperation
    std::map<const Allocation *, GlobalTally[kinds]> global; // by MemoryOperation, of each allocation

    void add_shared(MemoryOperation kind, const WarpAccess &access);
    void add_global(const Allocation *allocation, MemoryOperation kind, const WarpAccess &access, uint32_t sectors);
    void add(const Tally &other);
};

// {"order":0,...}: one line, as fattn_probe/lab/profile/counts.py reads it.
std::string json_of(const Tally &tally, unsigned order);

} // namespace simt
