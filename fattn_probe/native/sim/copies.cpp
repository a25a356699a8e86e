#include "copies.h"

#include "host_memory.h"

namespace simt {
namespace {

// Whether a side of a copy lies within its allocation and, if it is the device's side, the device can access it.
bool is_within(Span side, bool of_device) {
    if (side.start == nullptr || side.bytes == 0) {
        return side.bytes == 0;
    }
    const char *const start = static_cast<const char *>(side.start);
    if (const Allocation *allocation = find_allocation(start)) {
        return allocation->has(start, side.bytes);
    }
    if (const char *end = end_of_pinned(start)) {
        return side.bytes <= static_cast<size_t>(end - start);
    }
    if (const HeapBlock block = heap_block_at(start); block.start != nullptr) {
        const char *const end = block.start + block.bytes;
        return block.live && start >= block.start && start <= end && side.bytes <= static_cast<size_t>(end - start);
    }
    return !of_device || !is_host_memory(start);
}

} // namespace

cudaError_t check_copy(Span to, Span from, cudaMemcpyKind kind) {
    if (to.bytes == 0 && from.bytes == 0) {
        return cudaSuccess;
    }
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
        return cudaErrorInvalidMemcpyDirection;
    }
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return is_within(to, to_device) && is_within(from, from_device) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t check_fill(Span to) { return is_within(to, true) ? cudaSuccess : cudaErrorInvalidValue; }

} // namespace simt
