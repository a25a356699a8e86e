// What nvcc makes of two launches: kernels registered before main, then launched by handle and with a configuration.
#include <cuda_runtime_api.h>

#include <cstdio>

extern "C" {
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, uint3 *, uint3 *, dim3 *, dim3 *, int *);
cudaError_t __cudaGetKernel(cudaKernel_t *, const void *);
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t);
}

static char f16[] = "a", fixup[] = "b";

__attribute__((constructor)) static void register_kernels() {
    __cudaRegisterFunction(nullptr, f16, f16, "_Z18flash_attn_ext_f16ILi64ELi8ELb0EEvPKc", -1, nullptr, nullptr,
                           nullptr, nullptr, nullptr);
    __cudaRegisterFunction(nullptr, fixup, fixup, "_Z5fixupPf", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
}

void launch_all() {
    cudaKernel_t kernel;
    __cudaGetKernel(&kernel, f16);
    const cudaError_t error = __cudaLaunchKernel(kernel, dim3(92, 1, 1), dim3(32, 4, 1), nullptr, 40960, nullptr);
    std::printf("answer %d\n", error == cudaErrorLaunchFailure);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2, 8, 8);
    config.blockDim = dim3(64, 1, 1);
    cudaLaunchKernelExC(&config, fixup, nullptr);
    std::printf("last error %d\n", cudaGetLastError());
    cudaLaunchKernel(fixup, dim3(1, 1, 1), dim3(64, 1, 1), nullptr, 0, nullptr);
    cudaLaunchKernelExC(&config, f16, nullptr);
    std::printf("last error %d\n", cudaGetLastError() == cudaErrorInvalidConfiguration);
}

void launch_graph_and_capture() {
    cudaLaunchConfig_t config = {};
    cudaLaunchKernelExC(&config, f16, nullptr);
    cudaGraphLaunch(nullptr, nullptr);
    config.stream = reinterpret_cast<cudaStream_t>(f16);
    cudaLaunchKernelExC(&config, f16, nullptr);
}
