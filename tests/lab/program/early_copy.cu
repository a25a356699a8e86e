#include <cstdio>
#include <cuda_pipeline_primitives.h>
__global__ void copy(const float4 *from) {
    __shared__ float4 to;
    to = {1, 1, 1, 1};
    __pipeline_memcpy_async(&to, from, 16);
    const float early = to.x;
    __pipeline_commit();
    __pipeline_wait_prior(0);
    printf("%g, then %g\n", early, to.x);
}
int main() {
    float4 *from;
    cudaMalloc(&from, 16);
    cudaMemset(from, 0, 16);
    copy<<<1, 1>>>(from);
    return cudaDeviceSynchronize();
}
