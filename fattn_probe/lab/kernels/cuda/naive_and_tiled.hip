// The naive and the tiled kernel as a HIP program.
#include "gpu_hip.h"

#include "harness.h"

int main(int argc, char **argv) { return harness(argc, argv); }
