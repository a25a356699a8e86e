// Faults behind switches (fattn_probe/detect/mutants.py): one of them is on, and those that a run reaches are noted.
#pragma once

namespace simt {

constexpr int MOST_MUTANTS = 1 << 14;

extern int active_mutant; // FATTN_PROBE_MUTANT; 0 is none
extern bool reached_mutants[MOST_MUTANTS];

inline bool mutant(int number) {
    reached_mutants[number] = true;
    return number == active_mutant;
}

} // namespace simt
