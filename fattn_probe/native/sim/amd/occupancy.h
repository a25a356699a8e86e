// The number of workgroups that fit on an AMD compute unit, as HIP's runtime computes it for
// hipOccupancyMaxActiveBlocksPerMultiprocessor (ROCm clr, hip_platform.cpp); on RDNA, on a pair of compute units.
#pragma once

#include <cstddef>

namespace simt::amd {

// For workgroups of `threads` with `shared` bytes of LDS and `registers` VGPRs per lane (0: unknown, no limit).
int occupancy(int registers, int threads, size_t shared);

// The threads whose VGPRs fit into a compute unit.
int resident_threads(int registers);

// The most VGPRs that a kernel can have with these launch bounds: threads of a workgroup, and waves on each SIMD.
int most_registers(int threads, int waves);

} // namespace simt::amd
