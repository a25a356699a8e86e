#include <cstdio>
__global__ void sum(const float *x, float *y, int n) {
    __shared__ float tile[64];
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= n) {
        return;
    }
    tile[threadIdx.x] = x[i];
    __syncthreads();
    float total = 0;
    for (int j = 0; j < 64; j++) {
        total += tile[j]; // half loaded
    }
    y[i] = total;
}
int main() {
    float *x, *y;
    cudaMalloc(&x, 400), cudaMalloc(&y, 400);
    cudaMemset(x, 0, 400);
    sum<<<2, 64>>>(x, y, 96);
    return cudaDeviceSynchronize();
}
