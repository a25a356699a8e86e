#include "check_order.h"

#include "check.h"
#include "check_writers.h"
#include "worker.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <vector>

namespace simt {
namespace {

using Clock = std::vector<uint32_t>; // by stream: the number of the last operation that is done

void join(Clock &clock, const Clock &other) {
    clock.resize(std::max(clock.size(), other.size()));
    for (size_t i = 0; i < other.size(); i++) {
        clock[i] = std::max(clock[i], other[i]);
    }
}

struct StreamState {
    Stream stream;
    uint32_t last = 0;         // its last operation
    bool after_kernel = false; // the last operation is a kernel, with nothing after it
    Clock done;                // after all its operations
    Clock started;             // when a kernel that depends on the last one programmatically may begin
};

// Numbers of operations grow; the writers' notes hold 16 bits of them, counted from `first`.
struct Queue {
    std::mutex mutex;
    std::vector<StreamState> streams; // by number
    std::map<uint32_t, Clock> events;
    Clock host;
    bool announced = false; // an earlier kernel, which is not queued yet
    uint32_t first = 0;
    std::vector<Operation> operations{1}; // none has number 0
};

Queue &queue() {
    static Queue &once = *new Queue; // never destroyed: programs use streams until their end
    return once;
}

struct Running {
    uint16_t number = 0;
    bool programmatic = false;
    Done started, waited;
    std::atomic<bool> started_after_wait{false}; // a block had waited when its dependents could start
};
Running running;

StreamState &state_of(Stream stream) {
    std::vector<StreamState> &streams = queue().streams;
    while (streams.size() <= stream.number) {
        streams.push_back({{static_cast<uint32_t>(streams.size()), false}});
    }
    streams[stream.number].stream = stream;
    return streams[stream.number];
}

bool wait_for_each_other(Stream a, Stream b) {
    return a.blocking && b.blocking && (a.number == legacy_stream || b.number == legacy_stream);
}

struct Before {
    Clock clock;
    bool kernel_alone; // only the stream's last kernel is in between
};

// The operations that are done when the next operation of a stream begins.
Before before_next(Stream stream) {
    const StreamState &own = state_of(stream);
    Before before = {own.done, own.after_kernel};
    for (const StreamState &other : queue().streams) {
        if (wait_for_each_other(stream, other.stream)) {
            join(before.clock, other.done);
            before.kernel_alone &= other.last <= own.last;
        }
    }
    join(before.clock, queue().host);
    return before;
}

Done done_by(const Clock &clock) {
    Done done{true, clock};
    done.last.resize(queue().streams.size());
    for (const StreamState &state : queue().streams) {
        done.all &= done.last[state.stream.number] >= state.last;
    }
    return done;
}

uint16_t number_of(Operation operation) {
    Queue &all = queue();
    if (all.operations.size() > UINT16_MAX) {
        all.first += static_cast<uint32_t>(all.operations.size()) - 1;
        all.operations.resize(1);
        forget_writers();
    }
    all.operations.push_back(std::move(operation));
    return static_cast<uint16_t>(all.operations.size() - 1);
}

void end_operation(StreamState &state, uint16_t number, Clock done) {
    done.resize(std::max<size_t>(done.size(), state.stream.number + 1));
    state.last = done[state.stream.number] = queue().first + number;
    state.done = std::move(done);
}

void queue_announced(Stream stream) {
    if (!queue().announced) {
        return;
    }
    queue().announced = false;
    const Clock before = before_next(stream).clock;
    const uint16_t number = number_of({"an earlier kernel of the graph", stream, false, {}, {}, {}});
    StreamState &state = state_of(stream);
    state.started = before;
    end_operation(state, number, before);
    state.after_kernel = true;
    number_announced(number);
}

} // namespace

bool Done::covers(uint16_t number) const {
    const uint32_t stream = operation(number).stream.number;
    return stream < last.size() && last[stream] >= queue().first + number;
}

const Operation &operation(uint16_t number) { return queue().operations[number]; }
uint16_t running_kernel() { return running.number; }

bool has_waited() {
    const Warp &warp = *self->warp;
    const uint32_t epoch = worker->block.waited_epoch, instruction = warp.waited_instruction;
    return self->waited || (epoch != 0 && worker->block.epoch > epoch) ||
           (instruction != 0 && warp.generation + warp.of_groups >= instruction);
}

const Done &done_here() { return running.started.all || !has_waited() ? running.started : running.waited; }

void begin_kernel(const Launch &launch) {
    const std::lock_guard<std::mutex> lock(queue().mutex);
    const Stream stream = stream_of(launch.queued.stream);
    queue_announced(stream);
    const Before before = before_next(stream);
    running.programmatic = launch.queued.programmatic && before.kernel_alone;
    Clock started = before.clock;
    if (running.programmatic) {
        started = state_of(stream).started;
        join(started, queue().host);
    }
    running.waited = done_by(before.clock);
    running.started = done_by(started);
    begin_kernel_again();
    running.number = number_of({launch.kernel.signature, stream, true, launch.grid, launch.block, {}});
}

void begin_kernel_again() { running.started_after_wait = !running.programmatic; }

void end_kernel(bool whole) {
    const std::lock_guard<std::mutex> lock(queue().mutex);
    StreamState &state = state_of(operation(running.number).stream);
    state.started = (running.started_after_wait || !whole ? running.waited : running.started).last;
    end_operation(state, running.number, running.waited.last);
    state.after_kernel = true;
    running.number = 0;
}

Begun transfer(const char *call, Stream stream, bool host_waits) {
    const std::lock_guard<std::mutex> lock(queue().mutex);
    const Before before = before_next(stream);
    const Done done = done_by(before.clock);
    const uint16_t number = number_of({call, stream, false, {}, {}, host_waits && done.all ? Stack{} : call_stack()});
    StreamState &state = state_of(stream);
    end_operation(state, number, before.clock);
    state.after_kernel = false;
    if (host_waits) {
        join(queue().host, state.done);
    }
    return {number, done};
}

bool host_knows(uint16_t number) { return Done{false, queue().host}.covers(number); }

void end_block_of_kernel() {
    if (!worker->block.triggered && worker->block.waited_epoch != 0) {
        running.started_after_wait = true;
    }
}

void announce_kernel() {
    const std::lock_guard<std::mutex> lock(queue().mutex);
    queue().announced = true;
}

void record_event(uint32_t event, Stream stream) {
    const std::lock_guard<std::mutex> lock(queue().mutex);
    queue_announced(stream);
    queue().events[event] = before_next(stream).clock;
    state_of(stream).after_kernel = false;
}

void wait_for_event(Stream stream, uint32_t event) {
    const std::lock_guard<std::mutex> lock(queue().mutex);
    StreamState &state = state_of(stream);
    join(state.done, queue().events[event]);
    state.after_kernel = false;
}

void host_waits_for_stream(Stream stream) {
    const std::lock_guard<std::mutex> lock(queue().mutex);
    join(queue().host, before_next(stream).clock);
}

void host_waits_for_event(uint32_t event) {
    const std::lock_guard<std::mutex> lock(queue().mutex);
    join(queue().host, queue().events[event]);
}

void host_waits_for_all() {
    const std::lock_guard<std::mutex> lock(queue().mutex);
    for (const StreamState &state : queue().streams) {
        join(queue().host, state.done);
    }
}

cudaError_t wait_for_kernels() noexcept {
    const Warp &warp = *self->warp;
    self->waited = true;
    worker->block.waited_epoch = worker->block.epoch;
    self->warp->waited_instruction = warp.generation + warp.of_groups + 1;
    return cudaSuccess;
}

cudaError_t trigger_dependents() noexcept {
    if (!worker->block.triggered) {
        worker->block.triggered = true;
        if (has_waited()) {
            running.started_after_wait = true;
        }
    }
    return cudaSuccess;
}

} // namespace simt
