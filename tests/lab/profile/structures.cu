// Copies of whole structures by one warp: no load of a GPU has 12, 20 or 160 bytes.
#include <vector>

constexpr int WARP = 32;

struct Node { // aligned to 4 bytes
    int words[5];
};

struct Tagged { // a structure within another: its address is a multiple of 8 for every second lane only
    struct {
        float x, y;
    } pair;
    int tag;
};

struct Tile { // aligned to 16 bytes
    float4 rows[10];
};

template <class T> __global__ void global_copy(const T *in, T *out) { out[threadIdx.x] = in[threadIdx.x]; }

__global__ void global_pair_copy(const Tagged *in, Tagged *out) { out[threadIdx.x].pair = in[threadIdx.x].pair; }

// Each lane stores its own structure, and loads that of its neighbour.
template <class T> __global__ void shared_copy(const T *in, T *out) {
    __shared__ T tile[WARP];
    tile[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x ^ 1];
}

template <class T> bool copies() {
    std::vector<char> bytes(WARP * sizeof(T));
    for (size_t i = 0; i < bytes.size(); i++) {
        bytes[i] = static_cast<char>(i % 251);
    }
    T *in = nullptr, *out = nullptr;
    cudaMalloc(&in, bytes.size());
    cudaMalloc(&out, bytes.size());
    cudaMemcpy(in, bytes.data(), bytes.size(), cudaMemcpyHostToDevice);
    global_copy<T><<<1, WARP>>>(in, out);
    std::vector<char> found(bytes.size());
    cudaMemcpy(found.data(), out, bytes.size(), cudaMemcpyDeviceToHost);
    shared_copy<T><<<1, WARP>>>(in, out);
    return found == bytes && cudaDeviceSynchronize() == cudaSuccess;
}

int main() {
    Tagged *tagged = nullptr;
    cudaMalloc(&tagged, 2 * WARP * sizeof(Tagged));
    global_pair_copy<<<1, WARP>>>(tagged, tagged + WARP);
    return copies<float3>() && copies<Node>() && copies<Tile>() ? 0 : 1;
}
