#include <cassert>
#include <cstdio>
__global__ void hello() {
    printf("first %d.%d\n", blockIdx.x, threadIdx.x);
    if (threadIdx.x == 2) {
        printf("second %d\n", blockIdx.x);
    }
    assert(blockIdx.x < 2 && "two blocks");
}
int main(int count, char **words) {
    printf("host\n");
    hello<<<count, 3>>>();
    cudaDeviceSynchronize();
    printf("done\n");
    return 7;
}
