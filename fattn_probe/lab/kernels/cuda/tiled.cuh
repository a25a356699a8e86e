// FlashAttention-2 without tensor cores: K and V pass through shared memory in tiles, with an online softmax.
#pragma once

#include "attention.h"

constexpr int TILED_ROWS = 16; // query rows of a block
constexpr int TILED_LANES = 8; // threads of a query row: each has some of a tile's logits, and some of its sums
constexpr int TILED_THREADS = TILED_ROWS * TILED_LANES;

template <int D> constexpr int TILED_KEYS = D > 128 ? 16 : 32; // KV rows of a tile, so that everything fits in 48 KB

// A row of K in shared memory is two elements longer: the lanes of a query read neighbouring rows from different banks.
template <int D> constexpr int K_PITCH = D + 2;

template <int D, typename KV> constexpr int tiled_shared_bytes() {
    return TILED_ROWS * (D + TILED_KEYS<D>)*int(sizeof(float)) + TILED_KEYS<D> * (K_PITCH<D> + D) * int(sizeof(KV));
}

// Copy `rows` KV rows to a tile. Rows after these, and elements after a row's `size`, are 0.
template <int D, typename KV>
__device__ void load_tile(KV *tile, int pitch, const KV *from, int64_t stride, int rows, int size) {
    for (int n = threadIdx.x; n < TILED_KEYS<D> * D; n += TILED_THREADS) {
        const int row = n / D, d = n % D;
        tile[row * pitch + d] = row < rows && d < size ? from[row * stride + d] : KV(0.0f);
    }
}

// The products of a row of Q with this thread's rows of K: lane, lane + TILED_LANES, ...
template <int D, typename KV> __device__ void multiply_QK(float *logit, const float *q, const KV *K_tile, int lane) {
    constexpr int OWN = TILED_KEYS<D> / TILED_LANES;
#pragma unroll
    for (int n = 0; n < OWN; n++) {
        logit[n] = 0.0f;
    }
    for (int d = 0; d < D; d++) {
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            logit[n] = fmaf(q[d], to_float(K_tile[(lane + n * TILED_LANES) * K_PITCH<D> + d]), logit[n]);
        }
    }
}

// Rescale this thread's sums (channels lane, lane + TILED_LANES, ...), and add the weighted rows of V to them.
template <int D, typename KV>
__device__ void multiply_PV(float *sum, float rescale, const float *p, const KV *V_tile, int lane) {
    constexpr int OWN = D / TILED_LANES;
#pragma unroll
    for (int d = 0; d < OWN; d++) {
        sum[d] *= rescale;
    }
    for (int j = 0; j < TILED_KEYS<D>; j++) {
        const float weight = p[j];
#pragma unroll
        for (int d = 0; d < OWN; d++) {
            sum[d] = fmaf(weight, to_float(V_tile[j * D + lane + d * TILED_LANES]), sum[d]);
        }
    }
}

// The largest value, and the sum, over the threads of a query row.
__device__ inline float largest_of_row(float x) {
#pragma unroll
    for (int offset = TILED_LANES / 2; offset > 0; offset /= 2) {
        x = fmaxf(x, shuffle_xor(x, offset));
    }
    return x;
}

__device__ inline float sum_of_row(float x) {
#pragma unroll
    for (int offset = TILED_LANES / 2; offset > 0; offset /= 2) {
        x += shuffle_xor(x, offset);
    }
    return x;
}

template <int D, typename KV> __global__ void __launch_bounds__(TILED_THREADS) tiled_kernel(const attention<KV> op) {
    constexpr int KEYS = TILED_KEYS<D>, OWN = KEYS / TILED_LANES;
    extern __shared__ float shared[];
    float *Q_tile = shared;                          // [TILED_ROWS][D], times the scale
    float *P_tile = Q_tile + TILED_ROWS * D;         // [TILED_ROWS][KEYS]
    KV *K_tile = (KV *)(P_tile + TILED_ROWS * KEYS); // [KEYS][K_PITCH]
    KV *V_tile = K_tile + KEYS * K_PITCH<D>;         // [KEYS][D]

    const int row = threadIdx.x / TILED_LANES, lane = threadIdx.x % TILED_LANES;
    const int first = blockIdx.x * TILED_ROWS, i = first + row, h = blockIdx.y, s = blockIdx.z;
    for (int n = threadIdx.x; n < TILED_ROWS * D; n += TILED_THREADS) {
        const int q = first + n / D, d = n % D;
        Q_tile[n] = q < op.n_q && d < op.hsk ? op.q(s, h, q)[d] * op.scale : 0.0f;
    }
    float largest = -INFINITY, total = 0.0f, sum[D / TILED_LANES] = {}; // of exp(logit - largest), and that times V

    const int visible = op.visible(min(first + TILED_ROWS, op.n_q) - 1); // to the block's last query row
    for (int start = 0; start < visible; start += KEYS) {
        __syncthreads(); // the last tile has been read
        const int rows = min(KEYS, op.n_kv - start);
        load_tile<D>(K_tile, K_PITCH<D>, op.k(s, h, start), op.of_K.row, rows, op.hsk);
        load_tile<D>(V_tile, D, op.v(s, h, start), op.of_V.row, rows, op.hsv);
        __syncthreads();

        float logit[OWN], tile_largest = -INFINITY, tile_total = 0.0f;
        multiply_QK<D>(logit, Q_tile + row * D, K_tile, lane);
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            const int j = start + lane + n * TILED_LANES;
            const bool seen = i < op.n_q && j < op.visible(i);
            logit[n] = seen ? logit[n] + (op.mask ? to_float(op.mask_of(s, h, i)[j]) : 0.0f) : -INFINITY;
            tile_largest = fmaxf(tile_largest, logit[n]);
        }
        const float before = largest;
        largest = fmaxf(largest, largest_of_row(tile_largest));
        const float rescale = before == -INFINITY ? 0.0f : expf(before - largest);
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            const float weight = logit[n] == -INFINITY ? 0.0f : expf(logit[n] - largest);
            P_tile[row * KEYS + lane + n * TILED_LANES] = weight;
            tile_total += weight;
        }
        total = total * rescale + sum_of_row(tile_total);
        __syncthreads(); // P is written
        multiply_PV<D>(sum, rescale, P_tile + row * KEYS, V_tile, lane);
    }
#pragma unroll
    for (int n = 0; n < D / TILED_LANES; n++) {
        const int d = lane + n * TILED_LANES;
        if (i < op.n_q && d < op.hsv) {
            op.o(s, h, i)[d] = total > 0.0f ? sum[n] / total : 0.0f;
        }
    }
}

template <int D, typename KV> void launch_tiled(const attention<KV> &op) {
    const dim3 grid((op.n_q + TILED_ROWS - 1) / TILED_ROWS, op.n_head, op.n_seq);
    tiled_kernel<D><<<grid, TILED_THREADS, tiled_shared_bytes<D, KV>()>>>(op);
}

template <typename KV> const char *tiled(const attention<KV> &op) {
    const int size = op.hsk > op.hsv ? op.hsk : op.hsv;
    if (size > 256) {
        return "head sizes above 256";
    }
    size <= 64 ? launch_tiled<64>(op) : size <= 128 ? launch_tiled<128>(op) : launch_tiled<256>(op);
    return nullptr;
}
