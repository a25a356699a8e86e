// Faults behind switches (fattn_probe/lab/detect/mutants.py); at most one is on. A run without a fault records the
// faults that it reaches, and those that would have changed a value.
//
// Only kernels of a build with such faults include this (build/flags.py); no other build has a switch.
#pragma once

#include "half_bits.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>

namespace simt {

constexpr int MOST_MUTANTS = 1 << 14;

inline int active_mutant = 0; // 0 is none
inline bool reached_mutants[MOST_MUTANTS];
inline bool felt_mutants[MOST_MUTANTS];

[[noreturn]] void fail(const std::string &message);

// The numbers in kernels are constants, so this costs nothing there.
[[gnu::always_inline]] inline void check_mutant(int number) {
    if (number < 0 || number >= MOST_MUTANTS) {
        fail("mutant " + std::to_string(number) + " has no room: there may be " + std::to_string(MOST_MUTANTS - 1));
    }
}

[[gnu::always_inline]] inline bool mutant(int number, bool felt = true) {
    check_mutant(number);
    reached_mutants[number] = true;
    felt_mutants[number] |= felt;
    return number == active_mutant;
}

// Whether a mutant has not yet been seen to change a value.
[[gnu::always_inline]] inline bool unknown(int number) {
    check_mutant(number);
    return active_mutant == 0 && !felt_mutants[number];
}

// Whether two values differ in their bits; values of different types are converted as the operator `?:` converts them.
template <typename A, typename B> bool differ(A a, B b) {
    using Both = std::decay_t<decltype(true ? a : b)>;
    const Both both[] = {static_cast<Both>(a), static_cast<Both>(b)};
    return std::memcmp(&both[0], &both[1], sizeof(Both)) != 0;
}

// A float rounded to f16; not defined for other types, so such a mutant does not compile.
template <typename T, std::enable_if_t<std::is_same<T, float>::value, int> = 0> float through_half(T value) {
    return float_of_half(half_of_float(value));
}

// When a process without a mutant ends, writes the mutants that it reached to the file FATTN_PROBE_REACHED: `7 1`
// changed a value, `7 0` did not.
struct Reached {
    ~Reached() {
        const char *path = active_mutant == 0 ? std::getenv("FATTN_PROBE_REACHED") : nullptr;
        std::FILE *file = path != nullptr ? std::fopen(path, "w") : nullptr;
        if (file == nullptr) {
            return;
        }
        for (int number = 0; number < MOST_MUTANTS; ++number) {
            if (reached_mutants[number]) {
                std::fprintf(file, "%d %d\n", number, felt_mutants[number] ? 1 : 0);
            }
        }
        std::fclose(file);
    }
};
inline Reached reached;

} // namespace simt

// Called by the runner (runner/fork.h) before a run.
extern "C" [[gnu::used]] inline void fattn_probe_switch_on(int mutant) {
    simt::check_mutant(mutant);
    simt::active_mutant = mutant;
}
