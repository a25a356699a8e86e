// Attention of one head without ever storing the score matrix: K and V pass through shared memory in tiles, and each
// query row keeps a running maximum and sum (online softmax). Needs more than 48 KB of dynamic shared memory.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
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

constexpr int kHead = 64;         // numbers of a query, key or value
constexpr int kQueries = 16;      // query rows of a block, each with four threads
constexpr int kPerQuery = 4;
constexpr int kKeys = 96;         // keys of a tile
constexpr int kOwn = kHead / kPerQuery;
constexpr int kThreads = kQueries * kPerQuery;
constexpr size_t kSharedBytes = sizeof(float) * (2 * kKeys * kHead + kQueries * kHead);
static_assert(kSharedBytes > 48 * 1024, "this program is meant to ask for more than the default");

template <bool Causal>
__global__ void __launch_bounds__(kThreads) attention(const float* __restrict__ q, const float* __restrict__ k,
                                                      const float* __restrict__ v, float* __restrict__ out,
                                                      int length, float scale) {
    extern __shared__ __align__(16) float memory[];
    float* k_tile = memory;
    float* v_tile = k_tile + kKeys * kHead;
    float* q_tile = v_tile + kKeys * kHead;
    const int local = threadIdx.x / kPerQuery, part = threadIdx.x % kPerQuery;
    const int first_query = blockIdx.x * kQueries, query = first_query + local;

    for (int i = threadIdx.x; i < kQueries * kHead; i += kThreads) {
        const int row = first_query + i / kHead;
        q_tile[i] = row < length ? q[size_t(row) * kHead + i % kHead] * scale : 0.0f;
    }
    float largest = -INFINITY, sum = 0.0f, result[kOwn] = {};

    const int last = Causal ? min(length, first_query + kQueries) : length;
    for (int first_key = 0; first_key < last; first_key += kKeys) {
        __syncthreads();  // nobody still reads the previous tile
        const int keys = min(kKeys, length - first_key);
        const float4* k_from = reinterpret_cast<const float4*>(k + size_t(first_key) * kHead);
        const float4* v_from = reinterpret_cast<const float4*>(v + size_t(first_key) * kHead);
        for (int i = threadIdx.x; i < keys * kHead / 4; i += kThreads) {
            reinterpret_cast<float4*>(k_tile)[i] = k_from[i];
            reinterpret_cast<float4*>(v_tile)[i] = v_from[i];
        }
        __syncthreads();
        for (int j = 0; j < keys; ++j) {
            // The four threads of a query share the dot product; every one of them gets the whole score.
            float score = 0.0f;
#pragma unroll
            for (int d = part; d < kHead; d += kPerQuery)
                score = fmaf(q_tile[local * kHead + d], k_tile[j * kHead + d], score);
            score += __shfl_xor_sync(0xffffffffu, score, 1);
            score += __shfl_xor_sync(0xffffffffu, score, 2);
            if (Causal && first_key + j > query) continue;  // the shuffles are over: lanes may part here
            if (score > largest) {
                const float correction = __expf(largest - score);  // 0 the first time
                largest = score;
                sum *= correction;
#pragma unroll
                for (int d = 0; d < kOwn; ++d) result[d] *= correction;
            }
            const float weight = __expf(score - largest);
            sum += weight;
#pragma unroll
            for (int d = 0; d < kOwn; ++d)
                result[d] = fmaf(weight, v_tile[j * kHead + d * kPerQuery + part], result[d]);
        }
    }
    if (query >= length) return;
#pragma unroll
    for (int d = 0; d < kOwn; ++d) out[size_t(query) * kHead + d * kPerQuery + part] = result[d] / sum;
}

std::vector<double> reference(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                              int length, float scale, bool causal) {
    std::vector<double> out(q.size(), 0.0), weights(length);
    for (int i = 0; i < length; ++i) {
        const int keys = causal ? i + 1 : length;
        double largest = -INFINITY, sum = 0.0;
        for (int j = 0; j < keys; ++j) {
            double dot = 0.0;
            for (int d = 0; d < kHead; ++d) dot += double(q[size_t(i) * kHead + d]) * double(k[size_t(j) * kHead + d]);
            weights[j] = dot * scale;
            largest = std::max(largest, weights[j]);
        }
        for (int j = 0; j < keys; ++j) sum += weights[j] = std::exp(weights[j] - largest);
        for (int j = 0; j < keys; ++j)
            for (int d = 0; d < kHead; ++d) out[size_t(i) * kHead + d] += weights[j] / sum * v[size_t(j) * kHead + d];
    }
    return out;
}

int main() {
    const int length = 250;
    const float scale = 1.0f / std::sqrt(float(kHead));
    std::mt19937 random(6);
    std::vector<float> inputs[3];
    float *device[3], *out_device;
    const size_t count = size_t(length) * kHead, bytes = count * sizeof(float);
    for (int i = 0; i < 3; ++i) {
        for (size_t n = 0; n < count; ++n) inputs[i].push_back(float(random() % 4001) / 1000.0f - 2.0f);
        CHECK(cudaMalloc(&device[i], bytes));
        CHECK(cudaMemcpy(device[i], inputs[i].data(), bytes, cudaMemcpyHostToDevice));
    }
    CHECK(cudaMalloc(&out_device, bytes));

    double worst = 0.0;
    for (bool causal : {false, true}) {
        auto kernel = causal ? attention<true> : attention<false>;
        CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(kSharedBytes)));
        CHECK(cudaMemset(out_device, 0xff, bytes));
        kernel<<<(length + kQueries - 1) / kQueries, kThreads, kSharedBytes>>>(device[0], device[1], device[2],
                                                                               out_device, length, scale);
        CHECK(cudaGetLastError());
        std::vector<float> out(count);
        CHECK(cudaMemcpy(out.data(), out_device, bytes, cudaMemcpyDeviceToHost));
        const std::vector<double> right = reference(inputs[0], inputs[1], inputs[2], length, scale, causal);
        for (size_t i = 0; i < count; ++i) {
            const double error = std::abs(double(out[i]) - right[i]);
            worst = error <= worst ? worst : error;
        }
    }
    for (float* pointer : {device[0], device[1], device[2], out_device}) CHECK(cudaFree(pointer));
    const bool good = worst < 1e-5;
    std::printf("flash_attention: %d rows, full and causal, largest error %.1e: %s\n", length, worst,
                good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
