#include "worker.h"

#include "ahead.h"
#include "attempt.h"
#include "check.h"
#include "count.h"
#include "device_limits.h"
#include "environment.h"
#include "finding.h"
#include "focus.h"
#include "host_memory.h"
#include "intrinsics.h"
#include "stack_marks.h"
#include "switch_stack.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <utility>

namespace simt {

uint32_t Fiber::thread_number() const { return warp->index * warp_size + lane; }

Worker::Worker()
    : pending_copies(max_threads), order_(order_of(environment().schedule_seed)),
      schedule_seed_(environment().schedule_seed), runs_ahead_(!adversarial() && !environment().in_step),
      ahead_(new AheadWarp[max_threads / warp_size]) {
    stacks_ = static_cast<char *>(map_pages(threads_bytes));
    fibers_ = reinterpret_cast<Fiber *>(stacks_ + stacks_bytes);
    arena_ = static_cast<char *>(map_pages(arena_bytes + guard_bytes));
    protect_pages(arena_ + arena_bytes, guard_bytes);
    for (size_t i = 0; i < max_threads; i++) {
        protect_pages(stacks_ + i * stack_bytes, guard_bytes); // a stack grows down into its guard
    }
}

Worker::~Worker() = default;

void Worker::begin(const Launch &next) {
    launch = &next;
    dynamic_bytes_ = next.shared;
    static_bytes_ = 0;
    static_.clear();
}

void *Worker::static_variable(const void *site, size_t bytes, size_t alignment) {
    for (const StaticVariable &variable : static_) {
        if (variable.site == site) {
            return arena_ + variable.offset;
        }
    }
    const size_t offset = (static_bytes_ + alignment - 1) / alignment * alignment;
    size_t declared = bytes;
    for (const StaticVariable &variable : static_) {
        declared += variable.bytes;
    }
    check_static_shared(*launch, declared);
    static_bytes_ = offset + bytes;
    if (static_bytes_ + dynamic_bytes_ > arena_bytes) {
        fail("too many static shared variables");
    }
    static_.push_back({site, offset, bytes});
    memset(arena_ + offset, 0xFF, bytes);
    return arena_ + offset;
}

namespace {

void fiber_main() {
    begin_stack();
    worker->launch->run(worker->launch->call);
    worker->finish_fiber();
}

} // namespace

bool Worker::give_room_at(const void *address) {
    constexpr size_t kept = 16 << 10;
    const uint32_t thread = self->thread_number();
    char *const guard = stacks_ + thread * stack_bytes;
    if (has_room_[thread] || address < guard + kept || address >= guard + guard_bytes) {
        return false;
    }
    has_room_[thread] = mprotect(guard + kept, guard_bytes - kept, PROT_READ | PROT_WRITE) == 0;
    return has_room_[thread];
}

void Worker::prepare_fiber(Fiber &fiber, uint32_t thread) {
    // The fibers' stacks start at different places within their pages: otherwise the same variables of all 32 lanes
    // compete for the same cache lines.
    char *top = stacks_ + (thread + 1) * stack_bytes - (thread % 61) * 1088;
    unmark_stack(stacks_ + thread * stack_bytes, stack_bytes);
    if (std::exchange(has_room_[thread], false)) {
        protect_pages(stacks_ + thread * stack_bytes, guard_bytes);
    }
    fiber = {};
    fiber.stack_top = top;
    fiber.stack_pointer = new_stack(top, fiber_main);
    fiber.thread_idx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / (blockDim.x * blockDim.y)};
    fiber.lane = thread % warp_size;
    fiber.warp = &warps[thread / warp_size];
    fiber.warp->lanes[fiber.lane] = &fiber;
    pending_copies[thread].clear();
}

void Worker::run_block(dim3 index) {
    worker = this;
    blockIdx = index;
    blockDim = launch->block;
    gridDim = launch->grid;
    const uint32_t epoch = block.epoch + 1;
    block = {};
    block.epoch = block.first_epoch = epoch;
    block.threads = focus.scout ? 1 : blockDim.x * blockDim.y * blockDim.z;
    block.alive = block.threads;
    block.warps = (block.threads + warp_size - 1) / warp_size;
    random_state_ = schedule_seed_ * 0x9E3779B97F4A7C15 + block_index();
    warp_ahead_ = adversarial() ? static_cast<uint32_t>(random() % block.warps) : 0;
    memset(dynamic_memory(), 0xFF, dynamic_bytes_); // NaN in every format: unwritten memory shows in the output
    for (const StaticVariable &variable : static_) {
        memset(arena_ + variable.offset, 0xFF, variable.bytes);
    }
    check_new_block();
    for (uint32_t i = 0; i < block.warps; i++) {
        const uint32_t lanes = std::min<uint32_t>(warp_size, block.threads - i * warp_size);
        Warp &warp = warps[i];
        warp.index = i;
        warp.existing = lanes == warp_size ? full_mask : lanes_below(lanes);
        warp.alive = warp.runnable = warp.existing;
        warp.converging = 0;
        warp.arrived = warp.generation = warp.of_groups = warp.waited_instruction = 0;
        warp.nobody_returned = true;
        if (lanes < warp_size) { // the words of nonexistent lanes are the same in every run
            memset(warp.registers, 0, sizeof(warp.registers));
        }
        warp.substitute = nullptr;
        if (groups_[i] != nullptr) {
            *groups_[i] = {};
        }
        warp.ahead = &ahead_[i];
        warp.ahead->recorded = false;
    }
    for (uint32_t thread = 0; thread < block.threads; thread++) {
        prepare_fiber(fibers_[thread], thread);
    }
    const FlushDenormals flush(!environment().denormals);
    Fiber *first = adversarial() ? next_adversarial() : warps[0].lanes[highest_lane(warps[0].alive)];
    self = first;
    {
        const OtherStack in_use(stacks_ + first->thread_number() * stack_bytes, stack_bytes);
        simt_switch_stack(&host_stack_pointer_, first->stack_pointer);
    }
    self = nullptr;
    check_end_of_block();
    count_block_together();
    if (has_fault()) {
        faulty_thread_ = max_threads;
        report_fault_of_block(block_index(), std::exchange(fault_, ""));
    }
}

uint64_t Worker::block_index() const {
    return blockIdx.x + static_cast<uint64_t>(gridDim.x) * (blockIdx.y + static_cast<uint64_t>(gridDim.y) * blockIdx.z);
}

// Continues as `fiber`, which is not the running one; returns false.
__attribute__((always_inline)) inline bool Worker::go_on_as(Fiber *fiber) {
    Fiber *const from = self;
    self = fiber;
    const OtherStack in_use(worker->stacks_ + fiber->thread_number() * stack_bytes, stack_bytes);
    return simt_switch_stack(&from->stack_pointer, fiber->stack_pointer);
}

void Worker::switch_to(Fiber *fiber) {
    if (fiber != self) {
        go_on_as(fiber);
        report_if_doomed();
    }
}

void Worker::report_if_doomed() {
    if (__builtin_expect(doomed_ != nullptr, 0)) {
        const Finding finding = *doomed_;
        doomed_ = nullptr;
        report(finding);
    }
}

uint64_t Worker::random() { // splitmix64
    uint64_t z = random_state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

// The next lower lane of this warp that can run, or else this warp's highest such lane, or else the highest of the
// next warp that has one.
//
// Between two warp instructions the lanes run from the last to the first. Kernels that leave out a __syncwarp() rely on
// lanes in lockstep, mostly where all lanes write and then only lane 0 (quantize_q8_1_to_shared with head size 64
// writes its scales over the zeros of lanes without data): running lane 0 last gives the hardware's result. An
// adversarial schedule exposes such places.
Fiber *Worker::next_in_order() {
    Warp &warp = *self->warp;
    const LaneMask below = warp.runnable & lanes_below(self->lane);
    if (warp.runnable != 0) {
        return warp.lanes[highest_lane(below != 0 ? below : warp.runnable)];
    }
    for (uint32_t i = 1; i < block.warps; i++) {
        Warp &other = warps[(warp.index + i) % block.warps];
        if (other.runnable != 0) {
            return other.lanes[highest_lane(other.runnable)];
        }
    }
    return nullptr;
}

// The next fiber of an adversarial schedule, which exposes faults that the usual order hides.
Fiber *Worker::next_adversarial() {
    if (order_ == Order::random) {
        return next_at_random();
    }
    uint32_t best = max_threads;
    for (uint32_t i = 0; i < block.warps; i++) {
        const bool last_so_far = order_ == Order::last_first || best == max_threads;
        best = warps[i].runnable != 0 && (last_so_far || i == warp_ahead_) ? i : best;
    }
    if (best == max_threads) {
        return nullptr;
    }
    const LaneMask lanes = warps[best].runnable;
    return warps[best].lanes[order_ == Order::last_first ? lowest_lane(lanes) : highest_lane(lanes)];
}

// Any lane of any warp; the last chosen warp then rests for a long time, so that other warps run far ahead of it.
Fiber *Worker::next_at_random() {
    uint32_t choices[max_threads / warp_size];
    uint32_t count = 0;
    for (uint32_t i = 0; i < block.warps; i++) {
        if (warps[i].runnable != 0) {
            choices[count++] = i;
        }
    }
    if (count == 0) {
        return nullptr;
    }
    const uint64_t dice = random();
    const bool stay = self != nullptr && self->warp->runnable != 0 && dice % 8 != 0;
    Warp &warp = stay ? *self->warp : warps[choices[(dice >> 8) % count]];
    LaneMask lanes = warp.runnable;
    for (uint64_t skip = (dice >> 32) % count_lanes(lanes); skip > 0; skip--) {
        lanes &= lanes - 1;
    }
    return warp.lanes[lowest_lane(lanes)];
}

// Called when the running lane was the last to arrive somewhere: the order starts again.
void Worker::restart_order() {
    if (adversarial()) {
        reschedule();
    } else {
        switch_to(self->warp->lanes[highest_lane(self->warp->runnable)]);
    }
}

void Worker::reschedule() {
    if (self->warp->runnable == 0 && self->warp->converging != 0) {
        release_converged(*self->warp);
    }
    Fiber *next = adversarial() ? next_adversarial() : next_in_order();
    if (next == nullptr) {
        report_deadlock();
    }
    switch_to(next);
}

// `reschedule` for a lane that waits for its warp: usually, the next lower lane continues.
__attribute__((always_inline)) inline bool Worker::next_lane_or_warp() {
    Warp &warp = *self->warp;
    const LaneMask lane = lane_bit(self->lane);
    const LaneMask below = (warp.runnable &= ~lane) & (lane - 1);
    if (__builtin_expect(below == 0 || adversarial(), 0)) {
        reschedule();
        return false;
    }
    return go_on_as(warp.lanes[highest_lane(below)]);
}

void Worker::finish_fiber() {
    Warp &warp = *self->warp;
    self->wait = Wait::done;
    warp.alive &= ~lane_bit(self->lane);
    warp.nobody_returned = false;
    warp.runnable &= ~lane_bit(self->lane);
    block.alive--;
    if (warp.arrived > 0) {
        Fiber *waiting = *std::find_if(warp.lanes, warp.lanes + warp_size,
                                       [](const Fiber *fiber) { return fiber->wait == Wait::warp; });
        if (needs_all_lanes(warp.instruction)) {
            report_from(waiting, {"lanes-missing", returned(*self, warp.instruction), waiting});
        }
        if (warp.arrived == count_lanes(warp.alive)) {
            warp.substitute = waiting;
            warp.runnable |= lane_bit(waiting->lane);
        }
    }
    release_groups(warp);
    if (lanes_leave_barriers || warp.alive == 0) {
        block.gone += lanes_leave_barriers ? 1 : count_lanes(warp.existing);
        if (block.arrived > 0 && block.arrived + block.gone == block.threads) {
            release_block();
        }
    }
    if (block.alive == 0) {
        leave_block();
    }
    reschedule();
    __builtin_unreachable();
}

void Worker::leave_block() {
    leave_stack();
    void *discarded;
    simt_switch_stack(&discarded, host_stack_pointer_);
    __builtin_unreachable();
}

void Worker::leave_attempt() {
    attempt.doubtful = true;
    leave_block();
}

void Worker::note_fault(const Finding &finding) {
    if (attempt.shared) {
        attempt.doubtful = true;
        return;
    }
    const uint32_t thread = finding.fiber->thread_number();
    if (thread >= faulty_thread_) {
        return;
    }
    fault_ = json_of(finding); // may crash; until then there is no fault
    faulty_thread_ = thread;
    // A thread that no longer runs arrives at no barrier, so none of these masks is set again.
    for (uint32_t i = thread / warp_size; i < block.warps; i++) {
        warps[i].runnable &= i == thread / warp_size ? lanes_below(thread % warp_size) : 0;
    }
}

void Worker::stop_if_after_fault() {
    if (__builtin_expect(has_fault(), 0) && self->thread_number() >= faulty_thread_) {
        stop_thread();
    }
}

void Worker::stop_thread() {
    if (attempt.doubtful) {
        leave_block();
    }
    for (;;) { // other lanes may wake it
        self->warp->runnable &= ~lane_bit(self->lane);
        reschedule();
    }
}

void Worker::report_deadlock() {
    if (has_fault() || attempt.doubtful) {
        leave_block();
    }
    uint32_t waiting = 0, returned = 0, in_warp = 0;
    Fiber *at_barrier = nullptr;
    Fiber *stuck = nullptr;
    for (uint32_t i = 0; i < block.threads; i++) {
        Fiber &fiber = fibers_[i];
        waiting += fiber.wait == Wait::block;
        returned += fiber.wait == Wait::done;
        in_warp += fiber.wait == Wait::warp;
        at_barrier = fiber.wait == Wait::block && at_barrier == nullptr ? &fiber : at_barrier;
        stuck = fiber.wait == Wait::warp && stuck == nullptr ? &fiber : stuck;
    }
    char text[400];
    if (stuck != nullptr) {
        snprintf(text, sizeof(text),
                 "%u lanes wait in %s for lanes of their warp that never arrive (%u threads at a barrier, %u returned)",
                 in_warp, stuck->place, waiting, returned);
        report_from(stuck, {"lanes-missing", text, stuck});
    }
    if (at_barrier == nullptr) {
        fail("no thread of a block can run, and none of them waits");
    }
    snprintf(text, sizeof(text), "%u of %u threads wait at the barrier in %s:%d, %u have returned", waiting,
             block.threads, at_barrier->place, at_barrier->line, returned);
    report_from(at_barrier, {"barrier-divergence", text, at_barrier});
}

// Continues on the stack of a waiting thread, whose call stack is to be shown.
void Worker::report_from(Fiber *fiber, Finding finding) {
    if (fiber != self) {
        doomed_ = &finding;
        switch_to(fiber);
    }
    report(finding);
}

Groups &Worker::groups_of(Warp &warp) {
    std::unique_ptr<Groups> &groups = groups_[warp.index];
    if (groups == nullptr) {
        groups = std::make_unique<Groups>();
    }
    warp.groups = groups.get();
    return *groups;
}

void Worker::release_block() {
    count_barrier();
    block.arrived = 0;
    block.epoch++;
    block.count[(block.epoch + 1) & 1] = 0; // for the barrier after this one
    for (uint32_t i = 0; i < block.warps; i++) {
        warps[i].runnable = warps[i].alive;
    }
}

namespace {

// A GPU pairs barriers at different places, so threads that should have waited pass. llama.cpp's mma kernel used
// this on purpose (until b8672 at least), so only the checker reports it.
void check_place([[maybe_unused]] Block &block, [[maybe_unused]] const char *file, [[maybe_unused]] int line) {
#if defined(SIMT_CHECK)
    if (block.arrived == 0) {
        block.file = file;
        block.line = line;
    } else if (__builtin_expect(line != block.line, 0) || (file != block.file && strcmp(file, block.file) != 0)) {
        report({"barrier-divergence", "the barrier in " + std::string(file) + ":" + std::to_string(line) +
                                          " is reached while other threads wait at the one in " + block.file + ":" +
                                          std::to_string(block.line)});
    }
#endif
}

} // namespace

// A warp whose lanes have all returned no longer counts (the tile kernel's combine relies on this). If only some lanes
// of a warp have returned, the barrier is never reached, as in compute-sanitizer's synccheck; not so on AMD.
void sync_block(const char *file, int line) {
    Block &block = worker->block;
    check_place(block, file, line);
    if (++block.arrived + block.gone == block.threads) {
        worker->release_block();
        worker->restart_order();
        return;
    }
    const uint32_t epoch = block.epoch;
    self->wait = Wait::block;
    self->place = file;
    self->line = line;
    worker->next_lane_or_warp();
    worker->report_if_doomed();
    while (__builtin_expect(block.epoch == epoch, 0)) {
        worker->reschedule();
    }
    self->wait = Wait::none;
}

int sync_block_count(bool predicate, const char *file, int line) {
    Block &block = worker->block;
    int &count = block.count[(block.epoch + 1) & 1];
    count += predicate;
    sync_block(file, line);
    return count;
}

void trap(const char *file, int line) {
    report({"trap", std::string("__trap() in ") + file + ":" + std::to_string(line)});
}

void unknown_ptx(const char *mnemonic, const char *file, int line) {
    const char *const maker = environment().gfx.empty() ? "PTX" : "AMD";
    report({"unknown-instruction", std::string("the simulator lacks the ") + maker + " instruction " + mnemonic +
                                       " in " + file + ":" + std::to_string(line)});
}

void report_unsupported(const char *what, const char *file, int line) {
    report({"unsupported",
            std::string("the simulator does not have ") + what + ", in " + file + ":" + std::to_string(line)});
}

// Without a block, a kernel describes itself (launch.h).
void *dynamic_shared_memory() { return worker != nullptr ? worker->dynamic_memory() : nullptr; }

void *static_shared_memory(const void *site, size_t bytes, size_t alignment) {
    return worker->static_variable(site, bytes, alignment);
}

} // namespace simt
