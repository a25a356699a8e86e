#include <cstdio>
#include <hip/hip_runtime.h>
__global__ void lanes(unsigned long long *votes) {
    const unsigned long long mine = __ballot(threadIdx.x % 2);
    if (threadIdx.x == 0) {
        votes[0] = mine;
        votes[1] = __popcll(mine);
        votes[2] = warpSize;
    }
}
// Half of a wave of 64 returns before the barrier, which counts waves.
__global__ void half_of_a_wave(unsigned long long *value) {
    __shared__ int shared;
    if (threadIdx.y % 2 == 1) {
        return;
    }
    if (threadIdx.y == 0) {
        shared = 6;
    }
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 2) {
        *value = shared;
    }
}
int main() {
    unsigned long long *device, votes[3];
    hipMalloc(&device, sizeof(votes));
    hipLaunchKernelGGL(lanes, dim3(1), dim3(128), 0, 0, device);
    hipMemcpy(votes, device, sizeof(votes), hipMemcpyDeviceToHost);
    hipDeviceProp_t properties;
    hipGetDeviceProperties(&properties, 0);
    printf("%s %llx %llu %llu\n", properties.gcnArchName, votes[0], votes[1], votes[2]);
    half_of_a_wave<<<1, dim3(32, 4)>>>(device);
    hipMemcpy(votes + 1, device, sizeof(*votes), hipMemcpyDeviceToHost);
    printf("%llu of half a wave\n", votes[1]);
    int whole = 0, shared = 0;
    hipOccupancyMaxActiveBlocksPerMultiprocessor(&whole, lanes, 256, 0);
    hipOccupancyMaxActiveBlocksPerMultiprocessor(&shared, lanes, 256, 20000);
    printf("%s: %d, %d\n", properties.gcnArchName, whole, shared);
    printf("%s %s\n", hipGetErrorName(hipErrorOutOfMemory), hipGetErrorName(hipErrorInvalidValue));
}
