// An abort() in a kernel; with an argument, a kernel with more LDS than a block may have.
#include <hip/hip_runtime.h>
#include <cstdlib>

__global__ void aborts(int * out) {
    if (threadIdx.x == 3) {
        abort();
    }
    *out = 1;
}

__global__ void too_large(int * out) {
    __shared__ char memory[70000];
    memory[threadIdx.x] = 1;
    *out = memory[0];
}

int main(int argc, char **) {
    int * out;
    if (hipMalloc(&out, sizeof(int)) != hipSuccess) {
        std::abort();
    }
    (argc > 1 ? too_large : aborts)<<<1, 64>>>(out);
    return hipDeviceSynchronize();
}
