// The contract between fattn-probe and your own attention kernel: what the kernel gets, and what it writes.
#ifndef FATTN_PROBE_ATTENTION_H // not `#pragma once`: a kernel may bring its own copy of this file
#define FATTN_PROBE_ATTENTION_H

#if defined(__CUDACC__) && !defined(__HIP__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include <cstdint>

// Elements from one row, head or sequence of a tensor to the next. The elements of a row are adjacent.
struct strides {
    int64_t row, head, seq;
};

// One attention op. For each sequence s, head h and query i:
//   O[i] = sum over j of softmax(scale * Q[i] . K[j] + mask[i][j]) * V[j]
// K and V have n_head_kv heads: head h of Q uses head h / (n_head / n_head_kv) of K and V.
// KV, the type of K and V, is __half or __nv_bfloat16.
template <typename KV> struct attention {
    const float *Q;     // n_seq x n_head x n_q rows of hsk
    const KV *K;        // n_seq x n_head_kv x n_kv rows of hsk
    const KV *V;        // n_seq x n_head_kv x n_kv rows of hsv
    const __half *mask; // n_q rows of n_kv, added to the logits; null if there is none
    float *O;           // n_seq x n_head x n_q rows of hsv

    int n_seq, n_head, n_head_kv, n_q, n_kv;
    int hsk, hsv;                            // the head sizes of Q and K, and of V and O
    strides of_Q, of_K, of_V, of_mask, of_O; // a mask for all heads or sequences has strides of 0
    float scale;
    bool causal; // query i sees exactly the rows j <= i + n_kv - n_q; a mask, if there is one, hides the others

    // The first element of a row.
    __host__ __device__ const float *q(int s, int h, int i) const { return Q + at(of_Q, s, h, i); }
    __host__ __device__ const KV *k(int s, int h, int j) const { return K + at(of_K, s, kv_head(h), j); }
    __host__ __device__ const KV *v(int s, int h, int j) const { return V + at(of_V, s, kv_head(h), j); }
    __host__ __device__ const __half *mask_of(int s, int h, int i) const { return mask + at(of_mask, s, h, i); }
    __host__ __device__ float *o(int s, int h, int i) const { return O + at(of_O, s, h, i); }

    __host__ __device__ int kv_head(int h) const { return h / (n_head / n_head_kv); }

    // The number of KV rows that query i can see, from the first row on.
    __host__ __device__ int visible(int i) const {
        const int last = i + 1 + n_kv - n_q;
        return !causal || last > n_kv ? n_kv : last < 0 ? 0 : last;
    }

  private:
    __host__ __device__ static int64_t at(const strides &of, int s, int h, int row) {
        return s * of.seq + h * of.head + row * of.row;
    }
};

// K and V as float.
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

#endif
