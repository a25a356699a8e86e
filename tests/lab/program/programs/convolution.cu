// Blurs an image with a separable filter: one kernel for the rows and one for the columns, both with the filter in
// constant memory and with a tile and its halo in shared memory. Pixels outside of the image count as zero.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <cuda_runtime.h>

#define CHECK(call)                                                                                    \
    do {                                                                                               \
        cudaError_t status = (call);                                                                   \
        if (status != cudaSuccess) {                                                                   \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status));       \
            std::exit(1);                                                                              \
        }                                                                                              \
    } while (0)

constexpr int kRadius = 5;
constexpr int kTaps = 2 * kRadius + 1;
constexpr int kTileX = 32;
constexpr int kTileY = 8;

__constant__ float filter[kTaps];

__global__ void convolve_rows(const float *in, float *out, int width, int height) {
    __shared__ float tile[kTileY][kTileX + 2 * kRadius];
    const int first_x = blockIdx.x * kTileX - kRadius;
    const int y = blockIdx.y * kTileY + threadIdx.y;
    for (int i = threadIdx.x; i < kTileX + 2 * kRadius; i += kTileX) {
        const int x = first_x + i;
        tile[threadIdx.y][i] = x >= 0 && x < width && y < height ? in[y * width + x] : 0.0f;
    }
    __syncthreads();

    const int x = blockIdx.x * kTileX + threadIdx.x;
    if (x < width && y < height) {
        float sum = 0.0f;
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
            sum = fmaf(filter[tap], tile[threadIdx.y][threadIdx.x + tap], sum);
        }
        out[y * width + x] = sum;
    }
}

__global__ void convolve_columns(const float *in, float *out, int width, int height) {
    __shared__ float tile[kTileY + 2 * kRadius][kTileX];
    const int x = blockIdx.x * kTileX + threadIdx.x;
    const int first_y = blockIdx.y * kTileY - kRadius;
    for (int i = threadIdx.y; i < kTileY + 2 * kRadius; i += kTileY) {
        const int y = first_y + i;
        tile[i][threadIdx.x] = y >= 0 && y < height && x < width ? in[y * width + x] : 0.0f;
    }
    __syncthreads();

    const int y = blockIdx.y * kTileY + threadIdx.y;
    if (x < width && y < height) {
        float sum = 0.0f;
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
            sum = fmaf(filter[tap], tile[threadIdx.y + tap][threadIdx.x], sum);
        }
        out[y * width + x] = sum;
    }
}

// One pass on the host, `step_x` and `step_y` being 1 in the direction of the filter and 0 in the other one.
static std::vector<double> convolve_on_host(const std::vector<double> &in, const float *taps, int width, int height,
                                            int step_x, int step_y) {
    std::vector<double> out(in.size(), 0.0);
    for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
            for (int tap = 0; tap < kTaps; ++tap) {
                const int from_x = x + step_x * (tap - kRadius);
                const int from_y = y + step_y * (tap - kRadius);
                if (from_x >= 0 && from_x < width && from_y >= 0 && from_y < height) {
                    out[y * width + x] += taps[tap] * in[from_y * width + from_x];
                }
            }
        }
    }
    return out;
}

int main() {
    const int width = 301;
    const int height = 150;
    const size_t bytes = size_t(width) * height * sizeof(float);

    // Not symmetric: a filter applied the wrong way round gives a wrong result.
    float taps[kTaps];
    for (int tap = 0; tap < kTaps; ++tap) {
        taps[tap] = std::exp(-0.1f * (tap - 3) * (tap - 3)) / 5.0f;
    }
    CHECK(cudaMemcpyToSymbol(filter, taps, sizeof(taps)));

    std::vector<float> image(size_t(width) * height);
    unsigned state = 17;
    for (float &pixel : image) {
        state = state * 1664525u + 1013904223u;
        pixel = static_cast<float>(state >> 24) / 255.0f;
    }

    float *device_image = nullptr;
    float *device_rows = nullptr;
    CHECK(cudaMalloc(&device_image, bytes));
    CHECK(cudaMalloc(&device_rows, bytes));
    CHECK(cudaMemcpy(device_image, image.data(), bytes, cudaMemcpyHostToDevice));
    const dim3 block(kTileX, kTileY);
    const dim3 grid((width + kTileX - 1) / kTileX, (height + kTileY - 1) / kTileY);
    convolve_rows<<<grid, block>>>(device_image, device_rows, width, height);
    convolve_columns<<<grid, block>>>(device_rows, device_image, width, height);
    CHECK(cudaGetLastError());
    std::vector<float> result(image.size());
    CHECK(cudaMemcpy(result.data(), device_image, bytes, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(device_image));
    CHECK(cudaFree(device_rows));

    std::vector<double> expected(image.begin(), image.end());
    expected = convolve_on_host(expected, taps, width, height, 1, 0);
    expected = convolve_on_host(expected, taps, width, height, 0, 1);
    int wrong = 0;
    for (size_t i = 0; i < result.size(); ++i) {
        wrong += !(std::fabs(result[i] - expected[i]) < 1e-5);
    }
    std::printf("convolution: %dx%d pixels, %d taps, %d wrong: %s\n", width, height, kTaps, wrong,
                wrong == 0 ? "PASS" : "FAIL");
    return wrong == 0 ? 0 : 1;
}
