#include <cstdlib>
__constant__ float c[4] = {1, 2, 3, 4};
static __device__ float g[4];
namespace inner {
__device__ double wide[8];
__device__ double more[16];
}
__device__ const int fixed[2] = {5, 6};
static int of_host[4];
__global__ void touch(int what, int i) {
    if (what == 0) {
        g[i] = c[i & 3];
    } else if (what == 1) {
        g[0] = c[i];
    } else if (what == 2) {
        inner::wide[i] = 1;
    } else if (what == 3) {
        inner::more[i] += 1;
    } else {
        *reinterpret_cast<double *>(reinterpret_cast<char *>(inner::wide) + i) = fixed[i & 1];
    }
}
int main(int, char **words) {
    touch<<<1, 1>>>(atoi(words[1]), atoi(words[2]));
    return cudaDeviceSynchronize() + of_host[0];
}
