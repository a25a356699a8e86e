// The naive and the tiled kernel on one head of N queries and N KV rows: their times, and their error against float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "naive.cuh"
#include "tiled.cuh"
#include "timed.h"

constexpr int TIMED_RUNS = 5;
constexpr float LARGEST_ERROR = 3e-2f;

// The exact attention of one head, in float64.
inline std::vector<double> exact(const std::vector<float> &Q, const std::vector<float> &K, const std::vector<float> &V,
                                 int N, int d, bool causal) {
    std::vector<double> O(size_t(N) * d), weight(N);
    for (int i = 0; i < N; i++) {
        const int keys = causal ? i + 1 : N;
        double largest = -INFINITY, total = 0.0;
        for (int j = 0; j < keys; j++) {
            double dot = 0.0;
            for (int c = 0; c < d; c++) {
                dot += double(Q[size_t(i) * d + c]) * K[size_t(j) * d + c];
            }
            weight[j] = dot / std::sqrt(double(d));
            largest = std::max(largest, weight[j]);
        }
        for (int j = 0; j < keys; j++) {
            weight[j] = std::exp(weight[j] - largest);
            total += weight[j];
        }
        for (int j = 0; j < keys; j++) {
            for (int c = 0; c < d; c++) {
                O[size_t(i) * d + c] += weight[j] / total * V[size_t(j) * d + c];
            }
        }
    }
    return O;
}

template <typename T> T *on_gpu(const std::vector<T> &values) {
    T *memory;
    CHECKED(cudaMalloc(&memory, values.size() * sizeof(T)));
    CHECKED(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return memory;
}

// Random numbers, rounded to a type; `values` are the rounded numbers.
template <typename T> std::vector<T> drawn(std::mt19937 &random, size_t size, std::vector<float> &values) {
    std::normal_distribution<float> normal;
    std::vector<T> found(size);
    values.resize(size);
    for (size_t i = 0; i < size; i++) {
        found[i] = T(normal(random));
        values[i] = float(found[i]);
    }
    return found;
}

struct measured {
    float milliseconds, error;
};

// Run a kernel several times; returns the shortest time, and the largest error of its output.
template <typename KV>
measured measure(const char *(*kernel)(const attention<KV> &), const attention<KV> &op, const std::vector<double> &O) {
    std::vector<float> found(O.size(), NAN);
    CHECKED(cudaMemcpy(op.O, found.data(), found.size() * sizeof(float), cudaMemcpyHostToDevice));
    measured result = {INFINITY, 0.0f};
    for (int run = 0; run < TIMED_RUNS; run++) {
        result.milliseconds = std::min(result.milliseconds, milliseconds([&] { kernel(op); }));
        CHECKED(cudaGetLastError());
    }
    CHECKED(cudaMemcpy(found.data(), op.O, found.size() * sizeof(float), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < O.size(); i++) {
        const float error = float(std::fabs(found[i] - O[i]));
        result.error = error <= result.error ? result.error : error; // NaN stays
    }
    return result;
}

template <typename KV> bool compare(int N, int d, bool causal) {
    std::mt19937 random(N * 1000 + d);
    std::vector<float> q, k, v;
    const std::vector<float> Q = drawn<float>(random, size_t(N) * d, q);
    const std::vector<KV> K = drawn<KV>(random, size_t(N) * d, k), V = drawn<KV>(random, size_t(N) * d, v);
    const strides rows = {d, int64_t(N) * d, int64_t(N) * d};
    float *O = on_gpu(std::vector<float>(size_t(N) * d));
    const attention<KV> op = {on_gpu(Q), on_gpu(K), on_gpu(V), nullptr, O,    1,
                              1,         1,         N,         N,       d,    d,
                              rows,      rows,      rows,      {},      rows, float(1 / std::sqrt(double(d))),
                              causal};
    const std::vector<double> answer = exact(q, k, v, N, d, causal);
    const measured one = measure(naive<KV>, op, answer), other = measure(tiled<KV>, op, answer);
    const float error = other.error <= one.error ? one.error : other.error;
    std::printf("%6d %4d %9.3f %9.3f %7.2fx %11.2e\n", N, d, one.milliseconds, other.milliseconds,
                one.milliseconds / other.milliseconds, error);
    for (const void *memory : {(const void *)op.Q, (const void *)op.K, (const void *)op.V, (const void *)op.O}) {
        CHECKED(cudaFree((void *)memory));
    }
    return error <= LARGEST_ERROR;
}

// Arguments: f16 or bf16, `causal`, and pairs N d.
inline int harness(int argc, char **argv) {
    bool bf16 = false, causal = false, right = true;
    std::vector<int> sizes;
    for (int i = 1; i < argc; i++) {
        bf16 = bf16 || std::strcmp(argv[i], "bf16") == 0;
        causal = causal || std::strcmp(argv[i], "causal") == 0;
        if (std::atoi(argv[i]) > 0) {
            sizes.push_back(std::atoi(argv[i]));
        }
    }
    if (sizes.empty()) {
        sizes = {256, 64, 1000, 128, 1024, 64};
    }
    if (sizes.size() % 2) {
        std::fprintf(stderr, "usage: naive_and_tiled [f16|bf16] [causal] [N d]...\n");
        return 2;
    }
    std::printf("one head, %s%s, times in ms\n", bf16 ? "bf16" : "f16", causal ? ", causal" : "");
    std::printf("     N    d     naive     tiled  speedup max_abs_err\n");
    for (size_t i = 0; i < sizes.size(); i += 2) {
        const int N = sizes[i], d = sizes[i + 1];
        right = (bf16 ? compare<__nv_bfloat16>(N, d, causal) : compare<__half>(N, d, causal)) && right;
    }
    return right ? 0 : 1;
}
