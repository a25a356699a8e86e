// Warp-level functions: shuffles with partial masks inside branches, votes, matching, reductions of whole numbers,
// the mask of active lanes, and one atomic for all threads of a branch by a coalesced group.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#define CHECK(call)                                                                                    \
    do {                                                                                               \
        cudaError_t status = (call);                                                                   \
        if (status != cudaSuccess) {                                                                   \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status));       \
            std::exit(1);                                                                              \
        }                                                                                              \
    } while (0)

namespace cg = cooperative_groups;

constexpr unsigned kFull = 0xffffffffu;
constexpr unsigned kLow = 0x0000ffffu;

// What one lane found out.
struct Results {
    int from_branch;
    unsigned votes;
    int any, all;
    unsigned same;
    int all_same;
    unsigned sum, least, bits;
    int branch_mask_ok;
};

__global__ void use_warp(const int *in, Results *results) {
    const unsigned lane = threadIdx.x;
    const int value = in[lane];
    Results own;

    // Each half of the warp shuffles on its own, in its own branch: one to the left, one crosswise.
    if (lane < 16) {
        own.from_branch = __shfl_down_sync(kLow, value, 1, 16);
    } else {
        own.from_branch = __shfl_xor_sync(~kLow, value, 5);
    }

    own.votes = __ballot_sync(kFull, value > 50);
    own.any = __any_sync(kFull, value > 1000);
    own.all = __all_sync(kFull, value >= 0);
    own.same = __match_any_sync(kFull, value % 5);
    __match_all_sync(kFull, value / 1000, &own.all_same);
    own.sum = __reduce_add_sync(kFull, static_cast<unsigned>(value));
    own.least = __reduce_min_sync(kFull, static_cast<unsigned>(value));

    // Lanes of a branch may run apart from each other, but each must see itself and no lane of the other side.
    const unsigned odd = __ballot_sync(kFull, value & 1);
    if (value & 1) {
        const unsigned active = __activemask();
        own.branch_mask_ok = (active >> lane & 1) && (active & ~odd) == 0;
        own.bits = __reduce_or_sync(odd, 1u << (value % 32));
    } else {
        const unsigned active = __activemask();
        own.branch_mask_ok = (active >> lane & 1) && (active & odd) == 0;
        own.bits = __reduce_xor_sync(~odd, 1u << (value % 32));
    }
    results[lane] = own;
}

// Keeps the values above a limit, in any order; the threads that arrive together share one atomic.
__global__ void filter(const int *in, int count, int limit, int *out, int *kept) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && in[i] > limit) {
        const cg::coalesced_group together = cg::coalesced_threads();
        int first = 0;
        if (together.thread_rank() == 0) {
            first = atomicAdd(kept, static_cast<int>(together.size()));
        }
        first = together.shfl(first, 0);
        out[first + together.thread_rank()] = in[i];
    }
}

static int count_wrong(const std::vector<int> &in, const std::vector<Results> &results) {
    unsigned votes = 0, sum = 0, least = ~0u, odd_bits = 0, even_bits = 0;
    for (int lane = 0; lane < 32; ++lane) {
        votes |= unsigned(in[lane] > 50) << lane;
        sum += in[lane];
        least = std::min(least, unsigned(in[lane]));
        (in[lane] & 1 ? odd_bits |= 1u << in[lane] % 32 : even_bits ^= 1u << in[lane] % 32);
    }
    int wrong = 0;
    for (int lane = 0; lane < 32; ++lane) {
        const Results &own = results[lane];
        unsigned same = 0;
        for (int other = 0; other < 32; ++other) {
            same |= unsigned(in[other] % 5 == in[lane] % 5) << other;
        }
        wrong += own.from_branch != in[lane < 16 ? std::min(lane + 1, 15) : lane ^ 5];
        wrong += own.votes != votes || own.any != 0 || own.all == 0 || own.same != same || own.all_same == 0;
        wrong += own.sum != sum || own.least != least || own.branch_mask_ok != 1;
        wrong += own.bits != (in[lane] & 1 ? odd_bits : even_bits);
    }
    return wrong;
}

int main() {
    const int count = 20000;
    const int limit = 60;
    std::vector<int> in(count);
    unsigned state = 3;
    for (int &value : in) {
        state = state * 1664525u + 1013904223u;
        value = (state >> 16) % 100;
    }
    int *device_in = nullptr, *device_out = nullptr, *device_kept = nullptr;
    Results *device_results = nullptr;
    CHECK(cudaMalloc(&device_in, count * sizeof(int)));
    CHECK(cudaMalloc(&device_out, count * sizeof(int)));
    CHECK(cudaMalloc(&device_kept, sizeof(int)));
    CHECK(cudaMalloc(&device_results, 32 * sizeof(Results)));
    CHECK(cudaMemcpy(device_in, in.data(), count * sizeof(int), cudaMemcpyHostToDevice));
    CHECK(cudaMemset(device_kept, 0, sizeof(int)));
    use_warp<<<1, 32>>>(device_in, device_results);
    filter<<<(count + 255) / 256, 256>>>(device_in, count, limit, device_out, device_kept);
    CHECK(cudaGetLastError());

    std::vector<Results> results(32);
    std::vector<int> out(count);
    int kept = 0;
    CHECK(cudaMemcpy(results.data(), device_results, 32 * sizeof(Results), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(&kept, device_kept, sizeof(int), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(out.data(), device_out, count * sizeof(int), cudaMemcpyDeviceToHost));
    int *to_free[] = {device_in, device_out, device_kept};
    for (int *pointer : to_free) {
        CHECK(cudaFree(pointer));
    }
    CHECK(cudaFree(device_results));

    const int wrong = count_wrong(in, results);
    in.erase(std::remove_if(in.begin(), in.end(), [](int value) { return value <= limit; }), in.end());
    out.resize(std::min(std::max(kept, 0), count));
    std::sort(in.begin(), in.end());
    std::sort(out.begin(), out.end());
    const bool right = wrong == 0 && in == out;
    std::printf("warp primitives: %d wrong, %d values kept: %s\n", wrong, kept, right ? "PASS" : "FAIL");
    return right ? 0 : 1;
}
