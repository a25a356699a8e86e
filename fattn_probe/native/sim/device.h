// The simulated GPU: the figures that its driver would report.
#pragma once

#include "launch.h"

#include <cuda_runtime_api.h>

#include <string>

namespace simt {

const cudaDeviceProp &device_properties();

// The resources of a kernel, as ptxas reported them: registers per thread, static shared and local memory in bytes.
// Without figures: the most registers that its launch bounds allow, and no memory. For a kernel of a whole program: too
// few registers to be a limit, and the static shared memory that its threads declared in an earlier launch. `origin` is
// the origin of the figures (device/origin.py); empty if unknown.
struct Resources {
    int registers;
    size_t shared = 0;
    size_t local = 0;
    bool registers_known = true, shared_known = true; // if not, a low number is assumed
    std::string origin;
};
Resources resources_of(const Description &kernel);

// Stores the bytes of static shared memory that a launch of a kernel declared; returns whether they are more than
// before.
bool learn_static(const Description &kernel, size_t bytes);

// The value of one attribute of cudaDeviceGetAttribute.
int device_attribute(cudaDeviceAttr attribute);

// "void f(...) [with int D = 64; bool b = false]" -> {"f", "64 false"}.
struct KernelName {
    std::string name;
    std::string values;
};
KernelName kernel_name(const std::string &signature);

} // namespace simt
