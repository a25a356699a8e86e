#include <cstdlib>
#include <cstring>
__global__ void nothing() {}
int main(int count, char **words) {
    nothing<<<1, 32>>>();
    const char *threads = getenv("FATTN_PROBE_SIM_THREADS");
    return count == 2 && threads != nullptr && strcmp(threads, words[1]) == 0 ? 0 : 1;
}
