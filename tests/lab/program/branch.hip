#include <cstdio>
#include <hip/hip_runtime.h>
__global__ void votes(int *counts) {
    int some = 0;
    if (threadIdx.x % 4 == 1) {
        some = __popcll(__ballot(1));
    }
    const int all = __popcll(__ballot(1));
    const int left = __shfl_up(static_cast<int>(threadIdx.x), 1);
    counts[threadIdx.x] = 10000 * some + 100 * all + left;
}
int main() {
    int *counts;
    hipMallocManaged(reinterpret_cast<void **>(&counts), 64 * sizeof(int));
    votes<<<1, 64>>>(counts);
    hipDeviceSynchronize();
    printf("%d %d %d\n", counts[0], counts[1], counts[63]);
}
