// Faults behind switches (fattn_probe/detect/mutants.py): one of them is on. A run without one notes those that it
// reaches, and of these the ones that would have changed something.
#pragma once

#include "half_bits.h"

#include <cstring>
#include <type_traits>

namespace simt {

constexpr int MOST_MUTANTS = 1 << 14;

extern int active_mutant; // 0 is none
extern bool reached_mutants[MOST_MUTANTS];
extern bool felt_mutants[MOST_MUTANTS];

inline bool mutant(int number, bool felt = true) {
    reached_mutants[number] = true;
    felt_mutants[number] |= felt;
    return number == active_mutant;
}

// Whether a mutant is yet to be seen to change a value.
inline bool unknown(int number) { return active_mutant == 0 && !felt_mutants[number]; }

// Whether two values have other bits; two of different types are converted as `?:` does.
template <typename A, typename B> bool differ(A a, B b) {
    using Both = std::decay_t<decltype(true ? a : b)>;
    const Both both[] = {static_cast<Both>(a), static_cast<Both>(b)};
    return std::memcmp(&both[0], &both[1], sizeof(Both)) != 0;
}

// A float that lost its bits beyond f16's; of other types there is none, so that such a mutant does not compile.
template <typename T, std::enable_if_t<std::is_same<T, float>::value, int> = 0> float through_half(T value) {
    return float_of_half(half_of_float(value));
}

} // namespace simt
