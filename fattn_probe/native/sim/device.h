// The simulated GPU: the figures that its driver would report.
#pragma once

#include "launch.h"

#include <cuda_runtime_api.h>

#include <string>

namespace simt {

const cudaDeviceProp &device_properties();

// Registers of a kernel: measured if known, else the most that its launch bounds allow.
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
