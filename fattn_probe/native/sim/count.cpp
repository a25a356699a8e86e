#include "count.h"

#include "check_host.h"
#include "count_join.h"
#include "count_tally.h"
#include "environment.h"
#include "finding.h"
#include "host_memory.h"
#include "worker.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace simt {
namespace {

// One lane's access; `to` is the target of a cp.async in shared memory.
struct LaneAccess {
    const void *place;
    const char *address;
    const char *to;
    uint32_t bytes;
    MemoryOperation kind;
};

// The instruction that an access belongs to: its place, and the number of the lane's earlier accesses from that place.
struct Identity {
    const void *place;
    uint32_t before;
    bool operator==(const Identity &other) const { return place == other.place && before == other.before; }
};
struct HashOfIdentity {
    size_t operator()(const Identity &identity) const {
        return reinterpret_cast<size_t>(identity.place) * 0x9E3779B97F4A7C15 + identity.before;
    }
};

// The instructions of a warp since its lanes were last together.
struct WarpInstructions {
    std::vector<WarpInstruction> all;
    std::unordered_map<Identity, size_t, HashOfIdentity> places;

    size_t index_of(const Identity &identity) {
        const auto [found, is_new] = places.try_emplace(identity, all.size());
        if (is_new) {
            all.emplace_back();
        }
        return found->second;
    }
    void clear() {
        all.clear();
        places.clear();
    }
};

// The counts of a host thread in this launch, and the accesses since the lanes of each warp were last together.
struct Counters {
    Tally tally;
    std::vector<LaneAccess> since[Worker::max_threads];
    WarpInstructions instructions;
};

std::mutex mutex;
std::vector<std::unique_ptr<Counters>> &all_counters() {
    static std::vector<std::unique_ptr<Counters>> all;
    return all;
}

Counters &own() {
    static SIMT_THREAD_LOCAL Counters *counters = nullptr;
    if (__builtin_expect(counters == nullptr, 0)) {
        const std::lock_guard<std::mutex> lock(mutex);
        all_counters().push_back(std::make_unique<Counters>());
        counters = all_counters().back().get();
    }
    return *counters;
}

bool is_shared(uintptr_t address) {
    const auto arena = reinterpret_cast<uintptr_t>(worker->shared_arena());
    return address >= arena && address < arena + Worker::arena_bytes;
}

// The live allocation that holds an address; nullptr for constants of a module and the simulator's own variables.
const Allocation *allocation_of(uintptr_t address) {
    static SIMT_THREAD_LOCAL const Allocation *last = nullptr;
    const void *const byte = reinterpret_cast<const void *>(address);
    if (last == nullptr || !last->has(byte, 1)) {
        const Allocation *found = find_allocation(byte);
        if (found == nullptr || !found->has(byte, 1)) {
            return nullptr;
        }
        last = found;
    }
    return last;
}

void tally_instruction(Tally &tally, const WarpInstruction &instruction) {
    if (instruction.shared) {
        tally.add_shared(instruction.kind, instruction.access);
    } else if (const Allocation *allocation = allocation_of(instruction.access.first_address())) {
        const bool copies = instruction.kind == MemoryOperation::copy;
        const uint32_t sectors =
            copies ? copied_sectors_of(instruction.access, instruction.target) : sectors_of(instruction.access);
        tally.add_global(allocation, instruction.kind, instruction.access, sectors);
        if (copies) {
            tally.add_shared(instruction.kind, instruction.target);
        }
    }
}

// The address on a GPU, up to a multiple of 128 bytes. On a GPU, dynamic shared memory starts at a multiple of 16; in
// the simulator, it ends at one (worker.h).
uintptr_t device_address(const char *address) {
    const auto here = reinterpret_cast<uintptr_t>(address);
    return is_shared(here) && address >= worker->dynamic_memory() ? here + worker->dynamic_bytes() : here;
}

void add_lane(WarpAccess &access, uint32_t lane, const char *address, uint32_t bytes) {
    access.bytes = bytes;
    access.lanes |= lane_bit(lane);
    access.addresses[lane] = device_address(address);
}

// The values in a lane's registers: what it has loaded from shared memory since its last write there, and the
// instructions that loaded it. Unlike g++, nvcc knows that a store to global memory does not change shared memory.
class Loaded {
  public:
    // The latest instructions before this one that have loaded these bytes.
    std::vector<size_t> before(const LaneAccess &access, size_t instruction) {
        std::vector<size_t> found;
        if (!is_shared(reinterpret_cast<uintptr_t>(access.address))) {
            return found;
        }
        if (access.kind != MemoryOperation::load) {
            loaded_.clear();
            return found;
        }
        std::vector<Load> &loads = loaded_[access.address];
        for (const Load &load : loads) {
            if (load.bytes >= access.bytes) {
                found.push_back(load.instruction);
            }
        }
        if (loads.size() == most_loads) {
            loads.erase(loads.begin());
        }
        loads.push_back({instruction, access.bytes});
        return found;
    }

  private:
    struct Load {
        size_t instruction;
        uint32_t bytes;
    };
    static constexpr size_t most_loads = 8;
    std::unordered_map<const void *, std::vector<Load>> loaded_;
};

// Keeps what is in both lists.
void intersect(std::vector<size_t> &some, const std::vector<size_t> &others) {
    some.erase(std::remove_if(some.begin(), some.end(),
                              [&](size_t one) { return std::find(others.begin(), others.end(), one) == others.end(); }),
               some.end());
}

// Adds a lane's accesses, in their order, to the instructions of its warp.
void add_accesses(WarpInstructions &instructions, uint32_t lane, const std::vector<LaneAccess> &since) {
    if (since.empty()) {
        return;
    }
    std::unordered_map<const void *, uint32_t> before;
    Loaded loaded;
    for (const LaneAccess &access : since) {
        const size_t index = instructions.index_of({access.place, before[access.place]++});
        WarpInstruction &instruction = instructions.all[index];
        instruction.place = access.place;
        instruction.kind = access.kind;
        instruction.shared = is_shared(reinterpret_cast<uintptr_t>(access.address));
        std::vector<size_t> same = loaded.before(access, index);
        if (instruction.access.lanes == 0) {
            instruction.same = std::move(same);
        } else {
            intersect(instruction.same, same);
        }
        add_lane(instruction.access, lane, access.address, access.bytes);
        if (access.kind == MemoryOperation::copy) {
            add_lane(instruction.target, lane, access.to, access.bytes);
        }
    }
}

void note(const void *place, MemoryOperation kind, const void *address, size_t bytes, const void *to = nullptr) {
    own().since[self->thread_number()].push_back(
        {place, static_cast<const char *>(address), static_cast<const char *>(to), static_cast<uint32_t>(bytes), kind});
}

void end_launch(unsigned order) {
    Tally sum;
    for (const std::unique_ptr<Counters> &counters : all_counters()) {
        sum.add(counters->tally);
        counters->tally = {};
    }
    const std::string &path = environment().counts;
    if (path.empty()) {
        return;
    }
    FILE *file = fopen(path.c_str(), "a");
    if (file == nullptr || fputs(json_of(sum, order).c_str(), file) == EOF || fclose(file) != 0) {
        fail("cannot write counts to " + path);
    }
}

[[gnu::constructor]] void register_counters() { count_launch = end_launch; }

} // namespace

void count_instruction(Instruction kind, uint32_t times) {
    own().tally.instructions[static_cast<size_t>(kind)] += times;
}

void count_matrix_product(const char *name) {
    unsigned m = 0, n = 0, k = 0;
    if (sscanf(name, "mma.m%un%uk%u", &m, &n, &k) != 3) {
        sscanf(name, "v_%*[^_]_%*[^_]_%ux%ux%u", &m, &n, &k); // AMD's, "v_wmma_f32_16x16x16_f16"
    }
    count_instruction(Instruction::tensor, 1);
    own().tally.tensor_flops += 2ull * m * n * k;
}

void count_group_instruction(const char *name) {
    const bool shuffles = strncmp(name, "shfl", 4) == 0, votes = strncmp(name, "vote", 4) == 0;
    count_instruction(shuffles ? Instruction::shuffle : Instruction::vote, shuffles || votes);
}

void count_ldmatrix(const void *const *rows, int tiles) {
    SharedTally &tally = own().tally.shared[static_cast<size_t>(MemoryOperation::ldmatrix)];
    tally.instructions++;
    for (int tile = 0; tile < tiles; tile++) { // eight rows of 16 bytes, as if eight lanes loaded them
        WarpAccess access;
        for (uint32_t row = 0; row < 8; row++) {
            add_lane(access, row, static_cast<const char *>(rows[8 * tile + static_cast<int>(row)]), 16);
        }
        tally.add(store_wavefronts_of(access));
    }
}

void count_access(const void *address, size_t bytes, AccessKind kind, const void *place) {
    if (self == nullptr || worker->owns(address)) {
        return;
    }
    note(place,
         kind == AccessKind::read    ? MemoryOperation::load
         : kind == AccessKind::write ? MemoryOperation::store
                                     : MemoryOperation::atomic,
         address, bytes);
}

void count_copy(const void *to, const void *from, size_t bytes, const void *place) {
    note(place, MemoryOperation::copy, from, bytes, to);
}

void count_warp_together(const Warp &warp) {
    Counters &counters = own();
    WarpInstructions &instructions = counters.instructions;
    for (uint32_t lane = 0; lane < static_cast<uint32_t>(warp_size); lane++) {
        std::vector<LaneAccess> &since = counters.since[warp.index * warp_size + lane];
        add_accesses(instructions, lane, since);
        since.clear();
    }
    split(instructions.all);
    join(instructions.all);
    for (const WarpInstruction &instruction : instructions.all) {
        if (!instruction.repeated()) {
            tally_instruction(counters.tally, instruction);
        }
    }
    instructions.clear();
}

void count_block_together() {
    for (uint32_t i = 0; i < worker->block.warps; i++) {
        count_warp_together(worker->warps[i]);
    }
}

void count_barrier() {
    for (uint32_t i = 0; i < worker->block.warps; i++) {
        count_instruction(Instruction::barrier, worker->warps[i].alive != 0);
    }
    count_block_together();
}

} // namespace simt
