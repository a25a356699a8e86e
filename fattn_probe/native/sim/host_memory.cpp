#include "host_memory.h"

#include "check_host.h"
#include "device.h"
#include "environment.h"
#include "finding.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace simt {

CheckerOfHost checker;

namespace {

constexpr size_t page = 4096;
constexpr size_t distance = size_t{1} << 33; // of address space before and after each allocation
constexpr size_t alignment = 256;
constexpr size_t large = size_t{256} << 20; // whose untouched pages cost nothing
constexpr size_t fill_bytes = size_t{16} << 20;
constexpr size_t most_freed_bytes = size_t{16} << 20; // of the device heap

size_t round_up(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

struct Registry {
    std::mutex mutex;
    std::map<char *, Allocation> by_reserve;
    std::map<const char *, size_t> pinned; // bytes, by start
    std::map<const char *, HeapBlock> heap;
    std::deque<HeapBlock> freed; // blocks of the heap, the oldest first
    size_t freed_bytes = 0;
    size_t count = 0;
};

Registry &registry() {
    static Registry once;
    return once;
}

} // namespace

void *map_pages(size_t bytes) {
    void *pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        fail("no memory: mmap of " + std::to_string(bytes) + " bytes failed");
    }
    return pages;
}

void protect_pages(void *address, size_t bytes) { mprotect(address, bytes, PROT_NONE); }

namespace {

// A file in memory; -1 if there is none. Its pages live as long as they are mapped.
int file_of(const char *data, size_t bytes) {
    const int file = memfd_create("fattn-probe", MFD_CLOEXEC);
    for (size_t done = 0; file >= 0 && done < bytes;) {
        const ssize_t more = write(file, data + done, bytes - done);
        if (more <= 0) {
            close(file);
            return -1;
        }
        done += static_cast<size_t>(more);
    }
    return file;
}

// Maps whole pages repeatedly to the pages of a file of `period` bytes. A written page becomes a private copy.
bool map_repeatedly(char *pages, size_t bytes, int file, size_t period) {
    bool good = file >= 0;
    for (size_t offset = 0; good && offset < bytes; offset += period) {
        good = mmap(pages + offset, std::min(period, bytes - offset), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0) != MAP_FAILED;
    }
    return good;
}

// Fills fresh pages with NaN in every format; false if that fails.
bool fill_with_nan(char *pages, size_t bytes) {
    if (bytes < large) {
        memset(pages, 0xFF, bytes);
        return true;
    }
    static const int file = file_of(std::string(fill_bytes, '\xff').data(), fill_bytes);
    return map_repeatedly(pages, bytes, file, fill_bytes);
}

// Reserves inaccessible addresses: those of a released allocation if reuse is allowed; MAP_FAILED if there are none.
void *reserve_addresses(size_t bytes) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    for (auto &[reserve, released] : registry().by_reserve) {
        if (environment().reuse && !released.live && released.reserved == bytes) {
            released.reserved = 0; // taken
            return reserve;
        }
    }
    return mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// The live allocation that starts at an address; nullptr if none does. The caller has locked the registry.
Allocation *starting_at(void *pointer) {
    auto &all = registry().by_reserve;
    const auto after = all.upper_bound(static_cast<char *>(pointer));
    Allocation *const before = after == all.begin() ? nullptr : &std::prev(after)->second;
    const bool found = before != nullptr && before->live && (before->start == pointer || before->whole == pointer);
    return found ? before : nullptr;
}

} // namespace

bool repeat(char *start, size_t bytes, const char *data, size_t period) {
    const auto before = reinterpret_cast<uintptr_t>(start) % page; // the first page begins before the first byte
    if (period % page != 0 || period < before || bytes == 0) {
        return false;
    }
    const std::string rotated = std::string(data + period - before, before) + std::string(data, period - before);
    const int file = file_of(rotated.data(), period);
    char *const pages = start - before;
    const size_t usable = round_up(before + bytes, page);
    const bool good = map_repeatedly(pages, usable, file, period);
    if (file >= 0) {
        close(file);
    }
    if (good) {
        memset(pages, 0xFF, before);
        memset(start + bytes, 0xFF, usable - before - bytes);
    }
    return good;
}

void *allocate(size_t bytes) {
    if (bytes > SIZE_MAX - 4 * distance) {
        return nullptr; // the sizes below would overflow
    }
    const size_t usable = round_up(bytes == 0 ? 1 : bytes, page);
    const size_t reserved = usable + 2 * distance;
    void *const reserve = reserve_addresses(reserved);
    if (reserve == MAP_FAILED) {
        return nullptr;
    }
    char *const memory = static_cast<char *>(reserve) + distance;
    if (mprotect(memory, usable, PROT_READ | PROT_WRITE) != 0 || !fill_with_nan(memory, usable)) {
        munmap(reserve, reserved);
        return nullptr;
    }
    char *const start = memory + (usable - round_up(bytes, alignment));
    Allocation allocation{start, bytes, start, bytes, static_cast<char *>(reserve), reserved};
    checker.allocated(start, bytes);
    const std::lock_guard<std::mutex> lock(registry().mutex);
    allocation.number = registry().count++;
    registry().by_reserve[allocation.reserve] = allocation;
    return start;
}

bool release(void *pointer) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    Allocation *const allocation = starting_at(pointer);
    if (allocation == nullptr) {
        return false;
    }
    // The addresses stay reserved, so that a use after free is found, unless another allocation takes them.
    allocation->live = false;
    checker.released(allocation->start);
    mmap(allocation->reserve, allocation->reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
    return true;
}

const Allocation *find_allocation(const void *address) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    auto &all = registry().by_reserve;
    auto after = all.upper_bound(static_cast<char *>(const_cast<void *>(address)));
    if (after == all.begin()) {
        return nullptr;
    }
    const Allocation &candidate = std::prev(after)->second;
    return address < candidate.reserve + candidate.reserved ? &candidate : nullptr;
}

void *hand_out(void *pointer, size_t bytes) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    Allocation *const allocation = starting_at(pointer);
    if (allocation == nullptr || bytes > allocation->whole_bytes) {
        return pointer;
    }
    char *const pages = allocation->reserve + distance;
    const size_t usable = allocation->reserved - 2 * distance;
    if (allocation->idle && (mprotect(pages, usable, PROT_READ | PROT_WRITE) != 0 || !fill_with_nan(pages, usable))) {
        fail("no memory for what a memory pool hands out again");
    }
    allocation->idle = false;
    checker.released(allocation->start);
    allocation->start = pages + usable - round_up(bytes, alignment);
    allocation->bytes = bytes;
    checker.allocated(allocation->start, bytes);
    return allocation->start;
}

// Makes an allocation's pages inaccessible: those between the two reserved ranges of addresses.
void *give_back(void *pointer) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    Allocation *const allocation = starting_at(pointer);
    if (allocation == nullptr) {
        return pointer;
    }
    if (!allocation->idle) {
        allocation->idle = true;
        mprotect(allocation->reserve + distance, allocation->reserved - 2 * distance, PROT_NONE);
    }
    return allocation->whole;
}

void make_managed(void *start) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    for (auto &[reserve, allocation] : registry().by_reserve) {
        allocation.managed |= allocation.live && allocation.start == start;
    }
}

bool is_managed(const void *start, size_t bytes) {
    const Allocation *const allocation = find_allocation(start);
    return allocation != nullptr && allocation->managed && bytes != 0 && allocation->has(start, bytes);
}

void pin(void *pointer, size_t bytes) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    registry().pinned[static_cast<char *>(pointer)] = bytes;
}

bool unpin(void *pointer) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    return registry().pinned.erase(static_cast<char *>(pointer)) != 0;
}

const char *end_of_pinned(const char *address) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    const auto after = registry().pinned.upper_bound(address);
    if (after == registry().pinned.begin()) {
        return nullptr;
    }
    const char *const end = std::prev(after)->first + std::prev(after)->second;
    return address < end ? end : nullptr;
}

void *allocate_in_heap(size_t bytes) {
    char *const memory = bytes > SIZE_MAX / 2 ? nullptr : static_cast<char *>(malloc(bytes + heap_guard_bytes));
    if (memory != nullptr) {
        const std::lock_guard<std::mutex> lock(registry().mutex);
        registry().heap[memory] = {memory, bytes};
    }
    return memory;
}

bool free_in_heap(void *start) {
    Registry &all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.heap.find(static_cast<char *>(start));
    if (found == all.heap.end() || !found->second.live) {
        return false;
    }
    found->second.live = false;
    all.freed.push_back(found->second);
    all.freed_bytes += found->second.bytes;
    while (all.freed_bytes > most_freed_bytes) {
        const HeapBlock oldest = all.freed.front();
        all.freed.pop_front();
        all.freed_bytes -= oldest.bytes;
        all.heap.erase(oldest.start);
        free(oldest.start);
    }
    return true;
}

HeapBlock heap_block_at(const char *address) {
    constexpr ptrdiff_t before = 16; // malloc's own
    const std::lock_guard<std::mutex> lock(registry().mutex);
    const auto &heap = registry().heap;
    const auto after = heap.upper_bound(address);
    if (after != heap.begin()) {
        const HeapBlock &block = std::prev(after)->second;
        if (address < block.start + block.bytes + heap_guard_bytes) {
            return block;
        }
    }
    return after != heap.end() && after->first - address <= before ? after->second : HeapBlock{};
}

std::string name_heap_byte(const HeapBlock &block, const char *address) {
    return "at byte " + std::to_string(address - block.start) + " of a block of the device heap, which " +
           (block.live ? "has " + std::to_string(block.bytes) + " bytes" : "was freed");
}

namespace {

bool is_mapped(const void *address) {
    unsigned char resident;
    return mincore(reinterpret_cast<void *>(reinterpret_cast<uintptr_t>(address) / page * page), page, &resident) == 0;
}

} // namespace

bool is_host_memory(const void *address) {
    Dl_info module;
    return address != nullptr && device_properties().integrated == 0 && find_allocation(address) == nullptr &&
           end_of_pinned(static_cast<const char *>(address)) == nullptr &&
           heap_block_at(static_cast<const char *>(address)).start == nullptr && is_mapped(address) &&
           dladdr(address, &module) == 0;
}

const char *kind_of_fault(const void *address) {
    const Allocation *allocation = find_allocation(address);
    return allocation != nullptr && (!allocation->live || allocation->idle) ? "use-after-free" : "out-of-bounds";
}

namespace {

std::string name_byte_of(const Allocation &allocation, const void *address) {
    const std::string number = "allocation " + std::to_string(allocation.number);
    return "byte " + std::to_string(static_cast<const char *>(address) - allocation.start) + " of " +
           (allocation.name.empty() ? number : allocation.name + " (" + number + ")");
}

} // namespace

std::string name_byte(const void *address) { return name_byte_of(*find_allocation(address), address); }

std::string describe_fault(const void *address) {
    const Allocation *allocation = find_allocation(address);
    if (allocation == nullptr) { // no address in the message, since it differs from run to run
        const auto byte = reinterpret_cast<uintptr_t>(address);
        return byte < guard_bytes ? "byte " + std::to_string(byte) + " of a null pointer is accessed"
                                  : "global memory is accessed far from every allocation";
    }
    return "global memory is accessed at " + name_byte_of(*allocation, address) + ", which " +
           (!allocation->live  ? "was freed"
            : allocation->idle ? "was given back to the memory pool"
                               : "has " + std::to_string(allocation->bytes) + " bytes");
}

#if defined(__x86_64__)
FlushDenormals::FlushDenormals(bool flush) : saved_(_mm_getcsr()) {
    _mm_setcsr(static_cast<unsigned>(saved_) | (flush ? 0x8040 : 0)); // flush to zero, denormals are zero
}
FlushDenormals::~FlushDenormals() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#else
FlushDenormals::FlushDenormals(bool flush) {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | (flush ? 1ul << 24 : 0)));
}
FlushDenormals::~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }
#endif

} // namespace simt

// Programs may name their allocations; findings show the names.
extern "C" void fattn_probe_name_allocation(const void *start, const char *name) {
    const std::lock_guard<std::mutex> lock(simt::registry().mutex);
    for (auto &[reserve, allocation] : simt::registry().by_reserve) {
        if (allocation.start == start && allocation.live) {
            allocation.name = name;
        }
    }
}

// Memory that holds the results of earlier kernels in a model's graph, which may still run when the next kernel begins.
extern "C" void fattn_probe_written_before(const void *start, size_t bytes) {
    simt::checker.written_before(start, bytes);
}

// Fills the beginning of an allocation with repetitions of `period` bytes, at the cost of one period: pages are shared
// until a kernel writes them. Returns false if pages cannot be shared; then only a part, or nothing, is filled.
extern "C" bool fattn_probe_repeat(void *start, size_t bytes, const void *data, size_t period) {
    simt::checker.written(start, nullptr, bytes);
    return simt::repeat(static_cast<char *>(start), bytes, static_cast<const char *>(data), period);
}

// Upstream's memory pool hands out a buffer, and takes it back (rewrite_checker.py).
void *simt_hand_out(void *pointer, size_t bytes) { return simt::hand_out(pointer, bytes); }
void *simt_give_back(void *pointer) { return simt::give_back(pointer); }
