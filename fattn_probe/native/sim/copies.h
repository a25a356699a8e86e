// What cudaMemcpy and cudaMemset refuse: measured on an H200 (CUDA 13.0, 2026-11-24). tests/lab/program/copies.cu has
// the list.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace simt {

// A side of a copy; rows of pitched memory with what lies between them.
struct Span {
    const void *start;
    size_t bytes;
};
inline Span rows(const void *start, size_t pitch, size_t width, size_t height) {
    return {start, width == 0 || height == 0 ? 0 : (height - 1) * pitch + width};
}

// The error of a copy, or cudaSuccess. A driver goes by the address where it knows it: device memory may be on either
// side, whatever the direction. Host memory that is not pinned may only be on the host's side.
cudaError_t check_copy(Span to, Span from, cudaMemcpyKind kind);

// The same of cudaMemset.
cudaError_t check_fill(Span to);

} // namespace simt
