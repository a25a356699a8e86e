// The orders in which threads and blocks run. FATTN_PROBE_SCHEDULE chooses one; 0 is lockstep.
#pragma once

#include <cstdint>

namespace simt {

enum class Order : uint8_t {
    lockstep,   // warp after warp, each from lane 31 to 0
    random,     // any lane of any warp
    one_ahead,  // one warp runs as far as it can; the others wait for it
    last_first, // the last warp first, from lane 0 to 31
};

constexpr int schedules = 4; // then again, with different random numbers

constexpr Order order_of(uint64_t seed) {
    constexpr Order orders[schedules] = {Order::random, Order::one_ahead, Order::last_first, Order::random};
    return seed == 0 ? Order::lockstep : orders[(seed - 1) % schedules];
}

// The fourth: the last block first.
constexpr bool blocks_run_backwards(uint64_t seed) { return seed != 0 && seed % schedules == 0; }

} // namespace simt
