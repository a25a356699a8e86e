// The simulated GPU: the figures that its driver would report.
#pragma once

#include "launch.h"

#include <cuda_runtime_api.h>

#include <string>

namespace simt {

const cudaDeviceProp &device_properties();

// What a kernel takes of an SM, as ptxas reported it: registers per thread, static shared and local memory in bytes. If
// it was not measured: the most registers that its launch bounds allow, and no memory. Of a whole program's kernel: so
// few that they limit nothing, and the static shared memory that its threads have declared in an earlier launch.
// `origin` says which of these they are, in the words of device/origin.py; empty for a program's kernel, and if the
// file of figures does not say it.
struct Resources {
    int registers;
    size_t shared = 0;
    size_t local = 0;
    bool registers_known = true, shared_known = true; // if not, as if the kernel used few
    std::string origin;
};
Resources resources_of(const Description &kernel);

// Keeps how many bytes of static shared memory a launch of a kernel has declared; whether that is more than was known.
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
