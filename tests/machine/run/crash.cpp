#include "crash.h"
#include <cstdlib>
__attribute__((noinline)) void wounded(volatile int *p) {
    *p = 1;
}
int main(int argc, char **words) {
    report_crashes();
    if (atoi(words[3]) != 0) abort();
    wounded(nullptr);
    return argc;
}
