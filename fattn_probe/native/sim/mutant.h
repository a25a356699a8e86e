// Faults behind switches (fattn_probe/detect/mutants.py): one of them is on, and those that a run reaches are noted.
#pragma once

#include "half_bits.h"

#include <type_traits>

namespace simt {

constexpr int MOST_MUTANTS = 1 << 14;

extern int active_mutant; // 0 is none
extern bool reached_mutants[MOST_MUTANTS];

inline bool mutant(int number) {
    reached_mutants[number] = true;
    return number == active_mutant;
}

// A float that lost its bits beyond f16's; of other types there is none, so that such a mutant does not compile.
template <typename T, std::enable_if_t<std::is_same<T, float>::value, int> = 0> float through_half(T value) {
    return float_of_half(half_of_float(value));
}

} // namespace simt
