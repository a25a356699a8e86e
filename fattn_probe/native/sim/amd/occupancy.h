// How many workgroups an AMD compute unit holds at once: what HIP's runtime computes for
// hipOccupancyMaxActiveBlocksPerMultiprocessor (ROCm clr, hip_platform.cpp), of an RDNA GPU for pairs of compute units.
#pragma once

#include <cstddef>

namespace simt::amd {

// Workgroups of `threads`, which need `shared` bytes of LDS and `registers` VGPRs a lane; 0: unknown, they limit
// nothing.
int occupancy(int registers, int threads, size_t shared);

// The threads whose VGPRs fit into a compute unit.
int resident_threads(int registers);

// The most VGPRs that a kernel can have with these launch bounds: threads of a workgroup, and waves on each SIMD.
int most_registers(int threads, int waves);

} // namespace simt::amd
