// The order of what streams do: kernels, copies and fills. Each stream has a vector clock, which says of every stream
// up to which operation all is done when this stream's next operation begins. Events and the host carry clocks from one
// stream to another.
//
// A kernel of programmatic dependent launch may begin earlier: when each block of the kernel before it has called
// cudaTriggerProgrammaticLaunchCompletion() or has ended. What is done then, is what was done when a block of that
// kernel did so: all that came before it, if the thread had waited by cudaGridDependencySynchronize(), else only what
// was done when that kernel began. After its own wait all earlier operations of its stream are done. So an H100 does
// it, also where the kernel between never waits, and where anything but a kernel is between (2026-11-25).
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

// Which operations are done when another one begins.
struct Done {
    bool all = true;
    bool covers(uint16_t number) const; // asked only if not all are
    std::vector<uint32_t> last;         // the last one of each stream that is done
};

const Operation &operation(uint16_t number);
uint16_t running_kernel();

// What is done for the running thread: less before it has waited for its kernel's dependency.
const Done &done_here();
bool has_waited();

// A transfer begins and ends at once; its number, and what was done.
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
