// Moves bodies by their gravitation for a few steps: every block goes over all bodies, one tile in shared memory at
// a time. A body is a float4: its place, and its mass in w.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
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

constexpr int kBlock = 64;
constexpr float kSoftening = 0.05f;
constexpr float kTimeStep = 0.01f;

// What `other` adds to the acceleration of `body`; the softening keeps it finite, also for a body and itself.
__device__ float3 add_pull(float3 acceleration, float4 body, float4 other) {
    const float3 d = make_float3(other.x - body.x, other.y - body.y, other.z - body.z);
    const float inverse = rsqrtf(d.x * d.x + d.y * d.y + d.z * d.z + kSoftening * kSoftening);
    const float pull = other.w * inverse * inverse * inverse;
    acceleration.x += d.x * pull;
    acceleration.y += d.y * pull;
    acceleration.z += d.z * pull;
    return acceleration;
}

// From one set of bodies into another one, since all blocks must see the places from before this step.
__global__ void move(const float4 *bodies, float4 *moved, float4 *velocities, int count) {
    __shared__ float4 tile[kBlock];
    const int i = blockIdx.x * kBlock + threadIdx.x;
    const float4 nothing = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 body = i < count ? bodies[i] : nothing;
    float3 acceleration = make_float3(0.0f, 0.0f, 0.0f);
    for (int start = 0; start < count; start += kBlock) {
        // A body without mass, beyond the end, pulls at nothing.
        const int other = start + threadIdx.x;
        tile[threadIdx.x] = other < count ? bodies[other] : nothing;
        __syncthreads();
#pragma unroll 8
        for (int j = 0; j < kBlock; ++j) {
            acceleration = add_pull(acceleration, body, tile[j]);
        }
        __syncthreads();
    }
    if (i < count) {
        float4 velocity = velocities[i];
        velocity.x += acceleration.x * kTimeStep;
        velocity.y += acceleration.y * kTimeStep;
        velocity.z += acceleration.z * kTimeStep;
        body.x += velocity.x * kTimeStep;
        body.y += velocity.y * kTimeStep;
        body.z += velocity.z * kTimeStep;
        velocities[i] = velocity;
        moved[i] = body;
    }
}

// The same step on the host, in double precision: place and velocity are x, y and z after each other.
static void move_on_host(std::vector<double> &places, std::vector<double> &velocities,
                         const std::vector<float4> &bodies) {
    const size_t count = bodies.size();
    for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j < count; ++j) {
            double d[3];
            double square = double(kSoftening) * kSoftening;
            for (int axis = 0; axis < 3; ++axis) {
                d[axis] = places[3 * j + axis] - places[3 * i + axis];
                square += d[axis] * d[axis];
            }
            const double pull = bodies[j].w / (square * std::sqrt(square));
            for (int axis = 0; axis < 3; ++axis) {
                velocities[3 * i + axis] += d[axis] * pull * kTimeStep;
            }
        }
    }
    for (size_t i = 0; i < 3 * count; ++i) {
        places[i] += velocities[i] * kTimeStep;
    }
}

int main() {
    const int count = 500;
    const int steps = 5;
    std::vector<float4> bodies(count);
    std::vector<double> places;
    std::vector<double> host_velocities(3 * count, 0.0);
    unsigned state = 31;
    auto random = [&state] {
        state = state * 1664525u + 1013904223u;
        return static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
    };
    for (float4 &body : bodies) {
        body.x = random();
        body.y = random();
        body.z = random();
        body.w = (random() + 1.5f) / count;
        places.insert(places.end(), {body.x, body.y, body.z});
    }

    const size_t bytes = count * sizeof(float4);
    float4 *from = nullptr;
    float4 *to = nullptr;
    float4 *velocities = nullptr;
    CHECK(cudaMalloc(&from, bytes));
    CHECK(cudaMalloc(&to, bytes));
    CHECK(cudaMalloc(&velocities, bytes));
    CHECK(cudaMemcpy(from, bodies.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(velocities, 0, bytes));
    for (int step = 0; step < steps; ++step) {
        move<<<(count + kBlock - 1) / kBlock, kBlock>>>(from, to, velocities, count);
        CHECK(cudaGetLastError());
        std::swap(from, to);
        move_on_host(places, host_velocities, bodies);
    }
    std::vector<float4> result(count);
    CHECK(cudaMemcpy(result.data(), from, bytes, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(from));
    CHECK(cudaFree(to));
    CHECK(cudaFree(velocities));

    int wrong = 0;
    for (int i = 0; i < count; ++i) {
        const double error = std::fabs(result[i].x - places[3 * i]) + std::fabs(result[i].y - places[3 * i + 1]) +
                             std::fabs(result[i].z - places[3 * i + 2]);
        wrong += !(error < 1e-5) || result[i].w != bodies[i].w;
    }
    std::printf("nbody: %d bodies, %d steps, %d wrong: %s\n", count, steps, wrong, wrong == 0 ? "PASS" : "FAIL");
    return wrong == 0 ? 0 : 1;
}
