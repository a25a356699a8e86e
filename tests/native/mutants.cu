// A build with faults behind switches.
#include "mutant.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

int main(int, char ** words) {
    const int number = atoi(words[2]);
    if (strcmp(words[1], "switch_on") == 0) {
        fattn_probe_switch_on(number);
        printf("%d\n", simt::mutant(1) + 2 * simt::mutant(simt::MOST_MUTANTS - 1));
    } else if (strcmp(words[1], "unknown") == 0) {
        printf("%d\n", simt::unknown(number));
    } else {
        printf("%d\n", simt::mutant(number));
    }
    return 0;
}
