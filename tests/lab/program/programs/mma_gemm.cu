// Matrix product on tensor cores in inline PTX: cp.async brings tiles into shared memory, ldmatrix (plain for A,
// transposed for B) loads the fragments, and mma.sync.m16n8k16 multiplies them with float accumulators.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#define CHECK(call)                                                                                      \
    do {                                                                                                 \
        cudaError_t status_ = (call);                                                                    \
        if (status_ != cudaSuccess) {                                                                    \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_));        \
            std::exit(1);                                                                                \
        }                                                                                                \
    } while (0)

constexpr int kBlockM = 64, kBlockN = 64, kBlockK = 32;
constexpr int kThreads = 128;           // four warps, each with 16 rows of the tile
constexpr int kPitchA = kBlockK + 8;    // padded rows keep ldmatrix free of bank conflicts
constexpr int kPitchB = kBlockN + 8;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void copy_16_bytes(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared_address(shared)), "l"(global) : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

__device__ __forceinline__ void load_a(uint32_t (&fragment)[4], const half* pointer) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(pointer))
                 : "memory");
}

__device__ __forceinline__ void load_b(uint32_t (&fragment)[2], const half* pointer) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n"
                 : "=r"(fragment[0]), "=r"(fragment[1])
                 : "r"(shared_address(pointer))
                 : "memory");
}

__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// C (m x n) = A (m x k) * B (k x n), all by rows; m, n and k are multiples of the tile sizes.
__global__ void __launch_bounds__(kThreads) gemm(const half* a, const half* b, float* c, int n, int k) {
    __shared__ __align__(16) half a_tile[kBlockM][kPitchA];
    __shared__ __align__(16) half b_tile[kBlockK][kPitchB];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_row = blockIdx.y * kBlockM, first_column = blockIdx.x * kBlockN;
    float sums[kBlockN / 8][4] = {};

    for (int step = 0; step < k; step += kBlockK) {
        for (int i = threadIdx.x; i < kBlockM * kBlockK / 8; i += kThreads) {
            const int row = i / (kBlockK / 8), column = i % (kBlockK / 8) * 8;
            copy_16_bytes(&a_tile[row][column], a + size_t(first_row + row) * k + step + column);
        }
        for (int i = threadIdx.x; i < kBlockK * kBlockN / 8; i += kThreads) {
            const int row = i / (kBlockN / 8), column = i % (kBlockN / 8) * 8;
            copy_16_bytes(&b_tile[row][column], b + size_t(step + row) * n + first_column + column);
        }
        wait_for_copies();
        __syncthreads();
#pragma unroll
        for (int inner = 0; inner < kBlockK; inner += 16) {
            uint32_t a_fragment[4];
            load_a(a_fragment, &a_tile[warp * 16 + lane % 16][inner + lane / 16 * 8]);
#pragma unroll
            for (int part = 0; part < kBlockN / 8; ++part) {
                uint32_t b_fragment[2];
                load_b(b_fragment, &b_tile[inner + lane % 16][part * 8]);
                multiply(sums[part], a_fragment, b_fragment);
            }
        }
        __syncthreads();
    }
    // A thread holds two neighbours of row lane / 4 and two of the row eight below it.
    for (int part = 0; part < kBlockN / 8; ++part) {
        const int row = first_row + warp * 16 + lane / 4, column = first_column + part * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(c + size_t(row) * n + column) = make_float2(sums[part][0], sums[part][1]);
        *reinterpret_cast<float2*>(c + size_t(row + 8) * n + column) = make_float2(sums[part][2], sums[part][3]);
    }
}

int main() {
    const int m = 128, n = 192, k = 96;
    std::mt19937 random(4);
    std::vector<half> a(size_t(m) * k), b(size_t(k) * n);
    std::vector<float> c(size_t(m) * n);
    for (half& value : a) value = __float2half(float(random() % 2001) / 1000.0f - 1.0f);
    for (half& value : b) value = __float2half(float(random() % 2001) / 1000.0f - 1.0f);

    half *a_device, *b_device;
    float* c_device;
    CHECK(cudaMalloc(&a_device, a.size() * sizeof(half)));
    CHECK(cudaMalloc(&b_device, b.size() * sizeof(half)));
    CHECK(cudaMalloc(&c_device, c.size() * sizeof(float)));
    CHECK(cudaMemcpy(a_device, a.data(), a.size() * sizeof(half), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b_device, b.data(), b.size() * sizeof(half), cudaMemcpyHostToDevice));
    gemm<<<dim3(n / kBlockN, m / kBlockM), kThreads>>>(a_device, b_device, c_device, n, k);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(c.data(), c_device, c.size() * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(a_device));
    CHECK(cudaFree(b_device));
    CHECK(cudaFree(c_device));

    double worst = 0.0;
    for (int row = 0; row < m; ++row) {
        for (int column = 0; column < n; ++column) {
            double right = 0.0;
            for (int i = 0; i < k; ++i)
                right += double(__half2float(a[size_t(row) * k + i])) * double(__half2float(b[size_t(i) * n + column]));
            const double error = std::abs(double(c[size_t(row) * n + column]) - right);
            worst = error <= worst ? worst : error;
        }
    }
    const bool good = worst < 5e-5;
    std::printf("mma_gemm: %dx%dx%d, largest error %.1e: %s\n", m, n, k, worst, good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
