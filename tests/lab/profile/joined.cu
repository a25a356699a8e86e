// Loads and stores of shared memory that nvcc joins, and some that it does not: one kernel each, one warp.
#include <cuda_fp16.h>

#include <vector>

constexpr int WARP = 32, SIZE = 2048, TURNS = 12;

// The sum of 32 floats that all lanes share: loads of one basic block at neighbouring addresses.
__global__ void broadcast(const float *in, float *out, int) {
    __shared__ float a[SIZE];
    a[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < WARP; k++) {
        sum = fmaf(sum, 0.5f, a[k]);
    }
    out[threadIdx.x] = sum;
}

// A loop whose length only the host knows: nvcc unrolls it, and joins loads of several turns.
__global__ void loop(const float *in, float *out, int n) {
    __shared__ float a[SIZE];
    a[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    float sum = 0.0f;
    for (int k = 0; k < n; k++) {
        sum = fmaf(sum, 0.5f, a[k]);
    }
    out[threadIdx.x] = sum;
}

// Pairs of floats, each half of a pair by its own load, in such a loop.
__global__ void loop_of_pairs(const float *in, float *out, int n) {
    extern __shared__ float2 pairs[];
    reinterpret_cast<float *>(pairs)[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    float sum = 0.0f, weight = 0.0f;
    for (int k = 0; k < n; k++) {
        const float scale = exp2f(pairs[k].x);
        sum += scale * in[k];
        weight += scale * pairs[k].y;
    }
    out[threadIdx.x] = sum / weight;
}

// Rows of an odd number of floats: no address is known to be a multiple of 8.
__global__ void odd_rows(const float *in, float *out, int) {
    __shared__ float a[WARP * 33];
    for (int k = 0; k < 33; k++) {
        a[k * WARP + threadIdx.x] = in[k];
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < WARP; k++) {
        sum = fmaf(sum, 0.5f, a[threadIdx.x * 33 + k]);
    }
    out[threadIdx.x] = sum;
}

// Four neighbouring floats stored one by one.
__global__ void stores(const float *in, float *out, int) {
    __shared__ float a[4 * WARP];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        a[4 * threadIdx.x + k] = in[WARP * k + threadIdx.x];
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        sum = fmaf(sum, 0.5f, a[WARP * k + threadIdx.x]);
    }
    out[threadIdx.x] = sum;
}

// A store between two loads, which may be to the second one's address.
__global__ void store_between(const float *in, float *out, int n) {
    __shared__ float a[SIZE];
    a[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    const float first = a[2 * threadIdx.x];
    a[n + threadIdx.x] = first + 1.0f;
    out[threadIdx.x] = first * a[2 * threadIdx.x + 1];
}

// Two stores of 8 bytes side by side.
__global__ void stores_of_pairs(const float *in, float *out, int) {
    __shared__ float2 a[2 * WARP];
    const float x = in[threadIdx.x], y = in[threadIdx.x + WARP];
    a[2 * threadIdx.x] = make_float2(x, y);
    a[2 * threadIdx.x + 1] = make_float2(y, x);
    __syncthreads();
    out[threadIdx.x] = a[threadIdx.x].x + a[threadIdx.x + WARP].y;
}

// Three of four neighbours: nvcc loads the fourth too, but it stores no more than it is told to.
__global__ void gaps(const float *in, float *out, int) {
    __shared__ float a[SIZE];
    a[4 * threadIdx.x] = in[threadIdx.x];
    a[4 * threadIdx.x + 1] = in[WARP + threadIdx.x];
    a[4 * threadIdx.x + 2] = in[2 * WARP + threadIdx.x];
    __syncthreads();
    const float *mine = a + 4 * threadIdx.x, *other = mine + 4 * WARP;
    out[threadIdx.x] = mine[0] * mine[1] + mine[3] + other[0] * other[2];
}

// Halves: at most four are joined.
template <int N> __global__ void halves(const float *in, float *out, int) {
    __shared__ __half a[SIZE];
    a[threadIdx.x] = __float2half(in[threadIdx.x]);
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < N; k++) {
        sum = fmaf(sum, 0.5f, __half2float(a[8 * threadIdx.x + k]));
    }
    out[threadIdx.x] = sum;
}

// The same 16 bytes for all lanes, by 8 of them only.
__global__ void some_lanes(const float *in, float *out, int n) {
    __shared__ float4 a[WARP];
    a[threadIdx.x] = make_float4(in[threadIdx.x], in[0], in[1], in[2]);
    __syncthreads();
    float sum = 0.0f;
    if (threadIdx.x < 8) {
        for (int k = 0; k < n; k++) {
            const float4 all = a[k];
            sum += all.x * all.y + all.z * all.w;
        }
    }
    out[threadIdx.x] = sum;
}

__device__ float product(float2 all) { return all.x * all.y; }
__device__ float product(float4 all) { return all.x * all.y * all.z * all.w; }

// 8-byte and 16-byte loads whose neighbours load other addresses: two and four wavefronts.
template <class T> __global__ void side_by_side(const float *in, float *out, int) {
    __shared__ T a[WARP];
    reinterpret_cast<float *>(a)[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    const T mine = a[threadIdx.x];
    out[threadIdx.x] = product(mine);
}

// Loops with bodies of different lengths: nvcc unrolls the short ones by four, the next by two, and the long one not.
template <int LOADS> __global__ void body(const float *in, float *out, int n) {
    __shared__ float a[TURNS * LOADS * WARP];
    for (int k = threadIdx.x; k < TURNS * LOADS * WARP; k += WARP) {
        a[k] = in[k % WARP];
    }
    __syncthreads();
    float sum[LOADS] = {};
    for (int k = 0; k < n; k++) {
        const float weight = a[k];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            sum[i] = fmaf(weight, a[(k * LOADS + i) * WARP + threadIdx.x], sum[i]);
        }
    }
    float total = 0.0f;
    for (int i = 0; i < LOADS; i++) {
        total += sum[i];
    }
    out[threadIdx.x] = total;
}

int main() {
    const std::vector<float> ones(SIZE, 1.0f);
    float *in = nullptr, *out = nullptr;
    cudaMalloc(&in, SIZE * sizeof(float));
    cudaMalloc(&out, SIZE * sizeof(float));
    cudaMemcpy(in, ones.data(), SIZE * sizeof(float), cudaMemcpyHostToDevice);
    broadcast<<<1, WARP>>>(in, out, 0);
    for (const int n : {3, 4, 6, 16, 23}) {
        loop<<<1, WARP>>>(in, out, n);
        loop_of_pairs<<<1, WARP, SIZE * sizeof(float)>>>(in, out, n);
    }
    odd_rows<<<1, WARP>>>(in, out, 0);
    stores<<<1, WARP>>>(in, out, 0);
    store_between<<<1, WARP>>>(in, out, 128);
    stores_of_pairs<<<1, WARP>>>(in, out, 0);
    gaps<<<1, WARP>>>(in, out, 0);
    halves<5><<<1, WARP>>>(in, out, 0);
    halves<6><<<1, WARP>>>(in, out, 0);
    halves<7><<<1, WARP>>>(in, out, 0);
    some_lanes<<<1, WARP>>>(in, out, 16);
    side_by_side<float2><<<1, WARP>>>(in, out, 0);
    side_by_side<float4><<<1, WARP>>>(in, out, 0);
    body<4><<<1, WARP>>>(in, out, TURNS);
    body<16><<<1, WARP>>>(in, out, TURNS);
    body<32><<<1, WARP>>>(in, out, TURNS);
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
}
