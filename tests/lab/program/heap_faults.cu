#include <cstdio>
#include <cstdlib>
struct Base { int a[4]; __device__ virtual ~Base() { a[0] = 7; } };
struct Row : Base { int b; __device__ ~Row() { b = 1; } };
__global__ void faulty(int what, int *out) {
    int *x = (int *) malloc(40), *y = new int[10];
    Base *row = new Row[3];
    Base *one = new Row;
    for (int i = 0; i < 10; i++) x[i] = y[i] = i;
    delete[] static_cast<Row *>(row);
    delete one;
    if (what == 0) out[0] = x[10];
    if (what == 1) y[-1] = 3;
    if (what == 2) { free(x); out[0] = x[1]; }
    if (what == 3) { delete[] y; y[2] = 1; }
    if (what == 4) { free(x); free(x); }
    if (what == 5) free(x + 1);
    if (what == 6) out[0] = reinterpret_cast<int *>(one)[2];
    out[0] = x[9] + y[9];
    free(x), delete[] y;
}
int main(int, char **words) {
    int *out, host;
    cudaMalloc(&out, 4);
    faulty<<<1, 1>>>(atoi(words[1]), out);
    cudaMemcpy(&host, out, 4, cudaMemcpyDeviceToHost);
    printf("%d\n", host);
}
