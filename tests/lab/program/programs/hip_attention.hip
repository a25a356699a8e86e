// Causal attention of one head on bfloat16 inputs: an online softmax over tiles of K and V in LDS, so the scores never
// reach memory. Four lanes share a query row and add up their parts of a score by __shfl_xor.
#include <hip/hip_bf16.h>
#include <hip/hip_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                                      \
    do {                                                                                                 \
        hipError_t status_ = (call);                                                                     \
        if (status_ != hipSuccess) {                                                                     \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, hipGetErrorString(status_));         \
            std::exit(1);                                                                                \
        }                                                                                                \
    } while (0)

constexpr int kHead = 64;                      // values of a head
constexpr int kLanes = 4;                      // lanes to a query row
constexpr int kPart = kHead / kLanes;          // values of a row in one lane: numbers lane, lane + 4, lane + 8, ...
constexpr int kRows = 32;                      // query rows of a block
constexpr int kKeys = 32;                      // keys of a tile
constexpr int kThreads = kRows * kLanes;

__global__ void __launch_bounds__(kThreads)
    attention(const __hip_bfloat16* q, const __hip_bfloat16* k, const __hip_bfloat16* v, float* out, int length,
              float scale) {
    __shared__ __hip_bfloat16 tile_k[kKeys][kHead], tile_v[kKeys][kHead];
    const int lane = threadIdx.x % kLanes;
    const int row = blockIdx.x * kRows + threadIdx.x / kLanes;
    float query[kPart], sum[kPart] = {};
    for (int i = 0; i < kPart; ++i) {
        query[i] = row < length ? __bfloat162float(q[row * kHead + i * kLanes + lane]) * scale : 0.0f;
    }
    float largest = -INFINITY, total = 0.0f;

    const int last_row = min(int(blockIdx.x + 1) * kRows, length);  // no key after the block's last row is seen
    for (int first = 0; first < last_row; first += kKeys) {
        __syncthreads();  // the previous tile has been used
        for (int i = threadIdx.x; i < kKeys * kHead; i += kThreads) {
            const int key = first + i / kHead;
            const __hip_bfloat16 zero = __float2bfloat16(0.0f);
            tile_k[i / kHead][i % kHead] = key < length ? k[first * kHead + i] : zero;
            tile_v[i / kHead][i % kHead] = key < length ? v[first * kHead + i] : zero;
        }
        __syncthreads();

        float score[kKeys];
        float tile_largest = -INFINITY;
        for (int key = 0; key < kKeys; ++key) {
            float part = 0.0f;
            for (int i = 0; i < kPart; ++i) {
                part = fmaf(query[i], __bfloat162float(tile_k[key][i * kLanes + lane]), part);
            }
            part += __shfl_xor(part, 1, kLanes);
            part += __shfl_xor(part, 2, kLanes);
            score[key] = first + key <= row ? part : -INFINITY;
            tile_largest = fmaxf(tile_largest, score[key]);
        }
        // Every row sees key 0, which is in the first tile, so the largest score is finite from then on.
        const float now_largest = fmaxf(largest, tile_largest);
        const float correction = __expf(largest - now_largest);
        largest = now_largest;
        total *= correction;
        for (int i = 0; i < kPart; ++i) sum[i] *= correction;
        for (int key = 0; key < kKeys; ++key) {
            const float weight = __expf(score[key] - largest);
            total += weight;
            for (int i = 0; i < kPart; ++i) {
                sum[i] = fmaf(weight, __bfloat162float(tile_v[key][i * kLanes + lane]), sum[i]);
            }
        }
    }
    if (row < length) {
        for (int i = 0; i < kPart; ++i) out[row * kHead + i * kLanes + lane] = sum[i] / total;
    }
}

// The largest difference from attention in double on the same inputs.
static double largest_error(const std::vector<__hip_bfloat16>& q, const std::vector<__hip_bfloat16>& k,
                            const std::vector<__hip_bfloat16>& v, const std::vector<float>& out, int length) {
    double worst = 0.0;
    std::vector<double> weights(length);
    for (int row = 0; row < length; ++row) {
        double largest = -INFINITY, total = 0.0;
        for (int key = 0; key <= row; ++key) {
            weights[key] = 0.0;
            for (int i = 0; i < kHead; ++i) {
                weights[key] += double(__bfloat162float(q[row * kHead + i])) * __bfloat162float(k[key * kHead + i]);
            }
            weights[key] /= std::sqrt(double(kHead));
            largest = std::max(largest, weights[key]);
        }
        for (int key = 0; key <= row; ++key) total += weights[key] = std::exp(weights[key] - largest);
        for (int i = 0; i < kHead; ++i) {
            double right = 0.0;
            for (int key = 0; key <= row; ++key) right += weights[key] * __bfloat162float(v[key * kHead + i]) / total;
            const double error = std::abs(out[row * kHead + i] - right);
            worst = error <= worst ? worst : error;  // a NaN is kept
        }
    }
    return worst;
}

int main() {
    hipDeviceProp_t properties;
    CHECK(hipGetDeviceProperties(&properties, 0));
    const int length = 150;
    std::vector<__hip_bfloat16> inputs[3];
    __hip_bfloat16* inputs_device[3];
    const size_t bytes = length * kHead * sizeof(__hip_bfloat16);
    unsigned state = 13;
    for (int n = 0; n < 3; ++n) {
        for (int i = 0; i < length * kHead; ++i) {
            state = state * 1664525u + 1013904223u;
            inputs[n].push_back(__float2bfloat16(float(state >> 8) / float(1 << 22) - 2.0f));
        }
        CHECK(hipMalloc(&inputs_device[n], bytes));
        CHECK(hipMemcpy(inputs_device[n], inputs[n].data(), bytes, hipMemcpyHostToDevice));
    }
    float* out_device;
    std::vector<float> out(length * kHead);
    CHECK(hipMalloc(&out_device, out.size() * sizeof(float)));
    attention<<<(length + kRows - 1) / kRows, kThreads>>>(inputs_device[0], inputs_device[1], inputs_device[2],
                                                          out_device, length, 1.0f / std::sqrt(float(kHead)));
    CHECK(hipGetLastError());
    CHECK(hipMemcpy(out.data(), out_device, out.size() * sizeof(float), hipMemcpyDeviceToHost));
    for (__hip_bfloat16* input : inputs_device) CHECK(hipFree(input));
    CHECK(hipFree(out_device));

    const double error = largest_error(inputs[0], inputs[1], inputs[2], out, length);
    const bool good = error < 1e-5;
    std::printf("hip_attention: wavefronts of %d, %d rows, largest error %.1e: %s\n", properties.warpSize, length,
                error, good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
