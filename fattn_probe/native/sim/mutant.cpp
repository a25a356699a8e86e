#include "mutant.h"

#include <cstdio>
#include <cstdlib>

namespace simt {
namespace {

int chosen() {
    const char *value = std::getenv("FATTN_PROBE_MUTANT");
    return value != nullptr ? std::atoi(value) : 0;
}

// Writes the numbers of the mutants that were reached to the file FATTN_PROBE_REACHED when the process ends.
struct Reached {
    ~Reached() {
        const char *path = std::getenv("FATTN_PROBE_REACHED");
        std::FILE *file = path != nullptr ? std::fopen(path, "w") : nullptr;
        if (file == nullptr) {
            return;
        }
        for (int number = 0; number < MOST_MUTANTS; ++number) {
            if (reached_mutants[number]) {
                std::fprintf(file, "%d\n", number);
            }
        }
        std::fclose(file);
    }
};

} // namespace

bool reached_mutants[MOST_MUTANTS];
int active_mutant = chosen();
Reached reached;

} // namespace simt
