// The simulated GPU's memory, and pages for the fibers.
#pragma once

#include <cstddef>
#include <string>

namespace simt {

constexpr size_t guard_bytes = 64 << 10;

void *map_pages(size_t bytes);
void protect_pages(void *address, size_t bytes);

// cudaMalloc: each allocation lies alone in a large unmapped range of addresses, and ends at a page boundary as nearly
// as CUDA's 256-byte alignment allows. So an access outside of it faults, however far outside.
void *allocate(size_t bytes);
bool release(void *pointer);

// Fills the beginning of an allocation with `period` bytes, a multiple of the page size, again and again, by mapping
// the same pages: 10 GB cost as much memory as one period. False if that fails.
bool repeat(char *start, size_t bytes, const char *data, size_t period);

struct Allocation {
    char *start = nullptr;
    size_t bytes = 0;
    char *reserve = nullptr; // the address range reserved for this allocation
    size_t reserved = 0;
    bool live = true;
    size_t number = 0;     // in order of allocation
    std::string name = {}; // of the tensor in it, if the program has set it
};

// The allocation whose reserved range contains an address; nullptr if none.
const Allocation *find_allocation(const void *address);

// cudaMallocHost, cudaHostRegister: host memory that a GPU can access.
void pin(void *pointer, size_t bytes);
bool unpin(void *pointer);                      // whether it was pinned
const char *end_of_pinned(const char *address); // of the pinned memory that an address lies in; nullptr if in none

// Whether an address lies in memory that the host can access and a GPU cannot. Not a module's: constants lie there.
bool is_host_memory(const void *address);

// The kind of a faulting access: "use-after-free" or "out-of-bounds".
const char *kind_of_fault(const void *address);

// "byte 1800 of K (allocation 3)", of an address in a live allocation.
std::string name_byte(const void *address);

// "global memory is accessed at byte 1800 of K (allocation 3), which has 1792 bytes".
std::string describe_fault(const void *address);

// While this object lives, denormal float32 are zero if it says so, as in device code (-use_fast_math sets -ftz=true).
class FlushDenormals {
  public:
    explicit FlushDenormals(bool flush);
    ~FlushDenormals();
    FlushDenormals(const FlushDenormals &) = delete;
    FlushDenormals &operator=(const FlushDenormals &) = delete;

  private:
    unsigned long saved_;
};

} // namespace simt
