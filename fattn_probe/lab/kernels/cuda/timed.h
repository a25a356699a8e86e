// The time that a kernel takes.
#pragma once

#include "checked.h"

// Milliseconds of a launch, from events around it. On a simulated GPU, these are the host's times.
template <typename Launch> float milliseconds(const Launch &launch) {
    cudaEvent_t start, stop;
    CHECKED(cudaEventCreate(&start));
    CHECKED(cudaEventCreate(&stop));
    CHECKED(cudaEventRecord(start));
    launch();
    CHECKED(cudaEventRecord(stop));
    CHECKED(cudaEventSynchronize(stop));
    float found = 0.0f;
    CHECKED(cudaEventElapsedTime(&found, start, stop));
    return found;
}
