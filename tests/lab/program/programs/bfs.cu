// Breadth-first search of a graph from queue to queue: a thread takes a vertex of the frontier, claims neighbours with
// atomicCAS and appends those it won to the next frontier with atomicAdd. The host stops when a frontier is empty.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#define CHECK(call)                                                                                      \
    do {                                                                                                 \
        cudaError_t status_ = (call);                                                                    \
        if (status_ != cudaSuccess) {                                                                    \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_));        \
            std::exit(1);                                                                                \
        }                                                                                                \
    } while (0)

constexpr int kUnseen = -1;

// Edges of vertex v are targets[first[v]] to targets[first[v + 1] - 1].
struct Graph {
    std::vector<int> first, targets;
    int vertices() const { return int(first.size()) - 1; }
};

__device__ int largest_frontier;

__global__ void expand(const int* __restrict__ first, const int* __restrict__ targets, int* distance,
                       const int* frontier, int frontier_size, int* next, int* next_size, int depth) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) atomicMax(&largest_frontier, frontier_size);
    if (i >= frontier_size) return;
    const int vertex = frontier[i];
    for (int edge = first[vertex]; edge < first[vertex + 1]; ++edge) {
        const int target = targets[edge];
        if (atomicCAS(&distance[target], kUnseen, depth) == kUnseen) next[atomicAdd(next_size, 1)] = target;
    }
}

Graph random_graph(int vertices, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::vector<int>> neighbours(vertices);
    auto connect = [&](int a, int b) {
        neighbours[a].push_back(b);
        neighbours[b].push_back(a);
    };
    // Mostly short edges, so that the search has many levels; one vertex in 16 stays alone.
    for (int v = 0; v < vertices; ++v) {
        if (v % 16 == 5) continue;
        for (int i = 0; i < 3; ++i) {
            const int other = (v + 1 + int(random() % 200)) % vertices;
            if (other % 16 != 5) connect(v, other);
        }
    }
    Graph graph;
    graph.first.push_back(0);
    for (const auto& list : neighbours) {
        graph.targets.insert(graph.targets.end(), list.begin(), list.end());
        graph.first.push_back(int(graph.targets.size()));
    }
    return graph;
}

std::vector<int> search_on_host(const Graph& graph, int source) {
    std::vector<int> distance(graph.vertices(), kUnseen);
    std::queue<int> waiting;
    distance[source] = 0;
    waiting.push(source);
    for (; !waiting.empty(); waiting.pop()) {
        const int vertex = waiting.front();
        for (int edge = graph.first[vertex]; edge < graph.first[vertex + 1]; ++edge) {
            const int target = graph.targets[edge];
            if (distance[target] != kUnseen) continue;
            distance[target] = distance[vertex] + 1;
            waiting.push(target);
        }
    }
    return distance;
}

int* to_device(const std::vector<int>& values) {
    int* pointer = nullptr;
    CHECK(cudaMalloc(&pointer, values.size() * sizeof(int)));
    CHECK(cudaMemcpy(pointer, values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice));
    return pointer;
}

int main() {
    const int vertices = 12000, source = 0, threads = 128;
    const Graph graph = random_graph(vertices, 9);
    std::vector<int> distance(vertices, kUnseen);
    distance[source] = 0;
    int *first = to_device(graph.first), *targets = to_device(graph.targets), *distances = to_device(distance);
    int *frontier = to_device(std::vector<int>(vertices, source)), *next = to_device(std::vector<int>(vertices));
    int* next_size = to_device({0});

    int depth = 0, reached = 1;
    for (int size = 1; size > 0;) {
        CHECK(cudaMemset(next_size, 0, sizeof(int)));
        ++depth;
        expand<<<(size + threads - 1) / threads, threads>>>(first, targets, distances, frontier, size, next, next_size,
                                                            depth);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(&size, next_size, sizeof(int), cudaMemcpyDeviceToHost));
        reached += size;
        std::swap(frontier, next);
    }
    int widest = 0;
    CHECK(cudaMemcpyFromSymbol(&widest, largest_frontier, sizeof(int)));
    CHECK(cudaMemcpy(distance.data(), distances, vertices * sizeof(int), cudaMemcpyDeviceToHost));
    for (int* pointer : {first, targets, distances, frontier, next, next_size}) CHECK(cudaFree(pointer));

    const std::vector<int> right = search_on_host(graph, source);
    int wrong = 0;
    for (int v = 0; v < vertices; ++v) wrong += distance[v] != right[v];
    const int farthest = *std::max_element(right.begin(), right.end());
    std::vector<int> at_distance(farthest + 1, 0);
    for (int d : right)
        if (d != kUnseen) ++at_distance[d];
    const bool counts = depth == farthest + 1 &&
                        widest == *std::max_element(at_distance.begin(), at_distance.end()) &&
                        reached == int(vertices - std::count(right.begin(), right.end(), kUnseen));
    const bool good = wrong == 0 && counts;
    std::printf("bfs: %d of %d vertices in %d levels, widest %d, %d wrong: %s\n", reached, vertices, depth, widest,
                wrong, good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}
