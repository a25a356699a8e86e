// The order of the kernels, copies and fills of streams. Each stream has a vector clock: for every stream, the last
// operation that is done when this stream's next operation begins. Events and the host carry clocks from one stream to
// another.
//
// With programmatic dependent launch, a kernel may begin earlier: when each block of the kernel before it has called
// cudaTriggerProgrammaticLaunchCompletion() or has ended. The operations done by then are those done when a block of
// that kernel triggered: all earlier ones if the thread had called cudaGridDependencySynchronize(), otherwise those
// done when that kernel began. After the kernel's own wait, all earlier operations of its stream are done. An H100 acts
// like this, even if the kernel before it never waits, or an earlier operation is not a kernel (2026-11-25).
#pragma once

#include "finding.h"
#include "launch.h"
#include "streams.h"

#include <cstdint>
#include <string>

namespace simt {

struct Operation {
    const char *call; // a kernel's signature, or the function of the runtime
    Stream stream;
    bool is_kernel;
    dim3 grid, block;
    Stack stack; // of a transfer: the host's
};

// The operations that are done when a given one begins.
struct Done {
    bool all = true;
    bool covers(uint16_t number) const; // called only if `all` is false
    std::vector<uint32_t> last;         // the last one of each stream that is done
};

const Operation &operation(uint16_t number);
uint16_t running_kernel();

// The operations that are done for the running thread: fewer before it has waited for its kernel's dependency.
const Done &done_here();
bool has_waited();

// A transfer that begins and ends at once: its number, and the operations that were done.
struct Begun {
    uint16_t number;
    Done done;
};
Begun transfer(const char *call, Stream stream, bool host_waits);

// The stream's next operation, which the host has announced: a kernel that has triggered its dependents already. It is
// queued before the kernel or event that comes next.
void announce_kernel();

// Whether the host has waited for an operation.
bool host_knows(uint16_t number);

void begin_kernel(const Launch &launch);
void begin_kernel_again(); // the running one
void end_kernel(bool whole);
void end_block_of_kernel(); // a block has ended
void record_event(uint32_t event, Stream stream);
void wait_for_event(Stream stream, uint32_t event);
void host_waits_for_stream(Stream stream);
void host_waits_for_event(uint32_t event);
void host_waits_for_all();

} // namespace simt
