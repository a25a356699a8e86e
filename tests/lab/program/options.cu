#include "value.h"
#include <cstdio>
__global__ void divide(float a, float b, float *c) {
    *c = a / b;
}
int main() {
    float *c, value;
    cudaMalloc(&c, 4);
    divide<<<1, 1>>>(5.0f, VALUE * FACTOR, c);
    cudaMemcpy(&value, c, 4, cudaMemcpyDeviceToHost);
    printf("%.9g sm_%d\n", value, WHERE);
    return value == 5.0f / (VALUE * FACTOR) ? 0 : 1;
}
#if __CUDA_ARCH__ != WHERE * 10
#error "another architecture"
#endif
