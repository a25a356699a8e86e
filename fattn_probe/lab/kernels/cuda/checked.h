// An error from the runtime ends the program with a message that names the place.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECKED(call)                                                                                                  \
    do {                                                                                                               \
        const cudaError_t status_ = (call);                                                                            \
        if (status_ != cudaSuccess) {                                                                                  \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_));                      \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)
