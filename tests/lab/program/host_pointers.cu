#include <cstdlib>
__global__ void writes(float *o) {
    o[threadIdx.x] = 2;
}
static void launch(float *o) {
    writes<<<1, 32>>>(o);
}
int main(int count, char **) {
    float on_stack[32];
    launch(count == 1 ? static_cast<float *>(malloc(128)) : count == 2 ? new float[32] : on_stack);
}
