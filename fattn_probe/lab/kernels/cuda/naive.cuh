// Attention with a thread for each query row, which reads all of K and V from global memory.
#pragma once

#include "attention.h"

constexpr int NAIVE_THREADS = 128;

// D is 64, 128 or 256, and at least the head sizes.
template <int D, typename KV> __global__ void __launch_bounds__(NAIVE_THREADS) naive_kernel(const attention<KV> op) {
    const int i = blockIdx.x * NAIVE_THREADS + threadIdx.x, h = blockIdx.y, s = blockIdx.z;
    if (i >= op.n_q) {
        return;
    }
    const float *q = op.q(s, h, i);
    float sum[D]; // of exp(logit - largest) * V
#pragma unroll
    for (int d = 0; d < D; d++) {
        sum[d] = 0.0f;
    }
    float largest = -INFINITY, total = 0.0f;
    for (int j = 0; j < op.visible(i); j++) {
        const KV *k = op.k(s, h, j);
        float logit = 0.0f;
        for (int d = 0; d < op.hsk; d++) {
            logit = fmaf(q[d], to_float(k[d]), logit);
        }
        logit = logit * op.scale + (op.mask ? to_float(op.mask_of(s, h, i)[j]) : 0.0f);
        if (logit == -INFINITY) {
            continue;
        }
        if (logit > largest) { // the sums so far are relative to a smaller maximum
            const float rescale = expf(largest - logit);
            largest = logit;
            total *= rescale;
#pragma unroll
            for (int d = 0; d < D; d++) {
                sum[d] *= rescale;
            }
        }
        const float weight = expf(logit - largest);
        total += weight;
        const KV *v = op.v(s, h, j);
#pragma unroll
        for (int d = 0; d < D; d++) {
            sum[d] = d < op.hsv ? fmaf(weight, to_float(v[d]), sum[d]) : 0.0f;
        }
    }
    float *o = op.o(s, h, i);
#pragma unroll
    for (int d = 0; d < D; d++) {
        if (d < op.hsv) {
            o[d] = total > 0.0f ? sum[d] / total : 0.0f;
        }
    }
}

template <int D, typename KV> void launch_naive(const attention<KV> &op) {
    const dim3 grid((op.n_q + NAIVE_THREADS - 1) / NAIVE_THREADS, op.n_head, op.n_seq);
    naive_kernel<D><<<grid, NAIVE_THREADS>>>(op);
}

template <typename KV> const char *naive(const attention<KV> &op) {
    const int size = op.hsk > op.hsv ? op.hsk : op.hsv;
    if (size > 256) {
        return "head sizes above 256";
    }
    size <= 64 ? launch_naive<64>(op) : size <= 128 ? launch_naive<128>(op) : launch_naive<256>(op);
    return nullptr;
}
