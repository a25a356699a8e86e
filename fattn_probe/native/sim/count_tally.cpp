#include "count_tally.h"

#include "finding.h"
#include "host_memory.h"

#include <utility>

namespace simt {
namespace {

constexpr const char *instruction_names[Tally::instruction_kinds] = {"tensor", "movmatrix", "shuffle", "vote",
                                                                     "barrier"};
constexpr const char *access_names[Tally::kinds] = {"load", "store", "atomic", "copy", "ldmatrix"};

std::string field(const char *name, uint64_t value) { return "\"" + std::string(name) + "\":" + std::to_string(value); }

std::string json_of(const GlobalTally (&tallies)[Tally::kinds], const Allocation &allocation) {
    std::string text;
    for (size_t kind = 0; kind < Tally::kinds; kind++) {
        const GlobalTally &tally = tallies[kind];
        if (tally.instructions != 0) {
            text += (text.empty() ? "" : ",") + ("{\"tensor\":" + json_string(allocation.name)) + "," +
                    field("allocation", allocation.number) + ",\"access\":\"" + access_names[kind] + "\"," +
                    field("instructions", tally.instructions) + "," + field("sectors", tally.sectors) + "," +
                    field("bytes", tally.bytes) + "}";
        }
    }
    return text;
}

} // namespace

void Tally::add_shared(MemoryOperation kind, const WarpAccess &access) {
    const Wavefronts wavefronts = kind == MemoryOperation::atomic ? atomic_wavefronts_of(access)
                                  : kind == MemoryOperation::load ? load_wavefronts_of(access)
                                                                  : store_wavefronts_of(access);
    SharedTally &tally = shared[static_cast<size_t>(kind)];
    tally.instructions++;
    tally.add(wavefronts);
}

void Tally::add_global(const Allocation *allocation, MemoryOperation kind, const WarpAccess &access, uint32_t sectors) {
    GlobalTally &tally = global[allocation][static_cast<size_t>(kind)];
    tally.instructions++;
    tally.sectors += sectors;
    tally.bytes += static_cast<uint64_t>(access.bytes) * count_lanes(access.lanes);
}

void Tally::add(const Tally &other) {
    tensor_flops += other.tensor_flops;
    for (size_t kind = 0; kind < instruction_kinds; kind++) {
        instructions[kind] += other.instructions[kind];
    }
    for (size_t kind = 0; kind < kinds; kind++) {
        shared[kind].instructions += other.shared[kind].instructions;
        shared[kind].wavefronts += other.shared[kind].wavefronts;
        shared[kind].conflicts += other.shared[kind].conflicts;
    }
    for (const auto &[allocation, tallies] : other.global) {
        GlobalTally(&sums)[kinds] = global[allocation];
        for (size_t kind = 0; kind < kinds; kind++) {
            sums[kind].instructions += tallies[kind].instructions;
            sums[kind].sectors += tallies[kind].sectors;
            sums[kind].bytes += tallies[kind].bytes;
        }
    }
}

std::string json_of(const Tally &tally, unsigned order) {
    std::string text = "{" + field("order", order) + "," + field("tensor_flops", tally.tensor_flops) +
                       ",\"instructions\":{",
                shared, global;
    for (size_t kind = 0; kind < Tally::instruction_kinds; kind++) {
        text += (kind == 0 ? "" : ",") + field(instruction_names[kind], tally.instructions[kind]);
    }
    for (size_t kind = 0; kind < Tally::kinds; kind++) {
        const SharedTally &all = tally.shared[kind];
        shared += (kind == 0 ? "\"" : ",\"") + std::string(access_names[kind]) + "\":{" +
                  field("instructions", all.instructions) + "," + field("wavefronts", all.wavefronts) + "," +
                  field("conflicts", all.conflicts) + "}";
    }
    for (const auto &[allocation, tallies] : tally.global) {
        global += (global.empty() ? "" : ",") + json_of(tallies, *allocation);
    }
    return text + "},\"shared\":{" + shared + "},\"global\":[" + global + "]}\n";
}

} // namespace simt
