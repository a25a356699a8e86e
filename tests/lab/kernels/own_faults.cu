#include "attention.h"
#include <cstdio>
__global__ void spin(float * o, bool forever) {
    printf("thread %d\n", threadIdx.x);
    for (volatile int turn = 1; forever && turn; turn = 1) {
    }
    *o = 0;
}
const char * faulty(const attention<__half> & op) {
    spin<<<1, op.n_q == 6 ? 2048 : 1>>>(op.O, op.n_q == 5);
    return nullptr;
}
float other(float x) { return x; }
