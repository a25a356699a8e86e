// Clustering by k-means: each point finds its nearest centre, block-wide sums of float and int gather in shared memory
// with atomics and go to global memory with more atomics, and a third kernel moves the centres until no point changes.
#include <cuda_runtime.h>

#include <cfloat>
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

constexpr int kCentres = 7;
constexpr int kThreads = 128;

__global__ void assign(const float3* points, int count, const float3* centres, int* nearest, int* changed) {
    __shared__ float3 all[kCentres];
    if (threadIdx.x < kCentres) all[threadIdx.x] = centres[threadIdx.x];
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    bool moved = false;
    if (i < count) {
        const float3 p = points[i];
        float least = FLT_MAX;
        int best = -1;
        for (int c = 0; c < kCentres; ++c) {
            const float dx = p.x - all[c].x, dy = p.y - all[c].y, dz = p.z - all[c].z;
            const float distance = dx * dx + dy * dy + dz * dz;
            if (distance < least) {
                least = distance;
                best = c;
            }
        }
        moved = nearest[i] != best;
        nearest[i] = best;
    }
    const int in_block = __syncthreads_count(moved);
    if (threadIdx.x == 0 && in_block > 0) atomicAdd(changed, in_block);
}

__global__ void gather(const float3* points, int count, const int* nearest, float* sums, int* members) {
    __shared__ float own_sums[kCentres * 3];
    __shared__ int own_members[kCentres];
    for (int i = threadIdx.x; i < kCentres * 3; i += blockDim.x) own_sums[i] = 0.0f;
    for (int i = threadIdx.x; i < kCentres; i += blockDim.x) own_members[i] = 0;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        const int c = nearest[i];
        atomicAdd(&own_sums[3 * c + 0], points[i].x);
        atomicAdd(&own_sums[3 * c + 1], points[i].y);
        atomicAdd(&own_sums[3 * c + 2], points[i].z);
        atomicAdd(&own_members[c], 1);
    }
    __syncthreads();
    for (int j = threadIdx.x; j < kCentres * 3; j += blockDim.x) atomicAdd(sums + j, own_sums[j]);
    for (int j = threadIdx.x; j < kCentres; j += blockDim.x) atomicAdd(members + j, own_members[j]);
}

// Moves the centres and clears the sums for the next round.
__global__ void move_centres(float3* centres, float* sums, int* members) {
    const int c = threadIdx.x;
    const float size = float(members[c]);
    if (size > 0.0f) centres[c] = make_float3(sums[3 * c] / size, sums[3 * c + 1] / size, sums[3 * c + 2] / size);
    sums[3 * c] = sums[3 * c + 1] = sums[3 * c + 2] = 0.0f;
    members[c] = 0;
}

int main() {
    const int count = 6000, blocks = (count + kThreads - 1) / kThreads, most_rounds = 50;
    // Points in clouds around known places, far enough apart that the order of the float sums decides nothing.
    std::mt19937 random(12);
    auto spread = [&] { return float(int(random() % 2001) - 1000) / 1000.0f; };
    std::vector<float3> points(count), places(kCentres), start(kCentres);
    for (int c = 0; c < kCentres; ++c) places[c] = {float(c % 3) * 6.0f, float(c / 3) * 6.0f, float(c * c % 5) * 6.0f};
    for (int i = 0; i < count; ++i) {
        const float3 place = places[i % kCentres];
        points[i] = {place.x + spread(), place.y + spread(), place.z + spread()};
    }
    for (int c = 0; c < kCentres; ++c) start[c] = {places[c].x + 4 * spread(), places[c].y + 4 * spread(), places[c].z};

    float3 *points_device, *centres;
    float* sums;
    int *nearest, *members, *changed;
    CHECK(cudaMalloc(&points_device, count * sizeof(float3)));
    CHECK(cudaMalloc(&centres, kCentres * sizeof(float3)));
    CHECK(cudaMalloc(&sums, 3 * kCentres * sizeof(float)));
    CHECK(cudaMalloc(&nearest, count * sizeof(int)));
    CHECK(cudaMalloc(&members, kCentres * sizeof(int)));
    CHECK(cudaMalloc(&changed, sizeof(int)));
    CHECK(cudaMemcpy(points_device, points.data(), count * sizeof(float3), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(centres, start.data(), kCentres * sizeof(float3), cudaMemcpyHostToDevice));
    CHECK(cudaMemset(sums, 0, 3 * kCentres * sizeof(float)));
    CHECK(cudaMemset(members, 0, kCentres * sizeof(int)));
    CHECK(cudaMemset(nearest, 0xff, count * sizeof(int)));

    int rounds = 0;
    for (int moved = 1; moved > 0 && rounds < most_rounds; ++rounds) {
        CHECK(cudaMemset(changed, 0, sizeof(int)));
        assign<<<blocks, kThreads>>>(points_device, count, centres, nearest, changed);
        gather<<<blocks, kThreads>>>(points_device, count, nearest, sums, members);
        move_centres<<<1, kCentres>>>(centres, sums, members);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(&moved, changed, sizeof(int), cudaMemcpyDeviceToHost));
    }
    std::vector<int> found(count);
    std::vector<float3> ends(kCentres);
    CHECK(cudaMemcpy(found.data(), nearest, count * sizeof(int), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(ends.data(), centres, kCentres * sizeof(float3), cudaMemcpyDeviceToHost));
    for (void* pointer : {(void*)points_device, (void*)centres, (void*)sums, (void*)nearest, (void*)members,
                          (void*)changed})
        CHECK(cudaFree(pointer));

    // Each point must be with its own cloud, and each centre at the mean of its cloud.
    int wrong = 0;
    for (int i = 0; i < count; ++i) wrong += found[i] != i % kCentres;
    double worst = 0.0;
    for (int c = 0; c < kCentres; ++c) {
        double x = 0.0, y = 0.0, z = 0.0;
        int size = 0;
        for (int i = c; i < count; i += kCentres, ++size) x += points[i].x, y += points[i].y, z += points[i].z;
        const double error = std::hypot(ends[c].x - x / size, ends[c].y - y / size, ends[c].z - z / size);
        worst = error <= worst ? worst : error;
    }
    const bool good = wrong == 0 && worst < 1e-4 && rounds < most_rounds;
    std::printf("kmeans: %d points, %d rounds, %d wrong, centres %s: %s\n", count, rounds, wrong,
                worst < 1e-4 ? "right" : "off", good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
