// Launches and declarations that nvcc takes. -D N=4 -D D=3 -D K=2 -D V=1 -D B=7 -D M=5: macros of short names.
#include <cooperative_groups.h>
#include <cstdio>
#include <cuda_pipeline_primitives.h>
#include <mma.h>

struct pair {
    int a;
    float b;
};

__global__ void null(const float *x, int n) { printf("null %d %d\n", x == nullptr, n); }
__global__ void braces(pair p, float f) { printf("braces %d %g %g\n", p.a, p.b, f); }
template <typename T> __global__ void typed(const T *x, T v) { printf("typed %d %g\n", x == nullptr, double(v)); }
__global__ void defaults(int a, int b = 2, pair p = {3, 4.0f}) { printf("defaults %d %d %d\n", a, b, p.a); }
namespace inner {
__global__ void spaced(dim3 size, bool yes, unsigned char letter) { printf("spaced %d %d %d\n", size.x, yes, letter); }
} // namespace inner
__global__ void shared_struct(int n) {
    __shared__ struct {
        int x;
        float y[4];
    } st;
    __shared__ struct named {
        int z;
    } other, more[2];
    if (threadIdx.x == 0) {
        st.x = n, st.y[3] = 0.5f, other.z = 8, more[1].z = 9;
    }
    __syncthreads();
    if (threadIdx.x == 1) {
        printf("shared %d %g %d %d %d\n", st.x, st.y[3], other.z, more[1].z, int(sizeof(st)));
    }
}
__global__ void pipeline(const float4 *from, float *sum) {
    __shared__ float4 tile[2][32];
    __pipeline_memcpy_async(&tile[0][threadIdx.x], from + threadIdx.x, 16);
    __pipeline_commit();
    __pipeline_memcpy_async(&tile[1][threadIdx.x], from + threadIdx.x, 16, 8);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    const float first = tile[0][threadIdx.x].w;
    __pipeline_wait_prior(0);
    atomicAdd(sum, first + tile[1][threadIdx.x].y + tile[1][threadIdx.x].w);
}

int main() {
    null<<<1, 1>>>(NULL, 4);
    null<<<1, 1>>>(0, 2.0);
    null<<<1, 1>>>({}, {5});
    braces<<<1, 1>>>({1, 2.0f}, 1);
    typed<float><<<1, 1>>>(0, 4);
    typed<<<1, 1>>>(static_cast<float *>(nullptr), 5.0f);
    defaults<<<1, 1>>>(1);
    defaults<<<1, 1>>>(1, 5, {6, 7.0f});
    inner::spaced<<<1, 1>>>(3, true, 'a');
    auto chosen = typed<double>;
    chosen<<<1, 1>>>(nullptr, 6.0);
    shared_struct<<<1, 2>>>(7);

    const float *none = nullptr;
    int n = 8;
    void *arguments[] = {&none, &n};
    cudaLaunchKernel((void *)null, dim3(1), dim3(1), arguments, 0, 0);
    cudaLaunchKernel((const void *)&null, 1, 1, arguments, 0, nullptr);
    cudaLaunchKernel(reinterpret_cast<const void *>(null), 1, 1, arguments, 0, nullptr);
    double v = 9.0;
    arguments[1] = &v;
    cudaLaunchKernel((void *)typed<double>, dim3(1), dim3(1), arguments, 0, NULL);

    float4 *from;
    float *sum;
    cudaMallocManaged(&from, 32 * sizeof(float4));
    cudaMallocManaged(&sum, sizeof(float));
    for (int i = 0; i < 32; i++) {
        from[i] = make_float4(1, 2, 4, 8);
    }
    *sum = 0;
    pipeline<<<1, 32>>>(from, sum);
    cudaDeviceSynchronize();
    printf("%g, macros %d%d%d%d%d%d\n", *sum, N, D, K, V, B, M);
}
