#include <cstdio>
#include <cstdlib>
struct Pair { int a, b; };
__global__ void fill(Pair **pairs, int **rest) {
    pairs[threadIdx.x] = new Pair{1, 2};
    rest[threadIdx.x] = (int *) malloc(8);
    rest[threadIdx.x][1] = 3;
}
__global__ void sum(Pair **pairs, int **rest, int *y) {
    y[threadIdx.x] = pairs[threadIdx.x]->a + pairs[threadIdx.x]->b + rest[threadIdx.x][1];
    delete pairs[threadIdx.x];
    free(rest[threadIdx.x]);
}
int main() {
    Pair **pairs;
    int **rest, *y, said[32];
    cudaMalloc(&pairs, 256), cudaMalloc(&rest, 256), cudaMalloc(&y, 128);
    fill<<<1, 32>>>(pairs, rest);
    sum<<<1, 32>>>(pairs, rest, y);
    cudaMemcpy(said, y, 128, cudaMemcpyDeviceToHost);
    printf("%d\n", said[31]);
}
