// The simulated GPU's memory, and pages for fibers.
#pragma once

#include <cstddef>
#include <string>

namespace simt {

constexpr size_t guard_bytes = 64 << 10;

void *map_pages(size_t bytes);
void protect_pages(void *address, size_t bytes);

// cudaMalloc: each allocation lies alone in a stretch of address space without memory, ending at a page boundary as far
// as CUDA's 256-byte alignment lets it, so that an access outside of it faults, however far outside.
void *allocate(size_t bytes);
bool release(void *pointer);

struct Allocation {
    char *start = nullptr;
    size_t bytes = 0;
    char *reserve = nullptr; // the stretch of address space that is this allocation's
    size_t reserved = 0;
    bool live = true;
    size_t number = 0;     // in order of allocation
    std::string name = {}; // of the tensor in it, if the program has said so
};

// The allocation whose stretch an address lies in; nullptr if none.
const Allocation *find_allocation(const void *address);

// What a faulting access is: "use-after-free" or "out-of-bounds".
const char *kind_of_fault(const void *address);

// "global memory is accessed at byte 1800 of K (allocation 3), which has 1792".
std::string describe_fault(const void *address);

// Denormal float32 are zero in device code (-use_fast_math sets -ftz=true), for the life of this object.
class FlushDenormals {
  public:
    FlushDenormals();
    ~FlushDenormals();
    FlushDenormals(const FlushDenormals &) = delete;
    FlushDenormals &operator=(const FlushDenormals &) = delete;

  private:
    unsigned long saved_;
};

} // namespace simt
