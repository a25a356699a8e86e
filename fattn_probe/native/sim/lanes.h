// The lanes of a warp, and sets of them. A warp has 32; AMD's CDNA has wavefronts of 64.
#pragma once

#include <cstdint>
#include <type_traits>

#if !defined(SIMT_WARP)
#define SIMT_WARP 32
#endif

namespace simt {

constexpr int warp_size = SIMT_WARP;
using LaneMask = std::conditional_t<warp_size == 64, uint64_t, uint32_t>;
constexpr LaneMask full_mask = ~LaneMask{0};

// An AMD wave reaches a barrier with its remaining lanes: s_barrier counts waves, not lanes.
#if defined(SIMT_AMD)
constexpr bool lanes_leave_barriers = true;
#else
constexpr bool lanes_leave_barriers = false;
#endif

using LaneWords = uint32_t[warp_size]; // a register of each lane

constexpr LaneMask lane_bit(uint32_t lane) { return LaneMask{1} << lane; }
constexpr LaneMask lanes_below(uint32_t lane) { return lane_bit(lane) - 1; } // of lanes 0 to 63
inline uint32_t lowest_lane(LaneMask lanes) { return static_cast<uint32_t>(__builtin_ctzll(lanes)); }
inline uint32_t highest_lane(LaneMask lanes) { return 63 - static_cast<uint32_t>(__builtin_clzll(lanes)); }
inline uint32_t count_lanes(LaneMask lanes) { return static_cast<uint32_t>(__builtin_popcountll(lanes)); }

} // namespace simt
