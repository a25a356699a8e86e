#include "attention.h"
constexpr int KEYS = 64;
template <typename KV> __global__ void early_kernel(const attention<KV> op) {
    __shared__ float keys[KEYS];
    const int j = blockIdx.x * KEYS + threadIdx.x;
    if (j >= op.n_kv) {
        return;
    }
    keys[threadIdx.x] = to_float(op.k(0, 0, j)[0]);
    __syncthreads();
    float sum = 0.0f;
    for (int n = 0; n < KEYS; n++) {
        sum += keys[n];
    }
    op.o(0, 0, 0)[threadIdx.x] = sum;
}
template <typename KV> const char * early(const attention<KV> & op) {
    if (op.hsk != 64) {
        return "head sizes other than 64";
    }
    early_kernel<<<(op.n_kv + KEYS - 1) / KEYS, KEYS>>>(op);
    return nullptr;
}
const char * halves(const attention<__half> & op) {
    return early(op);
}
