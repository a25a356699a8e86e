#include <hip/hip_runtime.h>
#include <cstdio>
#define TRY(call) printf("%s: %s\n", #call, hipGetErrorName(call));
int main() {
    size_t bytes = 0;
    TRY(hipGetDeviceProperties(nullptr, 0))
    TRY(hipMemGetInfo(&bytes, nullptr))
    TRY(hipMalloc(static_cast<void **>(nullptr), 4))
    TRY(hipHostMalloc(static_cast<void **>(nullptr), 4))
    TRY(hipEventDestroy(nullptr))
    TRY(hipStreamDestroy(nullptr))
}
