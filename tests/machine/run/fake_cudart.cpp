// A libcudart that only says that it was reached.
#include <cuda_runtime_api.h>

#include <cstdio>

static cudaError_t last_error = cudaSuccess;
static int launches = 0;

extern "C" {
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
void __cudaRegisterFunction(void **, const char *, char *, const char *name, int, uint3 *, uint3 *, dim3 *, dim3 *,
                            int *) {
    std::printf("registered %s\n", name);
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *) {
    static char handle;
    *kernel = reinterpret_cast<cudaKernel_t>(&handle);
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t) {
    std::printf("launched by handle\n");
    return cudaErrorLaunchFailure;
}
cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t) {
    std::printf("launched\n");
    return last_error = cudaErrorInvalidConfiguration;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *, const void *, void **) {
    std::printf("launched with a configuration\n");
    launches++;
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *function) {
    if (*static_cast<const char *>(function) != 'a') {
        return last_error = cudaErrorInvalidDeviceFunction;
    }
    attributes->numRegs = 128;
    attributes->sharedSizeBytes = 16;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int threads, size_t) {
    *blocks = 1024 / threads;
    return cudaSuccess;
}
// Events count the launches so far: each launch takes a millisecond.
cudaError_t cudaEventCreate(cudaEvent_t *event) {
    *event = reinterpret_cast<cudaEvent_t>(new int(-1));
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
    *reinterpret_cast<int *>(event) = launches;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop) {
    *milliseconds = float(*reinterpret_cast<int *>(stop) - *reinterpret_cast<int *>(start));
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    *status = stream != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
    launches++;
    return cudaSuccess;
}
}
