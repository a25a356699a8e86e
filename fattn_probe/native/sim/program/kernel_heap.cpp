#include "kernel_heap.h"

#include "../finding.h"
#include "../host_memory.h"
#include "../thread.h"

#include <cstdlib>

void *simt::allocate_in_kernel(size_t bytes) { return self == nullptr ? malloc(bytes) : allocate_in_heap(bytes); }

void simt::free_in_kernel(void *memory) {
    if (self == nullptr) {
        free(memory);
    } else if (memory != nullptr && !free_in_heap(memory)) {
        const bool known = heap_block_at(static_cast<char *>(memory)).start == memory;
        report({known ? "use-after-free" : "out-of-bounds",
                known ? "a block of the device heap is freed twice"
                      : "the freed pointer is not a block of the device heap"});
    }
}
