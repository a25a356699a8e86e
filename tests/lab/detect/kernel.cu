template <int D, int ncols1, int ncols2> // D == head size
static __global__ void kernel(const float * Q, const int ne01, const int64_t nb11, const int64_t nb21) {
    constexpr int nwarps = D/32;
    static_assert(D % 32 == 0, "bad D");
    __shared__ float tile[D/2];
    const int j = threadIdx.y*ncols1 + threadIdx.x; // a * b
    for (int k = 0; k < D/2; k += 32) {
        if (j >= ne01) {
            continue;
        }
        const float * row = Q + int64_t(j)*nb11;
        tile[k] += load<ncols1, ncols2>(row, k);
    }
    __syncthreads();
    tile[j*ncols1 + 1] = tile[0];
    if (amd_mfma_available(cc) && j > 3) {
        tile[j + 2] = 0.0f;
    }
    GGML_ASSERT(j < 7);
    const int64_t offset = nb11*j;
    load_tile<D, oob_check>(row, j + 4, offset);
    auto add = [&] (const int n) {
        tile[n] += 5.0f*n;
    };
    launch_fattn<D, ncols1, ncols2>(j);
    return f<D, ncols1>(tile[0] < 1.0f);
}
