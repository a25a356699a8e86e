#include "launch.h"

#include "attempt.h"
#include "check_host.h"
#include "device.h"
#include "device_limits.h"
#include "environment.h"
#include "finding.h"
#include "focus.h"
#include "program/printing.h"
#include "selection.h"
#include "worker.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <vector>

namespace simt {

SIMT_THREAD_LOCAL Description *describing = nullptr;
SIMT_THREAD_LOCAL Worker *worker = nullptr;
Attempt attempt;
void (*count_launch)(unsigned order) = ignore;

namespace {

constexpr uint64_t no_turn = UINT64_MAX;

// Reports the progress of a launch: blocks done and blocks in total, as two uint64_t at the start of the file that
// FATTN_PROBE_BLOCKS names. A write takes about 1 us, a block at least some 100 us.
class Progress {
  public:
    Progress() {
        const char *path = getenv("FATTN_PROBE_BLOCKS");
        file_ = path != nullptr ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    }

    void begin(uint64_t total) {
        total_ = total;
        done_ = 0;
        write();
    }

    void block_done() {
        done_++;
        write();
    }

  private:
    void write() const {
        const uint64_t counts[2] = {done_, total_};
        if (file_ >= 0 && pwrite(file_, counts, sizeof(counts), 0) < 0) {
            return; // progress is optional
        }
    }

    int file_;
    uint64_t total_ = 0;
    std::atomic<uint64_t> done_{0};
};

uint64_t blocks_of(const Launch &launch) {
    return static_cast<uint64_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
}

// Host threads that run the blocks of one launch at a time, in the order of their indices or backwards. Blocks share
// only global memory, so the result does not depend on which thread runs a block.
class Pool {
  public:
    Pool() : running_(std::max(1u, environment().threads)) {
        for (std::atomic<uint64_t> &turn : running_) {
            turn = no_turn;
        }
    }

    // All blocks of a launch, or those of a selection; returns the bytes of its static shared variables.
    size_t run(const Launch &launch, const Selection *selection) {
        selection_ = selection;
        attempt.begin(checker.watches && running_.size() > 1 && turns_of(launch) > 1);
        run_on_all(launch);
        if (attempt.doubtful) {
            checker.undo_launch();
            forget_prints();
            attempt.begin(false);
            begin(launch);
            run_blocks(launch, running_[0]);
        }
        if (!fault_.empty()) {
            end_with(fault_);
        }
        return static_bytes_;
    }
    // The fault of the first faulty block ends the launch.
    void keep_fault(uint64_t block, const std::string &fault) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (fault_.empty() || block < faulty_block_) {
            fault_ = fault;
            faulty_block_ = block;
        }
    }

    ~Pool() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
        }
        start_.notify_all();
        for (std::thread &thread : threads_) {
            thread.join();
        }
    }

    bool runs_before(uint64_t block) const {
        const uint64_t own = selection_ != nullptr ? selection_->turn_after(block) : block;
        return std::any_of(running_.begin(), running_.end(),
                           [own](const std::atomic<uint64_t> &turn) { return turn < own; });
    }

  private:
    void begin(const Launch &launch) {
        static_bytes_ = 0;
        next_ = 0;
        progress_.begin(turns_of(launch));
    }

    void run_on_all(const Launch &launch) {
        while (threads_.size() + 1 < running_.size()) {
            std::atomic<uint64_t> &running = running_[threads_.size() + 1];
            threads_.emplace_back([this, &running] { serve(running); });
        }
        begin(launch);
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            launch_ = &launch;
            busy_ = static_cast<unsigned>(threads_.size());
            round_++;
        }
        start_.notify_all();
        run_blocks(launch, running_[0]);
        std::unique_lock<std::mutex> lock(mutex_);
        finished_.wait(lock, [this] { return busy_ == 0; });
    }

    uint64_t turns_of(const Launch &launch) const {
        return selection_ != nullptr ? selection_->blocks() : blocks_of(launch);
    }

    // Takes the next turn. `running` first gets a number that is not higher, so that `runs_before` cannot miss the
    // block.
    uint64_t take(std::atomic<uint64_t> &running) {
        running = next_.load();
        return running = next_++;
    }

    void run_blocks(const Launch &launch, std::atomic<uint64_t> &running) {
        static thread_local const std::unique_ptr<Worker> own = std::make_unique<Worker>();
        catch_signals_on_this_thread();
        own->begin(launch);
        const uint64_t total = turns_of(launch);
        const bool backwards = blocks_run_backwards(environment().schedule_seed);
        for (uint64_t turn = take(running); turn < total && !attempt.doubtful; turn = take(running)) {
            const uint64_t place = backwards ? total - 1 - turn : turn;
            const uint64_t i = selection_ != nullptr ? selection_->block(place) : place;
            if (focus.block >= 0 && i != static_cast<uint64_t>(focus.block)) {
                continue;
            }
            own->run_block(place_in(launch.grid, i));
            progress_.block_done();
        }
        running = no_turn;
        const std::lock_guard<std::mutex> lock(mutex_);
        static_bytes_ = std::max(static_bytes_, own->static_bytes());
    }

    void serve(std::atomic<uint64_t> &running) {
        uint64_t seen = 0;
        for (;;) {
            std::unique_lock<std::mutex> lock(mutex_);
            start_.wait(lock, [&] { return stop_ || round_ != seen; });
            if (stop_) {
                return;
            }
            seen = round_;
            const Launch &launch = *launch_;
            lock.unlock();
            run_blocks(launch, running);
            lock.lock();
            if (--busy_ == 0) {
                finished_.notify_one();
            }
        }
    }

    Progress progress_;
    const Selection *selection_ = nullptr;
    std::vector<std::atomic<uint64_t>> running_; // the current turn of each host thread, the caller's first
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable start_, finished_;
    const Launch *launch_ = nullptr;
    std::atomic<uint64_t> next_{0};
    unsigned busy_ = 0;
    uint64_t round_ = 0;
    std::string fault_;
    uint64_t faulty_block_ = 0;
    size_t static_bytes_ = 0;
    bool stop_ = false;
};

Pool &pool() {
    static Pool once;
    return once;
}

// Appends a line to the launch records.
void append_record(const std::string &line) {
    FILE *file = fopen(environment().launches.c_str(), "a");
    if (file == nullptr || fputs(line.c_str(), file) == EOF || fclose(file) != 0) {
        fail("cannot write launch records to " + environment().launches);
    }
}

void record(const Launch &launch, unsigned order) {
    const Resources resources = resources_of(launch.kernel);
    int blocks = 0;
    occupancy_of(&blocks, launch.kernel, static_cast<int>(launch.block.x * launch.block.y * launch.block.z),
                 launch.shared);
    append_record("{\"order\":" + std::to_string(order) + ",\"kernel\":" + json_string(launch.kernel.signature) +
                  ",\"grid\":[" + text_of(launch.grid, ",") + "],\"block\":[" + text_of(launch.block, ",") +
                  "],\"shared\":" + std::to_string(launch.shared) +
                  (resources.registers_known ? ",\"regs\":" + std::to_string(resources.registers) : "") +
                  (resources.shared_known ? ",\"static_shared\":" + std::to_string(resources.shared) : "") +
                  (resources.origin.empty() ? "" : ",\"origin\":" + json_string(resources.origin)) +
                  ",\"max_blocks_per_sm\":" + std::to_string(blocks) + "}\n");
}

// Notes a refused launch as a finding, because a program may ignore its error.
void note_refusal(const Launch &launch, const Refusal &refused) {
    static std::atomic<int> left{20};
    if (!environment().program || environment().launches.empty() || left-- <= 0) {
        return;
    }
    Finding finding = {"launch-refused", refused.reason + " (" + cudaGetErrorName(refused.error) + ")"};
    finding.kernel = launch.kernel.signature;
    append_record("{\"refused\":" + json_of(finding) + "}\n");
}

thread_local cudaError_t error_of_this_thread = cudaSuccess;

} // namespace

void note_host_time() {
    static std::atomic<bool> noted{false};
    if (!environment().launches.empty() && !noted.exchange(true)) {
        append_record("{\"note\":\"host time\"}\n");
    }
}

cudaError_t last_error() { return error_of_this_thread; }
cudaError_t set_last_error(cudaError_t error) { return error_of_this_thread = error; }

bool is_programmatic(const cudaLaunchConfig_t &config) {
    constexpr int hopper = 9; // older GPUs ignore it
    return device_properties().major >= hopper &&
           std::any_of(config.attrs, config.attrs + config.numAttrs, [](const cudaLaunchAttribute &attribute) {
               return attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                      attribute.val.programmaticStreamSerializationAllowed != 0;
           });
}

cudaError_t execute(const Launch &launch) {
    if (self != nullptr) {
        report({"unsupported", "a kernel launches a kernel, which the simulator does not have"});
    }
    const Refusal refused = check_limits(launch);
    if (refused.error != cudaSuccess) {
        note_refusal(launch, refused);
        return set_last_error(refused.error);
    }
    if (environment().program) {
        fflush(stdout); // keeps the program's output if the launch never ends
    }
    // Backends on several host threads (test-backend-ops -j) take turns, like kernels on one GPU's default stream.
    static std::mutex turn;
    const std::lock_guard<std::mutex> lock(turn);
    static unsigned order = 0;
    const bool records = !environment().launches.empty();
    if (records) {
        record(launch, order);
    }
    if (!environment().dry && !focus.skip) {
        catch_signals();
        checker.new_launch(launch);
        const Selection *const selection = next_selection(launch.grid);
        const size_t static_shared = pool().run(launch, selection);
        checker.launch_done(selection == nullptr && focus.block < 0);
        count_launch(order);
        if (environment().program && learn_static(launch.kernel, static_shared) && records) {
            record(launch, order); // again, now that the static shared memory is known
        }
        flush_prints();
    }
    order++;
    return cudaSuccess;
}

void report_fault_of_block(uint64_t block, const std::string &fault) {
    if (blocks_run_backwards(environment().schedule_seed)) {
        pool().keep_fault(block, fault);
        return;
    }
    while (pool().runs_before(block)) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    end_with(fault);
}

} // namespace simt
