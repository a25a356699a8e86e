// Kernels whose results the tests compute themselves, or have measured on a GPU.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

typedef unsigned short half_bits;

// in: 32 words; out: [width 1, 2, 4 ... 32][up, down, xor, index][amount 0..31][lane].
__global__ void shuffles(const unsigned * in, unsigned * out) {
    const int lane = threadIdx.x;
    for (int width = 1; width <= 32; width *= 2) {
        for (int amount = 0; amount < 32; amount++) {
            out[lane]           = __shfl_up_sync(0xFFFFFFFF, in[lane], amount, width);
            out[lane + 32 * 32] = __shfl_down_sync(0xFFFFFFFF, in[lane], amount, width);
            out[lane + 64 * 32] = __shfl_xor_sync(0xFFFFFFFF, in[lane], amount, width);
            out[lane + 96 * 32] = __shfl_sync(0xFFFFFFFF, in[lane], amount, width);
            out += 32;
        }
        out += 96 * 32;
    }
}

// A 64-bit and a 16-byte value: two and four words of each lane.
__global__ void wide_shuffles(const unsigned * in, unsigned * out) {
    const int lane = threadIdx.x;
    unsigned long long two;
    int4               four;
    memcpy(&two, in + 2 * lane, 8);
    memcpy(&four, in + 4 * lane, 16);
    two  = __shfl_xor_sync(0xFFFFFFFF, two, 5);
    four = __shfl_sync(0xFFFFFFFF, four, 31 - lane);
    memcpy(out + 2 * lane, &two, 8);
    memcpy(out + 64 + 4 * lane, &four, 16);
}

__global__ void votes(const unsigned * in, unsigned * out) {
    for (int i = 0; i < 8; i++) {
        const unsigned value = in[32 * i + threadIdx.x];
        out[0 * 256 + 32 * i + threadIdx.x] = __ballot_sync(0xFFFFFFFF, value);
        out[1 * 256 + 32 * i + threadIdx.x] = __any_sync(0xFFFFFFFF, value);
        out[2 * 256 + 32 * i + threadIdx.x] = __all_sync(0xFFFFFFFF, value);
        out[3 * 256 + 32 * i + threadIdx.x] = __syncthreads_or(value);
        out[4 * 256 + 32 * i + threadIdx.x] = __syncthreads_and(value);
        out[5 * 256 + 32 * i + threadIdx.x] = __syncthreads_count(value);
    }
}

// in: four 8x8 tiles of 16 bits, row by row. out: registers of ldmatrix x4, x4.trans, x2, x2.trans, and of movmatrix of
// the first tile.
__global__ void matrices(const unsigned * in, unsigned * out) {
    __shared__ __align__(16) unsigned tiles[128];
    const int lane = threadIdx.x;
    for (int i = 0; i < 4; i++) {
        tiles[32 * i + lane] = in[32 * i + lane];
    }
    __syncwarp();
    unsigned r[13];
    const unsigned * row = tiles + 4 * lane;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]) : "l"(row));
    row = tiles + 4 * (lane % 16);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.b16 {%0, %1}, [%2];" : "=r"(r[8]), "=r"(r[9]) : "l"(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.b16 {%0, %1}, [%2];" : "=r"(r[10]), "=r"(r[11]) : "l"(row));
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r[12]) : "r"(r[0]));
    for (int i = 0; i < 13; i++) {
        out[32 * i + lane] = r[i];
    }
}

// One instruction a block: A, B, C, D as matrices, row by row.
template <int K> struct Fragments {
    const int          g = threadIdx.x / 4, t = threadIdx.x % 4;
    const half_bits *  A;
    const half_bits *  B;
    __device__ Fragments(const unsigned * in, int c_words) {
        const unsigned * own = in + blockIdx.x * (24 * K / 2 + c_words);
        A = (const half_bits *) own;
        B = A + 16 * K;
    }
    __device__ const unsigned * C() const { return (const unsigned *) (B + 8 * K); }
    __device__ unsigned a(int row, int k) const { return A[row * K + k] | (unsigned) A[row * K + k + 1] << 16; }
    __device__ unsigned b(int k) const { return B[k * 8 + g] | (unsigned) B[(k + 1) * 8 + g] << 16; }
};

template <int kind> __device__ void mma_f32(const unsigned * in, unsigned * out) {
    constexpr int K = kind == 1 ? 8 : 16;
    const Fragments<K> f(in, 128);
    const int g = f.g, t = f.t;
    const float * C = (const float *) f.C();
    float d0 = C[g * 8 + 2 * t], d1 = C[g * 8 + 2 * t + 1], d2 = C[(g + 8) * 8 + 2 * t], d3 = C[(g + 8) * 8 + 2 * t + 1];
    const unsigned a0 = f.a(g, 2 * t), a1 = f.a(g + 8, 2 * t), b0 = f.b(2 * t);
    if constexpr (kind == 1) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a0), "r"(a1), "r"(b0));
    } else {
        const unsigned a2 = f.a(g, 2 * t + 8), a3 = f.a(g + 8, 2 * t + 8), b1 = f.b(2 * t + 8);
        if constexpr (kind == 0) {
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
        } else {
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
        }
    }
    float * D = (float *) out + 128 * blockIdx.x;
    D[g * 8 + 2 * t] = d0, D[g * 8 + 2 * t + 1] = d1, D[(g + 8) * 8 + 2 * t] = d2, D[(g + 8) * 8 + 2 * t + 1] = d3;
}
__global__ void mma_f32_k16(const unsigned * in, unsigned * out) { mma_f32<0>(in, out); }
__global__ void mma_f32_k8(const unsigned * in, unsigned * out) { mma_f32<1>(in, out); }
__global__ void mma_bf16_k16(const unsigned * in, unsigned * out) { mma_f32<2>(in, out); }
__global__ void mma_f16_k16(const unsigned * in, unsigned * out) {
    const Fragments<16> f(in, 64);
    const int g = f.g, t = f.t;
    unsigned d0 = f.C()[g * 4 + t], d1 = f.C()[(g + 8) * 4 + t];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};" : "+r"(d0), "+r"(d1) : "r"(f.a(g, 2 * t)), "r"(f.a(g + 8, 2 * t)), "r"(f.a(g, 2 * t + 8)), "r"(f.a(g + 8, 2 * t + 8)), "r"(f.b(2 * t)), "r"(f.b(2 * t + 8)));
    out[64 * blockIdx.x + g * 4 + t] = d0, out[64 * blockIdx.x + (g + 8) * 4 + t] = d1;
}

// Volta's: for each of four quad pairs an 8x4 matrix A, row by row, and a 4x8 B, column by column.
__global__ void mma_m8n8k4(const unsigned * in, unsigned * out) {
    const int lane = threadIdx.x, quad = lane / 4 % 4, row = lane % 4 + (lane >= 16 ? 4 : 0);
    const unsigned * A = in + 32 * quad;
    const unsigned * B = A + 16;
    float d[8] = {};
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, {%0, %1, %2, %3, %4, %5, %6, %7};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]) : "r"(A[2 * row]), "r"(A[2 * row + 1]), "r"(B[2 * row]), "r"(B[2 * row + 1]));
    for (int i = 0; i < 8; i++) {
        const int r = (lane & 1) + (i & 2) + (lane >= 16 ? 4 : 0), c = (i & 4) + (lane & 2) + (i & 1);
        ((float *) out)[64 * quad + 8 * r + c] = d[i];
    }
}

// in: x, then y, as many as there are threads.
template <float (*function)(float, float)> __global__ void apply(const unsigned * in, unsigned * out) {
    const int     i = blockIdx.x * blockDim.x + threadIdx.x;
    const float * x = (const float *) in;
    ((float *) out)[i] = function(x[i], x[i + gridDim.x * blockDim.x]);
}
static __device__ float power(float x, float y) { return powf(x, y); }
static __device__ float division(float x, float y) { return x / y; }
static __device__ float tangent(float x, float) { return tanhf(x); }
static __device__ float logarithm(float x, float) { return log2f(x); }

// Sums a row of `blockDim.x` words by every means: copies, shared memory, barriers, shuffles, atomics.
template <bool wait, bool barrier> __device__ void sum_row(const unsigned * in, unsigned * out) {
    extern __shared__ unsigned row[];
    __shared__ unsigned sums[32];
    __shared__ unsigned total;
    const int n = blockDim.x, i = threadIdx.x;
    if (i == 0) {
        total = 0;
    }
    if (i < n / 4) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"((unsigned) __cvta_generic_to_shared(row + 4 * i)), "l"(in + blockIdx.x * n + 4 * i));
        if (wait) {
            asm volatile("cp.async.wait_all;");
        }
    }
    __syncthreads();
    unsigned sum = row[n - 1 - i] * (i + 1);
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(0xFFFFFFFF, sum, offset);
    }
    sums[i / 32] = sum;
    if (barrier) {
        __syncthreads();
    }
    if (i % 32 == 0) {
        atomicAdd(&total, sums[(i / 32 + 1) % (n / 32)]);
    }
    __syncthreads();
    out[blockIdx.x * n + i] = total + i;
    if (!wait) {
        asm volatile("cp.async.wait_all;");
    }
}
__global__ void row_sums(const unsigned * in, unsigned * out) { sum_row<true, true>(in, out); }
__global__ void row_sums_without_wait(const unsigned * in, unsigned * out) { sum_row<false, true>(in, out); }
__global__ void row_sums_without_barrier(const unsigned * in, unsigned * out) { sum_row<true, false>(in, out); }

// In which order the threads get here.
// A loop that is rewritten to one warp instruction, and one that is not.
template <int width> __device__ void butterfly(const unsigned * in, unsigned * out) {
    float sum = __uint_as_float(in[threadIdx.x]), most = sum, sum_by_steps = sum, most_by_steps = sum;
    for (int offset = width/2; offset > 0; offset >>= 1) {
        sum += __shfl_xor_sync(0xffffffff, sum, offset, width);
    }
    for (int offset = width/2; offset > 0; offset >>= 1) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, offset, width));
    }
    for (int offset = width/2; offset > 0; offset /= 2) {
        sum_by_steps += __shfl_xor_sync(0xffffffff, sum_by_steps, offset, width);
        most_by_steps = fmaxf(most_by_steps, __shfl_xor_sync(0xffffffff, most_by_steps, offset, width));
    }
    const float results[4] = {sum, most, sum_by_steps, most_by_steps};
    for (int i = 0; i < 4; i++) {
        out[32 * i + threadIdx.x] = __float_as_uint(results[i]);
    }
}
__global__ void butterflies(const unsigned * in, unsigned * out) {
    butterfly<32>(in, out);
    butterfly<16>(in, out + 128);
    butterfly<8>(in, out + 256);
    butterfly<1>(in, out + 384);
}

// Arithmetic on pairs, and on their halves one by one.
__global__ void pairs(const unsigned * in, unsigned * out) {
    const int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    half2 v[3];
    memcpy(&v[0], in + i, 4), memcpy(&v[1], in + n + i, 4), memcpy(&v[2], in + 2 * n + i, 4);
    const half2 a = v[0], b = v[1], c = v[2];
    const half2 results[] = {a * b + c, __hmul2(a, b), a + b, a - b, -a,
                             half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)), half2(a.x * b.x, a.y * b.y), half2(a.x + b.x, a.y + b.y),
                             half2(a.x - b.x, a.y - b.y), half2(-a.x, -a.y)};
    for (int k = 0; k < 10; k++) {
        memcpy(out + k * n + i, &results[k], 4);
    }
}

__global__ void arrivals(const unsigned *, unsigned * out) {
    __shared__ unsigned counter;
    if (threadIdx.x == 0) {
        counter = 0;
    }
    __syncthreads();
    __shfl_sync(0xFFFFFFFF, 0, 0);
    out[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(&counter, 1u);
}

// out: a counter, then each block's turn.
__global__ void block_turns(const unsigned *, unsigned * out) {
    if (threadIdx.x == 0) {
        out[1 + blockIdx.x] = atomicAdd(out, 1u);
    }
}

__global__ void atomics(const unsigned * in, unsigned * out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd((float *) out, 1.0f);
    atomicAdd(out + 1, in[i]);
    atomicMax(out + 2, in[i]);
}

struct Entry {
    const char * name;
    void (*kernel)(const unsigned *, unsigned *);
};
#define ENTRY(name) {#name, name}
static const Entry entries[] = {
    ENTRY(shuffles), ENTRY(wide_shuffles), ENTRY(votes), ENTRY(matrices), ENTRY(mma_f32_k16), ENTRY(mma_f32_k8),
    ENTRY(mma_bf16_k16), ENTRY(mma_f16_k16), ENTRY(mma_m8n8k4), {"power", apply<power>}, {"division", apply<division>},
    {"tangent", apply<tangent>}, {"logarithm", apply<logarithm>}, ENTRY(row_sums), ENTRY(row_sums_without_wait), ENTRY(row_sums_without_barrier), ENTRY(arrivals), ENTRY(block_turns),
    ENTRY(atomics), ENTRY(butterflies), ENTRY(pairs),
};

// semantics NAME GRID BLOCK WORDS_OUT: words from stdin, words to stdout.
int main(int, char ** words) {
    const int             n_out = atoi(words[4]);
    std::vector<unsigned> input(1 << 20), output(n_out);
    input.resize(fread(input.data(), 4, input.size(), stdin));
    unsigned *in, *out;
    cudaMalloc((void **) &in, input.size() * 4);
    cudaMalloc((void **) &out, output.size() * 4);
    cudaMemcpy(in, input.data(), input.size() * 4, cudaMemcpyHostToDevice);
    cudaMemset(out, 0, output.size() * 4);
    for (const Entry & entry : entries) {
        if (strcmp(entry.name, words[1]) == 0) {
            void (*kernel)(const unsigned *, unsigned *) = entry.kernel;
            kernel<<<atoi(words[2]), atoi(words[3]), 4096>>>(in, out);
            cudaMemcpy(output.data(), out, output.size() * 4, cudaMemcpyDeviceToHost);
            fwrite(output.data(), 4, output.size(), stdout);
            return 0;
        }
    }
    return 2;
}
