// The naive and the tiled kernel as a CUDA program.
#include "gpu_cuda.h"

#include "harness.h"

int main(int argc, char **argv) { return harness(argc, argv); }
