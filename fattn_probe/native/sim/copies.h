// The copies and fills that CUDA refuses, as measured on an H200 (CUDA 13.0, 2026-11-24). tests/lab/program/copies.cu
// has the list.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace simt {

// One side of a copy: for pitched memory, the rows and the gaps between them.
struct Span {
    const void *start;
    size_t bytes;
};
inline Span rows(const void *start, size_t pitch, size_t width, size_t height) {
    return {start, width == 0 || height == 0 ? 0 : (height - 1) * pitch + width};
}

// The error of a copy, or cudaSuccess. The driver decides by the address if it knows the address: device memory may be
// on either side, for any direction. Host memory that is not pinned may only be on the host's side.
cudaError_t check_copy(Span to, Span from, cudaMemcpyKind kind);

// The error of a cudaMemset, or cudaSuccess.
cudaError_t check_fill(Span to);

} // namespace simt
