// One host thread that runs blocks one after another: its fibers, its shared memory, its scheduler.
#pragma once

#include "finding.h"
#include "group.h"
#include "launch.h"
#include "register_file.h"
#include "schedule.h"
#include "warp.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace simt {

struct Block {
    uint32_t threads = 0;
    uint32_t alive = 0;   // threads that have not returned
    uint32_t gone = 0;    // threads of warps that have returned as a whole
    uint32_t arrived = 0; // at the block's barrier
    uint32_t epoch = 0;   // barriers that the worker has passed, and blocks that it has begun
    uint32_t first_epoch = 0;
    uint32_t warps = 0;
    uint32_t waited_epoch = 0; // when a thread called cudaGridDependencySynchronize(); 0: none has
    bool triggered = false;    // the kernels that depend on this one may start
    int count[2] = {};         // of __syncthreads_count, for this barrier and the next
    const char *file = "";     // the place of the barrier, if threads have arrived
    int line = 0;
};

struct PendingCopy {
    void *to;
    const void *from;
    size_t bytes;
    size_t read;    // the bytes to read; the others become 0
    uint32_t group; // the thread's commits before this copy
};

struct StaticVariable {
    const void *site;
    size_t offset;
    size_t bytes;
};

class Worker {
  public:
    static constexpr size_t max_threads = 1024;
    static constexpr size_t arena_bytes = 512 << 10;

    Worker();
    ~Worker();

    // Forget the last launch's shared variables; then any number of its blocks can be run.
    void begin(const Launch &launch);
    void run_block(dim3 index);

    void release_block(); // all threads have reached the barrier

    // The running fiber cannot continue until another fiber has acted: run another fiber.
    void reschedule();

    // Runs another fiber while this lane waits for the others of its warp or its block; returns false.
    bool next_lane_or_warp();

    void report_if_doomed(); // the running fiber goes on only because it has something to report

    // The running fiber and others can continue: start the schedule's order again.
    void restart_order();

    // Shared memory: static variables from the start, dynamic memory up to the very end, then a guard page.
    char *shared_arena() const { return arena_; }
    char *dynamic_memory() const { return arena_ + arena_bytes - dynamic_bytes_; }
    size_t dynamic_bytes() const { return dynamic_bytes_; }
    size_t static_bytes() const { return static_bytes_; }
    void *static_variable(const void *site, size_t bytes, size_t alignment);
    const std::vector<StaticVariable> &static_variables() const { return static_; }

    bool adversarial() const { return order_ != Order::lockstep; }
    bool runs_ahead() const { return runs_ahead_; }
    static constexpr size_t stacks_bytes = max_threads * stack_bytes;
    static constexpr size_t threads_bytes = stacks_bytes + max_threads * sizeof(Fiber);
    const char *stacks() const { return stacks_; } // the fibers follow them
    bool owns_stack(const void *address) const { return address >= stacks_ && address < stacks_ + stacks_bytes; }
    // Makes part of the running thread's stack guard accessible, if the address is in it; once per block.
    bool give_room_at(const void *address);
    bool owns(const void *address) const { // the simulator's own memory, and local variables
        return owns_stack(address) || (address >= this && address < this + 1);
    }
    const Fiber &thread(uint32_t number) const { return fibers_[number]; }
    void finish_fiber(); // called on the fiber's own stack; does not return
    Groups &groups_of(Warp &warp);

    uint64_t block_index() const; // of the running block, x fastest

    // A fault of a thread in the running block. From now on only threads with lower numbers run; when none of them can
    // continue, the fault of the lowest faulty thread ends the process.
    void note_fault(const Finding &finding);
    bool has_fault() const { return faulty_thread_ != max_threads; }
    void stop_if_after_fault(); // the running thread, unless its number is lower
    [[noreturn]] void stop_thread();
    [[noreturn]] void leave_attempt(); // a doubtful attempt: the block ends here (attempt.h)

    const Launch *launch = nullptr;
    Block block;
    Warp warps[max_threads / warp_size];
    std::vector<std::vector<PendingCopy>> pending_copies;
    RegisterFile registers;

  private:
    Fiber *next_in_order();
    Fiber *next_at_random();
    Fiber *next_adversarial();
    uint64_t random();
    void prepare_fiber(Fiber &fiber, uint32_t thread);
    void switch_to(Fiber *fiber);
    static bool go_on_as(Fiber *fiber);
    [[noreturn]] void report_deadlock();
    [[noreturn]] void leave_block(); // the running thread goes on after the block's end
    [[noreturn]] void report_from(Fiber *fiber, Finding finding);

    Fiber *fibers_ = nullptr;
    const Finding *doomed_ = nullptr; // the finding that the fiber switched to has to report
    uint32_t faulty_thread_ = max_threads;
    std::string fault_; // of that thread, as JSON
    char *stacks_ = nullptr;
    char *arena_ = nullptr;
    size_t dynamic_bytes_ = 0;
    size_t static_bytes_ = 0;
    std::vector<StaticVariable> static_;
    void *host_stack_pointer_ = nullptr;
    Order order_;
    uint32_t warp_ahead_ = 0;
    uint64_t schedule_seed_ = 0;
    bool runs_ahead_ = false;
    bool has_room_[max_threads] = {};
    std::unique_ptr<Groups> groups_[max_threads / warp_size]; // of the warps that have needed them
    std::unique_ptr<AheadWarp[]> ahead_;
    uint64_t random_state_ = 0;
};

extern SIMT_THREAD_LOCAL Worker *worker;

// Whether all lanes of a warp must execute an instruction (PTX: `.aligned`). Other instructions do not need lanes that
// have returned.
bool needs_all_lanes(const char *instruction);

// "thread (5,1,0) returned while other lanes of its warp wait for it in ldmatrix".
std::string returned(const Fiber &fiber, const char *instruction);

} // namespace simt
