// Compaction by votes: a 64-bit __ballot gives each lane its place within the wavefront, one atomic per wavefront its
// place within the block, and one atomic per block its place in the array. Also __any, __all, __ffsll and __shfl.
#include <hip/hip_runtime.h>

#include <algorithm>
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

// How many values were kept, and how many wavefronts kept all of theirs, none, or some.
struct Counts {
    int kept, full, empty, mixed;
};

// Keeps the values above a limit, in any order. Every thread stays to the end, so all lanes take part in the votes.
__global__ void compact(const int* in, int count, int limit, int* out, Counts* counts) {
    __shared__ int block_kept, block_first;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned lane = __lane_id();
    if (threadIdx.x == 0) block_kept = 0;
    __syncthreads();

    const int value = i < count ? in[i] : 0;
    const bool keep = i < count && value > limit;
    const unsigned long long mask = __ballot(keep);
    const int rank = __popcll(mask & ((1ull << lane) - 1));
    int wavefront_first = 0;
    if (__any(keep)) {  // the same for all lanes of a wavefront
        const int leader = __ffsll(mask) - 1;
        if (int(lane) == leader) wavefront_first = atomicAdd(&block_kept, __popcll(mask));
        wavefront_first = __shfl(wavefront_first, leader);
    }
    const bool full = __all(keep);
    if (lane == 0) atomicAdd(full ? &counts->full : mask == 0 ? &counts->empty : &counts->mixed, 1);

    __syncthreads();
    if (threadIdx.x == 0) block_first = atomicAdd(&counts->kept, block_kept);
    __syncthreads();
    if (keep) out[block_first + wavefront_first + rank] = value;
}

// One wavefront; each lane leaves the masks that it saw.
__global__ void show_masks(unsigned long long* masks) {
    const unsigned lane = __lane_id();
    masks[lane] = __ballot(1);
    masks[warpSize + lane] = __ballot(lane % 3 == 0);
    masks[2 * warpSize + lane] = __ballot(int(lane) == warpSize - 1);
}

static int count_wrong_masks(int wavefront) {
    unsigned long long* masks_device;
    std::vector<unsigned long long> masks(3 * wavefront);
    CHECK(hipMalloc(&masks_device, masks.size() * sizeof(masks[0])));
    hipLaunchKernelGGL(show_masks, dim3(1), dim3(wavefront), 0, nullptr, masks_device);
    CHECK(hipGetLastError());
    CHECK(hipMemcpy(masks.data(), masks_device, masks.size() * sizeof(masks[0]), hipMemcpyDeviceToHost));
    CHECK(hipFree(masks_device));
    unsigned long long right[3] = {0, 0, 1ull << (wavefront - 1)};
    for (int lane = 0; lane < wavefront; ++lane) {
        right[0] |= 1ull << lane;
        right[1] |= (unsigned long long)(lane % 3 == 0) << lane;
    }
    int wrong = 0;
    for (int i = 0; i < 3 * wavefront; ++i) wrong += masks[i] != right[i / wavefront];
    return wrong;
}

int main() {
    hipDeviceProp_t properties;
    CHECK(hipGetDeviceProperties(&properties, 0));
    const int wavefront = properties.warpSize;
    const int count = 20011, limit = 60, threads = 256;
    const int blocks = (count + threads - 1) / threads;
    std::vector<int> in(count);
    unsigned state = 7;
    for (int i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        const int kind = i / 500 % 3;  // stretches of large, small and all sorts of values
        in[i] = kind == 0 ? 100 + i : kind == 1 ? i % limit : int((state >> 16) % 100);
    }
    Counts right = {0, 0, 0, 0};
    for (int first = 0; first < blocks * threads; first += wavefront) {
        int kept = 0;
        for (int i = first; i < std::min(first + wavefront, count); ++i) kept += in[i] > limit;
        right.kept += kept;
        ++(kept == wavefront ? right.full : kept == 0 ? right.empty : right.mixed);
    }

    int *in_device, *out_device;
    Counts *counts_device, counts;
    CHECK(hipMalloc(&in_device, count * sizeof(int)));
    CHECK(hipMalloc(&out_device, count * sizeof(int)));
    CHECK(hipMalloc(&counts_device, sizeof(Counts)));
    CHECK(hipMemcpy(in_device, in.data(), count * sizeof(int), hipMemcpyHostToDevice));
    CHECK(hipMemset(counts_device, 0, sizeof(Counts)));
    compact<<<blocks, threads>>>(in_device, count, limit, out_device, counts_device);
    CHECK(hipGetLastError());
    CHECK(hipDeviceSynchronize());
    CHECK(hipMemcpy(&counts, counts_device, sizeof(Counts), hipMemcpyDeviceToHost));
    std::vector<int> out(std::min(std::max(counts.kept, 0), count));
    CHECK(hipMemcpy(out.data(), out_device, out.size() * sizeof(int), hipMemcpyDeviceToHost));
    CHECK(hipFree(in_device));
    CHECK(hipFree(out_device));
    CHECK(hipFree(counts_device));

    in.erase(std::remove_if(in.begin(), in.end(), [](int value) { return value <= limit; }), in.end());
    std::sort(in.begin(), in.end());
    std::sort(out.begin(), out.end());
    const int wrong_masks = count_wrong_masks(wavefront);
    const bool good = wrong_masks == 0 && in == out && counts.kept == right.kept && counts.full == right.full &&
                      counts.empty == right.empty && counts.mixed == right.mixed;
    std::printf("hip_ballot: wavefronts of %d, %d values kept, %d wavefronts full, %d empty, %d mixed: %s\n", wavefront,
                counts.kept, counts.full, counts.empty, counts.mixed, good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
