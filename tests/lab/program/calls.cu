// Every call of the simulated CUDA runtime with arguments at the edge of what it takes: null pointers, sizes of 0,
// devices and handles that do not exist. One line a call: the error that it returns, and the last error if that is
// another one.
//
// calls.txt is what CUDA says to each; its first line tells where it is from. To record it, where nvcc and a GPU are:
//     nvcc -o calls tests/lab/program/calls.cu && ./calls > tests/lab/program/calls.txt
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>

static sigjmp_buf before_the_call;
static void crashed(int) { siglongjmp(before_the_call, 1); }

#define TRY(...)                                                                                                       \
    if (sigsetjmp(before_the_call, 1) == 0) {                                                                          \
        const cudaError_t error = (__VA_ARGS__), last = cudaGetLastError();                                            \
        printf(last == error ? "%s: %s\n" : "%s: %s, but the last error is %s\n", #__VA_ARGS__,                        \
               cudaGetErrorName(error), cudaGetErrorName(last));                                                       \
    } else {                                                                                                           \
        printf("%s: SIGSEGV\n", #__VA_ARGS__);                                                                         \
    }
#define SAY(value) printf("%s: %lld\n", #value, (long long)(value));

__device__ float symbol[64];
__global__ void kernel(int *data) { data[threadIdx.x] = 1; }
static void nothing(void *) {}
static void nothing_more(cudaStream_t, cudaError_t, void *) {}

static int number, other;
static void *pointer;
static size_t bytes, more_bytes;
static cudaDeviceProp properties;
static char text[64];

static void devices() {
    TRY(cudaGetDeviceCount(nullptr))
    TRY(cudaGetDevice(nullptr))
    TRY(cudaSetDevice(-1))
    TRY(cudaSetDevice(1000))
    TRY(cudaGetDeviceProperties(nullptr, 0))
    TRY(cudaGetDeviceProperties(&properties, -1))
    TRY(cudaGetDeviceProperties(&properties, 1000))
    TRY(cudaDeviceGetAttribute(nullptr, cudaDevAttrWarpSize, 0))
    TRY(cudaDeviceGetAttribute(&number, cudaDevAttrWarpSize, -1))
    TRY(cudaDeviceGetAttribute(&number, cudaDevAttrWarpSize, 1000))
    TRY(cudaDeviceGetAttribute(&number, static_cast<cudaDeviceAttr>(0), 0))
    TRY(cudaDeviceGetAttribute(&number, static_cast<cudaDeviceAttr>(10000), 0))
    TRY(cudaDeviceGetPCIBusId(nullptr, 13, 0))
    TRY(cudaDeviceGetPCIBusId(text, 0, 0))
    TRY(cudaDeviceGetPCIBusId(text, -1, 0))
    TRY(cudaDeviceGetPCIBusId(text, 5, 0))
    TRY(cudaDeviceGetPCIBusId(text, 13, 0))
    TRY(cudaDeviceGetPCIBusId(text, 64, 1000))
    TRY(cudaDeviceCanAccessPeer(nullptr, 0, 0))
    TRY(cudaDeviceCanAccessPeer(&number, 0, 0))
    SAY(number)
    TRY(cudaDeviceCanAccessPeer(&number, 0, 1000))
    TRY(cudaDeviceEnablePeerAccess(0, 0))
    TRY(cudaDeviceEnablePeerAccess(1000, 0))
    TRY(cudaDeviceEnablePeerAccess(0, 1))
    TRY(cudaDeviceDisablePeerAccess(0))
    TRY(cudaDeviceDisablePeerAccess(1000))
    TRY(cudaRuntimeGetVersion(nullptr))
    TRY(cudaDriverGetVersion(nullptr))
    TRY(cudaChooseDevice(nullptr, &properties))
    TRY(cudaChooseDevice(&number, nullptr))
    TRY(cudaSetDeviceFlags(0))
    TRY(cudaSetDeviceFlags(0x1000))
    TRY(cudaDeviceGetStreamPriorityRange(nullptr, nullptr))
    TRY(cudaDeviceGetStreamPriorityRange(&number, nullptr))
    TRY(cudaDeviceGetStreamPriorityRange(nullptr, &number))
    TRY(cudaDeviceGetLimit(nullptr, cudaLimitStackSize))
    TRY(cudaDeviceGetLimit(&bytes, static_cast<cudaLimit>(100)))
    TRY(cudaDeviceSetLimit(static_cast<cudaLimit>(100), 1))
    TRY(cudaDeviceSetLimit(cudaLimitStackSize, 4096))
    TRY(cudaDeviceGetLimit(&bytes, cudaLimitStackSize))
    SAY(bytes)
    TRY(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1))
    printf("cudaGetErrorName(10000): %s\n", cudaGetErrorName(static_cast<cudaError_t>(10000)));
    printf("cudaGetErrorString(10000): %s\n", cudaGetErrorString(static_cast<cudaError_t>(10000)));
}

static void memory(int *device, char *host) {
    TRY(cudaMemGetInfo(nullptr, nullptr))
    TRY(cudaMemGetInfo(&bytes, nullptr))
    TRY(cudaMemGetInfo(nullptr, &more_bytes))
    TRY(cudaMemGetInfo(&bytes, &more_bytes))
    SAY(bytes <= more_bytes)
    TRY(cudaMalloc(static_cast<void **>(nullptr), 16))
    pointer = host;
    TRY(cudaMalloc(&pointer, 0))
    SAY(pointer == nullptr)
    TRY(cudaFree(nullptr))
    pointer = host;
    TRY(cudaMalloc(&pointer, 1ull << 50))
    SAY(pointer == host)
    SAY(pointer == nullptr)
    TRY(cudaMalloc(&pointer, ~size_t{0}))
    TRY(cudaMallocManaged(static_cast<void **>(nullptr), 16))
    TRY(cudaMallocManaged(&pointer, 0))
    TRY(cudaMallocManaged(&pointer, 16, 0))
    TRY(cudaMallocManaged(&pointer, 16, 100))
    TRY(cudaMallocHost(static_cast<void **>(nullptr), 16))
    pointer = host;
    TRY(cudaMallocHost(&pointer, 0))
    SAY(pointer == nullptr)
    TRY(cudaFreeHost(nullptr))
    TRY(cudaHostAlloc(static_cast<void **>(nullptr), 16, 0))
    pointer = host;
    TRY(cudaHostAlloc(&pointer, 0, 0))
    SAY(pointer == nullptr)
    TRY(cudaHostAlloc(&pointer, 16, 0x100))
    TRY(cudaHostRegister(nullptr, 16, 0))
    TRY(cudaHostRegister(host, 0, 0))
    TRY(cudaHostRegister(host, 4096, 0x1000))
    TRY(cudaHostRegister(host, 4096, 0))
    TRY(cudaHostRegister(host, 4096, 0))
    TRY(cudaHostGetDevicePointer(nullptr, host, 0))
    TRY(cudaHostGetDevicePointer(&pointer, nullptr, 0))
    TRY(cudaHostGetDevicePointer(&pointer, host + 8192, 0))
    TRY(cudaHostGetDevicePointer(&pointer, host, 1))
    TRY(cudaHostGetDevicePointer(&pointer, host, 0))
    TRY(cudaHostUnregister(nullptr))
    TRY(cudaHostUnregister(host + 16))
    TRY(cudaHostUnregister(host))
    TRY(cudaHostUnregister(host))
    TRY(cudaMallocPitch(static_cast<void **>(nullptr), &bytes, 16, 16))
    TRY(cudaMallocPitch(&pointer, nullptr, 16, 16))
    TRY(cudaMallocPitch(&pointer, &bytes, 0, 16))
    SAY(pointer == nullptr)
    TRY(cudaMallocPitch(&pointer, &bytes, 16, 0))
    TRY(cudaMallocAsync(static_cast<void **>(nullptr), 16, nullptr))
    pointer = host;
    TRY(cudaMallocAsync(&pointer, 0, nullptr))
    SAY(pointer == nullptr)
    TRY(cudaFreeAsync(nullptr, nullptr))
    TRY(cudaFreeAsync(host, nullptr))
    TRY(cudaMemAdvise(nullptr, 16, cudaMemAdviseSetReadMostly, cudaMemLocation{cudaMemLocationTypeDevice, 0}))
    TRY(cudaMemAdvise(device, 16, cudaMemAdviseSetReadMostly, cudaMemLocation{cudaMemLocationTypeDevice, 0}))
    TRY(cudaMemPrefetchAsync(nullptr, 16, cudaMemLocation{cudaMemLocationTypeDevice, 0}, 0, nullptr))
    TRY(cudaMemPrefetchAsync(device, 16, cudaMemLocation{cudaMemLocationTypeDevice, 0}, 0, nullptr))
}

static void copies(int *device, char *host) {
    const auto to_gpu = cudaMemcpyHostToDevice, to_host = cudaMemcpyDeviceToHost;
    TRY(cudaMemcpy(nullptr, nullptr, 0, to_gpu))
    TRY(cudaMemcpy(nullptr, nullptr, 16, cudaMemcpyDefault))
    TRY(cudaMemcpy(host, nullptr, 16, to_host))
    TRY(cudaMemcpy(device, nullptr, 16, to_gpu))
    TRY(cudaMemcpy(nullptr, device, 16, to_host))
    TRY(cudaMemcpy(device, host, 0, static_cast<cudaMemcpyKind>(7)))
    TRY(cudaMemcpyAsync(nullptr, host, 16, to_gpu, nullptr))
    TRY(cudaMemcpyAsync(nullptr, nullptr, 0, to_gpu, nullptr))
    TRY(cudaMemcpy2D(nullptr, 16, host, 16, 16, 2, to_gpu))
    TRY(cudaMemcpy2D(nullptr, 0, nullptr, 0, 0, 0, to_gpu))
    TRY(cudaMemcpy2D(device, 16, host, 16, 0, 2, to_gpu))
    TRY(cudaMemcpy2D(device, 16, host, 16, 16, 0, to_gpu))
    TRY(cudaMemcpy2D(device, 16, host, 16, 16, 2, static_cast<cudaMemcpyKind>(7)))
    TRY(cudaMemcpy2DAsync(nullptr, 16, host, 16, 16, 2, to_gpu, nullptr))
    TRY(cudaMemcpy2DAsync(device, 8, host, 8, 16, 2, to_gpu, nullptr))
    TRY(cudaMemcpyPeerAsync(nullptr, 0, device, 0, 16, nullptr))
    TRY(cudaMemcpyPeerAsync(device, 0, device + 16, 0, 0, nullptr))
    TRY(cudaMemcpyPeerAsync(device, 0, device + 16, 0, 16, nullptr))
    TRY(cudaMemcpyPeerAsync(device, 1000, device + 16, 0, 16, nullptr))
    TRY(cudaMemcpy3DPeerAsync(nullptr, nullptr))
    TRY(cudaMemset(nullptr, 0, 0))
    TRY(cudaMemsetAsync(nullptr, 0, 16, nullptr))
    TRY(cudaMemsetAsync(nullptr, 0, 0, nullptr))
    TRY(cudaMemset2D(nullptr, 16, 0, 16, 2))
    TRY(cudaMemset2D(nullptr, 0, 0, 0, 0))
    TRY(cudaMemset2D(device, 16, 0, 16, 0))
    TRY(cudaMemset2DAsync(nullptr, 16, 0, 16, 2, nullptr))
    TRY(cudaMemcpyToSymbol(symbol, nullptr, 16))
    TRY(cudaMemcpyToSymbol(symbol, host, 0))
    TRY(cudaMemcpyToSymbol(symbol, nullptr, 0))
    TRY(cudaMemcpyToSymbol(symbol, host, 16, 0, static_cast<cudaMemcpyKind>(7)))
    TRY(cudaMemcpyFromSymbol(nullptr, symbol, 16))
    TRY(cudaMemcpyFromSymbol(host, symbol, 0))
    TRY(cudaMemcpyFromSymbol(host, symbol, 0, 257))
    TRY(cudaGetSymbolAddress(&pointer, symbol))
    TRY(cudaGetSymbolAddress(static_cast<void **>(nullptr), symbol))
    TRY(cudaGetSymbolSize(&bytes, symbol))
    SAY(bytes)
    TRY(cudaGetSymbolSize(nullptr, symbol))
}

static void streams(char *host) {
    cudaStream_t stream;
    TRY(cudaStreamCreate(nullptr))
    TRY(cudaStreamCreateWithFlags(nullptr, cudaStreamNonBlocking))
    TRY(cudaStreamCreateWithFlags(&stream, 0x100))
    TRY(cudaStreamCreateWithPriority(nullptr, cudaStreamDefault, 0))
    TRY(cudaStreamCreateWithPriority(&stream, cudaStreamDefault, 1000))
    TRY(cudaStreamDestroy(stream))
    TRY(cudaStreamCreate(&stream))
    TRY(cudaStreamQuery(stream))
    TRY(cudaStreamSynchronize(stream))
    TRY(cudaStreamWaitEvent(stream, nullptr, 0))
    TRY(cudaLaunchHostFunc(stream, nullptr, nullptr))
    TRY(cudaLaunchHostFunc(stream, nothing, nullptr))
    TRY(cudaStreamAddCallback(stream, nullptr, nullptr, 0))
    TRY(cudaStreamAddCallback(stream, nothing_more, nullptr, 1))
    TRY(cudaStreamAddCallback(stream, nothing_more, nullptr, 0))
    TRY(cudaMemcpyAsync(host, host + 16, 16, cudaMemcpyHostToHost, stream))
    TRY(cudaStreamSynchronize(stream))
    TRY(cudaStreamDestroy(stream))
    TRY(cudaStreamDestroy(nullptr))
    TRY(cudaStreamDestroy(cudaStreamLegacy))
    TRY(cudaStreamQuery(nullptr))
    TRY(cudaStreamQuery(cudaStreamPerThread))
    TRY(cudaStreamSynchronize(nullptr))
    TRY(cudaStreamSynchronize(cudaStreamLegacy))
    TRY(cudaStreamSynchronize(cudaStreamPerThread))
    TRY(cudaStreamWaitEvent(nullptr, nullptr, 0))
}

static void events() {
    cudaEvent_t event, later, untimed;
    float milliseconds;
    TRY(cudaEventCreate(nullptr))
    TRY(cudaEventCreateWithFlags(nullptr, cudaEventDisableTiming))
    TRY(cudaEventCreateWithFlags(&event, 0x100))
    TRY(cudaEventCreate(&event))
    TRY(cudaEventCreate(&later))
    TRY(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming))
    TRY(cudaEventQuery(event))
    TRY(cudaEventSynchronize(event))
    TRY(cudaStreamWaitEvent(nullptr, event, 0))
    TRY(cudaStreamWaitEvent(nullptr, event, 100))
    TRY(cudaEventElapsedTime(&milliseconds, event, later))
    TRY(cudaEventRecord(event, nullptr))
    TRY(cudaEventElapsedTime(&milliseconds, event, later))
    TRY(cudaEventRecordWithFlags(later, nullptr, 0))
    TRY(cudaEventRecordWithFlags(later, nullptr, 100))
    TRY(cudaEventRecord(untimed, nullptr))
    TRY(cudaEventSynchronize(untimed))
    TRY(cudaEventSynchronize(later))
    TRY(cudaEventElapsedTime(&milliseconds, event, later))
    TRY(cudaEventElapsedTime(nullptr, event, later))
    TRY(cudaEventElapsedTime(&milliseconds, event, untimed))
    TRY(cudaEventElapsedTime(&milliseconds, nullptr, later))
    TRY(cudaEventElapsedTime(&milliseconds, event, nullptr))
    TRY(cudaEventRecord(nullptr, nullptr))
    TRY(cudaEventSynchronize(nullptr))
    TRY(cudaEventQuery(nullptr))
    TRY(cudaEventDestroy(nullptr))
    TRY(cudaEventDestroy(untimed))
    TRY(cudaEventDestroy(later))
    TRY(cudaEventDestroy(event))
}

static void kernels(int *device) {
    cudaFuncAttributes attributes;
    const auto size = cudaFuncAttributeMaxDynamicSharedMemorySize;
    TRY(cudaFuncGetAttributes(nullptr, kernel))
    TRY(cudaFuncGetAttributes(&attributes, kernel))
    TRY(cudaFuncSetAttribute(kernel, size, 0))
    TRY(cudaFuncSetAttribute(kernel, size, -1))
    TRY(cudaFuncSetAttribute(kernel, static_cast<cudaFuncAttribute>(100), 0))
    TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 50))
    TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 101))
    TRY(cudaFuncSetCacheConfig(kernel, cudaFuncCachePreferL1))
    TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, kernel, 32, 0))
    TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&number, kernel, 0, 0))
    TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&number, kernel, -1, 0))
    TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&number, kernel, 1025, 0))
    SAY(number)
    TRY(cudaOccupancyMaxPotentialBlockSize(&number, &other, kernel))
    void *arguments[] = {&device};
    TRY(cudaLaunchKernel(kernel, dim3(1), dim3(32), arguments, 0, nullptr))
    TRY(cudaLaunchKernel(kernel, dim3(0), dim3(32), arguments, 0, nullptr))
    TRY(cudaLaunchKernelEx(static_cast<const cudaLaunchConfig_t *>(nullptr), kernel, device))
    TRY(cudaDeviceSynchronize())
}

int main() {
    signal(SIGSEGV, crashed);
    int runtime = 0, driver = 0, *device = nullptr;
    char *host = static_cast<char *>(aligned_alloc(4096, 65536));
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    cudaGetDeviceProperties(&properties, 0);
    cudaMalloc(&device, 4096);
    printf("# %s, CUDA %d.%d, driver for %d.%d\n", properties.name, runtime / 1000, runtime % 1000 / 10, driver / 1000,
           driver % 1000 / 10);
    devices();
    memory(device, host);
    copies(device, host);
    streams(host);
    events();
    kernels(device);
}
