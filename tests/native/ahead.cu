// Loops of matrix instructions, as fattn-mma-f16.cuh has them: one warp, products of 16x8 and 8x16 tiles of f16.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static constexpr int tiles = 6, stride = 4; // words of a row of eight f16

struct tile16 {
    int x[4] = {0};
};
struct tile8 {
    int x[2] = {0};
};
struct by_hand : tile16 {};

static __device__ void load_ldmatrix(tile16 & t, const int * xs) {
    const int * row = xs + threadIdx.x * stride;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.b16 {%0, %1, %2, %3}, [%4];" : "=r"(t.x[0]), "=r"(t.x[1]), "=r"(t.x[2]), "=r"(t.x[3]) : "l"(row)); // fault: misaligned
}
static __device__ void load_ldmatrix_trans(tile16 & t, const int * xs) {
    const int * row = xs + threadIdx.x * stride;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.b16 {%0, %1, %2, %3}, [%4];" : "=r"(t.x[0]), "=r"(t.x[2]), "=r"(t.x[1]), "=r"(t.x[3]) : "l"(row));
}
// Only half of the lanes have an address that counts.
static __device__ void load_ldmatrix(tile8 & t, const int * xs) {
    const int * row = threadIdx.x < 16 ? xs + threadIdx.x * stride : (const int *) 1;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.b16 {%0, %1}, [%2];" : "=r"(t.x[0]), "=r"(t.x[1]) : "l"(row));
}
static __device__ void load_ldmatrix(by_hand & t, const int * xs) {
    for (int l = 0; l < 4; ++l) {
        t.x[l] = xs[32 * l + threadIdx.x];
    }
}
static __device__ void mma(tile16 & D, const tile16 & A, const tile8 & B) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+r"(D.x[0]), "+r"(D.x[1]), "+r"(D.x[2]), "+r"(D.x[3]) : "r"(A.x[0]), "r"(A.x[1]), "r"(A.x[2]), "r"(A.x[3]), "r"(B.x[0]), "r"(B.x[1]));
}
// Registers that are no neighbours, as in the 16x16 products of fattn-mma-f16.cuh.
static __device__ void mma(tile16 & D, const tile16 & A, const tile16 & B) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};" : "+r"(D.x[0]), "+r"(D.x[2]) : "r"(A.x[0]), "r"(A.x[1]), "r"(A.x[2]), "r"(A.x[3]), "r"(B.x[0]), "r"(B.x[2]));
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};" : "+r"(D.x[1]), "+r"(D.x[3]) : "r"(A.x[0]), "r"(A.x[1]), "r"(A.x[2]), "r"(A.x[3]), "r"(B.x[1]), "r"(B.x[3]));
}

static __device__ const int * filled(const int * in) {
    extern __shared__ int4 shared[];
    for (int i = threadIdx.x; i < 2 * tiles * 32; i += 32) {
        shared[i] = ((const int4 *) in)[i];
    }
    __syncthreads();
    return (const int *) shared;
}
static __device__ void store(int * out, const tile16 & t) {
    for (int l = 0; l < 4; ++l) {
        out[32 * l + threadIdx.x] = t.x[l];
    }
}

__global__ void products(const int * in, int * out) {
    const int * xs = filled(in);
    tile8 B[2];
    load_ldmatrix(B[0], xs);
    load_ldmatrix(B[1], xs + 64);
    tile16 C[tiles];
    for (int i = 0; i < tiles; ++i) {
        for (int k = 0; k < 2; ++k) {
            tile16 A;
            load_ldmatrix(A, xs + 128 * (i + k));
            mma(C[i], A, B[k]);
        }
    }
    for (int i = 0; i < tiles; ++i) {
        C[i].x[0] ^= B[i % 2].x[1];
        store(out + 128 * i, C[i]);
    }
}
// The last fragment that the loop loads is read after it.
__global__ void products_and_last(const int * in, int * out) {
    const int * xs = filled(in);
    tile16 A, C, D;
    for (int i = 0; i < tiles; ++i) {
        tile8 B;
        load_ldmatrix(B, xs + 64 * i);
        load_ldmatrix_trans(A, xs + 128 * i);
        mma(C, A, B);
        mma(D, A, A);
    }
    store(out, A);
    store(out + 128, C);
    store(out + 256, D);
}
__global__ void products_by_hand(const int * in, int * out) {
    const int * xs = filled(in);
    tile8 B;
    load_ldmatrix(B, xs);
    tile16 C, D;
    for (int i = 0; i < tiles; ++i) {
        tile16 A;
        by_hand H;
        load_ldmatrix(A, xs + 128 * i);
        mma(C, A, B);
        load_ldmatrix(H, xs + 128 * i);
        mma(D, H, B);
    }
    store(out, C);
    store(out + 128, D);
}
// More loads than are remembered at once.
__global__ void long_products(const int * in, int * out) {
    const int * xs = filled(in);
    tile8 B;
    load_ldmatrix(B, xs);
    tile16 C;
    for (int i = 0; i < 1300; ++i) {
        tile16 A;
        load_ldmatrix(A, xs + 128 * (i % tiles));
        mma(C, A, B);
    }
    store(out, C);
}
__global__ void misaligned(const int * in, int * out) {
    const int * xs = filled(in) + (threadIdx.x == 5);
    tile8 B;
    tile16 C;
    for (int i = 0; i < tiles; ++i) {
        tile16 A;
        load_ldmatrix(A, xs + 128 * i);
        mma(C, A, B);
    }
    store(out, C);
}
__global__ void unwritten(const int * in, int * out) {
    const int * xs = filled(in);
    tile8 B;
    tile16 C;
    for (int i = 0; i < tiles; ++i) {
        tile16 A;
        load_ldmatrix(A, xs + 128 * i + (threadIdx.x == 5 && i == 3 ? 2048 : 0));
        mma(C, A, B);
    }
    store(out, C);
}
// Lane 3 writes lane 4's row of a tile. Only an instruction of the warp orders that before a load of the row.
template <int first> __global__ void load_after_write(const int * in, int * out) {
    const int * xs = filled(in);
    if (threadIdx.x == 3) {
        ((int *) xs)[4 * stride] = 0; // fault: load_after_write
    }
    tile8 B;
    tile16 C;
    for (int i = first; i >= 0; --i) {
        tile16 A;
        load_ldmatrix(A, xs + 128 * i);
        mma(C, A, B);
    }
    store(out, C);
}
__global__ void divergent(const int * in, int * out) {
    const int * xs = filled(in);
    tile8 B;
    tile16 C;
    for (int i = 0; i < 2 + (threadIdx.x < 7); ++i) {
        tile16 A;
        load_ldmatrix(A, xs + 128 * i);
        mma(C, A, B);
    }
    store(out, C);
}

// ahead NAME: words from stdin, words to stdout.
int main(int, char ** words) {
    std::vector<int> input(4 * 2 * tiles * 32), output(128 * tiles);
    input.resize(fread(input.data(), 4, input.size(), stdin));
    int *in, *out;
    cudaMalloc((void **) &in, 4 * 2 * tiles * 32 * 4);
    cudaMalloc((void **) &out, output.size() * 4);
    cudaMemcpy(in, input.data(), input.size() * 4, cudaMemcpyHostToDevice);
    cudaMemset(out, 0, output.size() * 4);
    const struct {
        const char * name;
        void (*kernel)(const int *, int *);
    } kernels[] = {{"products", products}, {"products_and_last", products_and_last}, {"products_by_hand", products_by_hand}, {"long_products", long_products}, {"misaligned", misaligned}, {"divergent", divergent}, {"unwritten", unwritten}, {"load_after_write", load_after_write<0>}, {"second_load_after_write", load_after_write<1>}};
    for (const auto & entry : kernels) {
        if (strcmp(entry.name, words[1]) == 0) {
            void (*kernel)(const int *, int *) = entry.kernel;
            kernel<<<2, 32, 16384>>>(in, out);
            cudaMemcpy(output.data(), out, output.size() * 4, cudaMemcpyDeviceToHost);
            fwrite(output.data(), 4, output.size(), stdout);
        }
    }
    return 0;
}
