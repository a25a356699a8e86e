#include "mutant.h"

#include <cstdio>
#include <cstdlib>

namespace simt {
namespace {

// When a process without a mutant ends, writes those that it reached to the file FATTN_PROBE_REACHED: `7 1` is felt,
// `7 0` gave no other value.
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

} // namespace

bool reached_mutants[MOST_MUTANTS];
bool felt_mutants[MOST_MUTANTS];
int active_mutant = 0;
Reached reached;

} // namespace simt

// Called by the runner (runner/fork.h) before a run.
extern "C" void fattn_probe_switch_on(int mutant) { simt::active_mutant = mutant; }
