// The simulated GPU's memory, and pages for the fibers.
#pragma once

#include <cstddef>
#include <string>

namespace simt {

constexpr size_t guard_bytes = 64 << 10;

void *map_pages(size_t bytes);
void protect_pages(void *address, size_t bytes);

// cudaMalloc: each allocation lies alone in a large unmapped range of addresses, and ends at a page boundary as nearly
// as CUDA's 256-byte alignment allows. An access outside of it therefore faults, however far outside.
void *allocate(size_t bytes);
bool release(void *pointer);

// A memory pool hands out the last bytes of an allocation, filled with NaN like a fresh one, and takes them back, so
// that later accesses are faults. The pool may have allocated more; accesses outside of what it has handed out are
// faults too. hand_out returns the start of these bytes, give_back that of the allocation. Memory that is not an
// allocation is not affected; both return the pointer to it.
void *hand_out(void *pointer, size_t bytes);
void *give_back(void *pointer);

// Fills the beginning of an allocation with repetitions of `period` bytes (a multiple of the page size) by mapping the
// same pages: 10 GB then take no more memory than one period. False if that fails.
bool repeat(char *start, size_t bytes, const char *data, size_t period);

struct Allocation {
    char *start = nullptr; // of the accessible bytes: all, or those that a memory pool has handed out
    size_t bytes = 0;
    char *whole = nullptr; // all bytes
    size_t whole_bytes = 0;
    char *reserve = nullptr; // the address range reserved for this allocation
    size_t reserved = 0;
    bool live = true;
    bool idle = false;     // given back to a memory pool
    bool managed = false;  // of cudaMallocManaged
    size_t number = 0;     // in order of allocation
    std::string name = {}; // of the tensor in it, if the program has set it

    // Whether the allocation is live and contains all of these bytes.
    bool has(const void *address, size_t size) const {
        const size_t offset = static_cast<const char *>(address) - start; // huge if the address is before it
        return live && offset <= bytes && size <= bytes - offset;
    }
};

// The allocation whose reserved range contains an address; nullptr if none.
const Allocation *find_allocation(const void *address);

// cudaMallocManaged: memory that accepts advice and prefetching.
void make_managed(void *start);
bool is_managed(const void *start, size_t bytes); // all of these bytes

// cudaMallocHost, cudaHostRegister: host memory that a GPU can access.
void pin(void *pointer, size_t bytes);
bool unpin(void *pointer);                      // whether it was pinned
const char *end_of_pinned(const char *address); // of the pinned memory that an address lies in; nullptr if in none

// Memory that kernels allocate with new and malloc, on the host's heap here. Each block is followed by
// `heap_guard_bytes` that belong to no block. Freed blocks are kept for a while, so that their use is found.
constexpr size_t heap_guard_bytes = 64;
struct HeapBlock {
    char *start = nullptr; // nullptr: none
    size_t bytes = 0;
    bool live = true;
};
void *allocate_in_heap(size_t bytes);
bool free_in_heap(void *start);               // whether it is a live block
HeapBlock heap_block_at(const char *address); // the block that contains an address or is next to it
std::string name_heap_byte(const HeapBlock &block, const char *address); // "at byte 44 of a block of ..."

// Whether an address is in memory that the host can access and a GPU cannot; false in a module, which has constants.
bool is_host_memory(const void *address);

// The kind of a faulting access: "use-after-free" (also for memory given back to a pool) or "out-of-bounds".
const char *kind_of_fault(const void *address);

// "byte 1800 of K (allocation 3)", of an address in a live allocation.
std::string name_byte(const void *address);

// "global memory is accessed at byte 1800 of K (allocation 3), which has 1792 bytes".
std::string describe_fault(const void *address);

// While this object exists, denormal float32 are flushed to zero if requested, as in device code (-ftz=true).
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
