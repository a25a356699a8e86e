#include <cstdio>
__global__ void fill(float *o, long long turns) {
    __shared__ float tile[32];
    tile[threadIdx.x] = 1;
    for (volatile long long turn = 0; turn < turns; turn++) {
    }
    o[threadIdx.x] = tile[threadIdx.x];
}
int main(int count, char **) {
    float *o;
    cudaMalloc(&o, 128);
    printf("begun\n");
    if (count == 1) {
        fill<<<1, 2048>>>(o, 0);
        fill<<<dim3(1, 70000), 32>>>(o, 0);
        fill<<<1, 32, 50000>>>(o, 0);
    } else {
        fill<<<1, 32>>>(o, count == 2 ? 0 : 1ll << 50);
    }
}
