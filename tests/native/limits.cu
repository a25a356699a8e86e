// Launches beyond the limits of a GPU. What an H100 said to each is in test_order.py.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>

__global__ void plain(int * data) {
    data[0] = 1;
}
__global__ void __launch_bounds__(128) bounded(int * data) {
    data[0] = 1;
}
__global__ void uses_many_registers(int * data) {
    data[0] = 1;
}
__global__ void dynamic(int * data) {
    extern __shared__ int shared[];
    shared[threadIdx.x] = data[threadIdx.x];
}
__global__ void other_dynamic(int * data) {
    extern __shared__ int shared[];
    shared[threadIdx.x] = data[threadIdx.x];
}
__global__ void static_40k(int * data) {
    __shared__ int shared[10 << 10]; // fault: static_40k
    shared[threadIdx.x] = data[threadIdx.x];
}
__global__ void static_80k(int * data) {
    __shared__ int first[10 << 10];
    first[threadIdx.x] = data[threadIdx.x];
    __shared__ int second[10 << 10]; // fault: static_80k
    second[threadIdx.x] = data[threadIdx.x];
}
__global__ void reads(int * data, const int * from) {
    data[0] = from[0];
}
struct Pointers {
    const int * from;
};
__global__ void reads_from(int * data, Pointers pointers) {
    data[0] = pointers.from[0]; // fault: reads_from
}

static cudaError_t raise_limit(void (*kernel)(int *), int bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

static int occupancy(void (*kernel)(int *), int threads, int shared) {
    int blocks = -1;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared);
    return blocks;
}

// What the last call or launch said, once by either function.
static void say(const char * what, cudaError_t returned = cudaSuccess) {
    const cudaError_t peeked = cudaPeekAtLastError(), last = cudaGetLastError();
    const cudaError_t error  = returned != cudaSuccess ? returned : last;
    printf("%s: %s%s\n", what, cudaGetErrorName(error), peeked == last && cudaPeekAtLastError() == cudaSuccess ? "" : "?");
}

static void geometry(int * data) {
    plain<<<1, 1024>>>(data);
    say("1024 threads");
    plain<<<1, 1025>>>(data);
    say("1025 threads");
    plain<<<1, dim3(32, 33)>>>(data);
    say("32 * 33 threads");
    plain<<<1, dim3(1, 1, 65)>>>(data);
    say("65 threads in z");
    plain<<<1, 0>>>(data);
    say("no threads");
    plain<<<0, 1>>>(data);
    say("no blocks");
    plain<<<dim3(1, 65536), 1>>>(data);
    say("65536 blocks in y");
    plain<<<dim3(1, 1, 65536), 1>>>(data);
    say("65536 blocks in z");
    plain<<<dim3(1u << 31), 1>>>(data);
    say("2^31 blocks in x");
    bounded<<<1, 128>>>(data);
    say("as many threads as the launch bounds");
    bounded<<<1, 256>>>(data);
    say("more threads than the launch bounds");
    uses_many_registers<<<1, 512>>>(data);
    say("as many registers as there are");
    uses_many_registers<<<1, 1024>>>(data);
    say("more registers than there are");
}

static void dynamic_shared(int * data) {
    dynamic<<<1, 32, 49152>>>(data);
    say("49152 bytes");
    dynamic<<<1, 32, 49153>>>(data);
    say("49153 bytes");
    say("attribute: 100000", raise_limit(dynamic, 100000));
    dynamic<<<1, 32, 100000>>>(data);
    say("100000 bytes");
    dynamic<<<1, 32, 100001>>>(data);
    say("100001 bytes");
    other_dynamic<<<1, 32, 100000>>>(data);
    say("100000 bytes of another kernel");
    printf("occupancy: %d %d\n", occupancy(dynamic, 32, 100000), occupancy(other_dynamic, 32, 100000));
    say("attribute: 1000", raise_limit(dynamic, 1000));
    dynamic<<<1, 32, 2000>>>(data);
    say("2000 bytes");
    say("attribute: 232448", raise_limit(dynamic, 232448));
    say("attribute: 232449", raise_limit(dynamic, 232449));
    say("attribute: -1", raise_limit(dynamic, -1));
}

// limits NAME
int main(int, char ** words) {
    int * data;
    cudaMalloc((void **) &data, 8192);
    cudaMemset(data, 0, 8192);
    int * host = (int *) calloc(1024, 4);
    int * pinned;
    cudaMallocHost((void **) &pinned, 4096);
    pinned[0]                = 1;
    const auto is            = [words](const char * name) { return strcmp(words[1], name) == 0; };
    if (is("geometry")) {
        geometry(data);
    } else if (is("dynamic_shared")) {
        dynamic_shared(data);
    } else if (is("static_within")) {
        static_40k<<<1, 32, 8192>>>(data);
        raise_limit(static_40k, 232448 - 40960);
        static_40k<<<1, 32, 100000>>>(data);
    } else if (is("static_and_dynamic")) {
        static_40k<<<1, 32, 8193>>>(data);
    } else if (is("static_and_attribute")) {
        raise_limit(static_40k, 232448);
        static_40k<<<1, 32, 8192>>>(data);
    } else if (is("static_80k")) {
        static_80k<<<1, 32>>>(data);
    } else if (is("pinned")) {
        reads<<<1, 1>>>(data, pinned);
        reads_from<<<1, 1>>>(data, Pointers{pinned});
        cudaHostRegister(host, 4096, 0);
        reads<<<1, 1>>>(data, host);
    } else if (is("host_argument")) {
        reads<<<1, 1>>>(data, host);
    } else if (is("host_pointer")) {
        reads_from<<<1, 1>>>(data, Pointers{host});
    }
    return 0;
}
