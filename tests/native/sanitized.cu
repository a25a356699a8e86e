// Faults that a sanitizer finds: in a kernel they end the run, in the host's code undefined behaviour does not.
#include <cuda_runtime.h>

#include <cstring>

static __device__ __noinline__ void set(int * array, int place) {
    array[place] = 1; // fault: local_array
}
__global__ void local_array(int * data, int n) {
    int local[8] = {};
    set(local, n / 32 - 1 + (threadIdx.x == 5 && threadIdx.y == 1));
    data[threadIdx.x] = local[threadIdx.x % 8];
}
__global__ void overflow(int * data, int n) {
    if (threadIdx.x == 5 && threadIdx.y == 1) {
        data[0] = 0x7FFFFFFF + n; // fault: overflow
    }
}
__global__ void past_the_end(int * data, int n) {
    if (threadIdx.x == 5 && threadIdx.y == 1) {
        data[n] = 1; // fault: past_the_end
    }
}
__global__ void right(int * data, int n) {
    __syncthreads();
    data[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFF, n, 1);
}

int main(int, char ** words) {
    int * data;
    cudaMalloc((void **) &data, 1024);
    void (*kernel)(int *, int) = right;
    if (strcmp(words[1], "local_array") == 0) {
        kernel = local_array;
    } else if (strcmp(words[1], "overflow") == 0) {
        kernel = overflow;
    } else if (strcmp(words[1], "past_the_end") == 0) {
        kernel = past_the_end;
    }
    kernel<<<2, dim3(32, 2), 512>>>(data, 256);
    volatile int largest = 0x7FFFFFFF;
    largest              = largest + 1;
    return 0;
}
