#include <cmath>
#include <cstdio>
__global__ void functions(const float *x, float *y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[2 * i] = expf(x[i]);
        y[2 * i + 1] = logf(fabsf(x[i]));
    }
}
double ulps(double exact, float value) {
    return std::fabs(value - exact) / std::ldexp(1.0, std::ilogb(exact) - 23);
}
int main() {
    const int n = 100000;
    float *x, *y;
    cudaMallocManaged(&x, n * sizeof(float));
    cudaMallocManaged(&y, 2 * n * sizeof(float));
    for (int i = 0; i < n; i++) {
        x[i] = -80.0f + 0.0016f * i + 1e-3f;
    }
    functions<<<(n + 255) / 256, 256>>>(x, y, n);
    cudaDeviceSynchronize();
    double exp_error = 0, log_error = 0;
    for (int i = 0; i < n; i++) {
        exp_error = std::fmax(exp_error, ulps(std::exp(double(x[i])), y[2 * i]));
        log_error = std::fmax(log_error, ulps(std::log(std::fabs(double(x[i]))), y[2 * i + 1]));
    }
    printf("%.3f %.3f\n", exp_error, log_error);
}
