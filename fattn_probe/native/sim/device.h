// The simulated GPU: the figures its driver would give.
#pragma once

#include "launch.h"

#include <cuda_runtime_api.h>

#include <string>

namespace simt {

const cudaDeviceProp &device_properties();

// Registers of a kernel: measured ones if known, else what its launch bounds allow the compiler to use.
int registers_of(const Description &kernel);

// The value of one attribute of cudaDeviceGetAttribute.
int device_attribute(cudaDeviceAttr attribute);

// "void f(...) [with int D = 64; bool b = false]" -> {"f", "64 false"}.
struct KernelName {
    std::string name;
    std::string values;
};
KernelName kernel_name(const std::string &signature);

} // namespace simt
