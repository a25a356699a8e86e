#include <cstdio>
__global__ void masks(int *wrong) {
    for (int round = 0; round < 31; round++) {
        const int partner = threadIdx.x ^ (round + 1);
        const unsigned mask = 1u << threadIdx.x | 1u << partner;
        const int other = __shfl_sync(mask, 100 * round + static_cast<int>(threadIdx.x), partner);
        if (other != 100 * round + partner) {
            atomicAdd(wrong, 1);
        }
    }
}
int main() {
    int *wrong;
    cudaMallocManaged(&wrong, sizeof(int));
    *wrong = 0;
    masks<<<1, 32>>>(wrong);
    cudaDeviceSynchronize();
    printf("%d wrong\n", *wrong);
}
