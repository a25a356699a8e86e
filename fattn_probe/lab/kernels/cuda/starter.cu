// My own attention kernel. Run it on any scenario, and compare it with llama.cpp's kernels:
//
//   fattn-probe compare prefill --kernel llama,FILE:my_attention
//
// `attention.h` says what the kernel gets; fattn-probe finds it by itself.
#include "attention.h"

constexpr int THREADS = 128;

// A thread computes one value of O, in two passes over the logits.
template <typename KV> __device__ float logit(const attention<KV> &op, int s, int h, int i, int j) {
    float dot = 0.0f;
    for (int d = 0; d < op.hsk; d++) {
        dot += op.q(s, h, i)[d] * to_float(op.k(s, h, j)[d]);
    }
    return dot * op.scale + (op.mask ? to_float(op.mask_of(s, h, i)[j]) : 0.0f);
}

template <typename KV> __global__ void my_kernel(const attention<KV> op) {
    const int d = blockIdx.x * THREADS + threadIdx.x;
    const int i = blockIdx.y, h = blockIdx.z % op.n_head, s = blockIdx.z / op.n_head;
    if (d >= op.hsv) {
        return;
    }
    float largest = -INFINITY;
    for (int j = 0; j < op.visible(i); j++) {
        largest = fmaxf(largest, logit(op, s, h, i, j));
    }
    float weights = 0.0f, weighted_v = 0.0f; // sums over the visible rows
    for (int j = 0; j < op.visible(i) && largest > -INFINITY; j++) {
        const float weight = expf(logit(op, s, h, i, j) - largest);
        weights += weight;
        weighted_v += weight * to_float(op.v(s, h, j)[d]);
    }
    op.o(s, h, i)[d] = weights > 0.0f ? weighted_v / weights : 0.0f;
}

// Launches the kernel. Returns nullptr, or the reason why it cannot compute this op.
template <typename KV> const char *my_attention(const attention<KV> &op) {
    const dim3 grid((op.hsv + THREADS - 1) / THREADS, op.n_q, op.n_head * op.n_seq);
    my_kernel<<<grid, THREADS>>>(op);
    return nullptr;
}
