#include "device.h"

#include "amd/occupancy.h"

#include "device_limits.h"
#include "environment.h"
#include "finding.h"

#include <cuda_occupancy.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

namespace simt {
namespace {

constexpr int unknown_registers = 32;

std::map<std::string, long long> numbers_of(const std::string &specification) {
    std::map<std::string, long long> numbers;
    std::istringstream words(specification.substr(0, specification.find("name=")));
    std::string word;
    while (words >> word) {
        const size_t equals = word.find('=');
        if (equals != std::string::npos) {
            numbers[word.substr(0, equals)] = atoll(word.c_str() + equals + 1);
        }
    }
    return numbers;
}

const std::map<std::string, long long> &numbers() {
    static const std::map<std::string, long long> once = numbers_of(environment().device);
    return once;
}

long long number(const char *key) {
    const auto found = numbers().find(key);
    if (found == numbers().end()) {
        fail(std::string("FATTN_PROBE_DEVICE does not say ") + key);
    }
    return found->second;
}

cudaDeviceProp read_properties() {
    cudaDeviceProp p = {};
    const std::string &all = environment().device;
    const size_t name = all.find("name=");
    snprintf(p.name, sizeof(p.name), "%s", name == std::string::npos ? "simulated GPU" : all.c_str() + name + 5);
    p.major = static_cast<int>(number("major"));
    p.minor = static_cast<int>(number("minor"));
    p.multiProcessorCount = static_cast<int>(number("multiProcessorCount"));
    p.sharedMemPerBlock = static_cast<size_t>(number("sharedMemPerBlock"));
    p.sharedMemPerBlockOptin = static_cast<size_t>(number("sharedMemPerBlockOptin"));
    p.sharedMemPerMultiprocessor = static_cast<size_t>(number("sharedMemPerMultiprocessor"));
    p.reservedSharedMemPerBlock = static_cast<size_t>(number("reservedSharedMemPerBlock"));
    p.regsPerBlock = static_cast<int>(number("regsPerBlock"));
    p.regsPerMultiprocessor = static_cast<int>(number("regsPerMultiprocessor"));
    p.maxThreadsPerMultiProcessor = static_cast<int>(number("maxThreadsPerMultiProcessor"));
    p.maxBlocksPerMultiProcessor = static_cast<int>(number("maxBlocksPerMultiProcessor"));
    p.maxThreadsPerBlock = static_cast<int>(number("maxThreadsPerBlock"));
    p.warpSize = static_cast<int>(number("warpSize"));
    p.totalGlobalMem = static_cast<size_t>(number("totalGlobalMem"));
    p.l2CacheSize = static_cast<int>(number("l2CacheSize"));
    p.integrated = numbers().count("integrated") != 0 ? static_cast<int>(number("integrated")) : 0;
    for (int &size : p.maxGridSize) {
        size = 65535;
    }
    p.maxGridSize[0] = 2147483647;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    return p;
}

// Reads lines of "registers shared local name value value ...". The name "#" is not a kernel: its values are the origin
// of the lines after it. So the simulator of an older fattn-probe, which knows no origins, can read the file too.
std::map<std::string, Resources> read_resources() {
    std::map<std::string, Resources> table;
    std::ifstream file(environment().resources);
    Resources found;
    std::string kernel, origin;
    while (file >> found.registers >> found.shared >> found.local && std::getline(file >> std::ws, kernel)) {
        if (kernel.compare(0, 2, "# ") == 0) {
            origin = kernel.substr(2);
        } else {
            found.origin = origin;
            table[kernel] = found;
        }
    }
    return table;
}

} // namespace

const cudaDeviceProp &device_properties() {
    static const cudaDeviceProp once = read_properties();
    return once;
}

KernelName kernel_name(const std::string &signature) {
    const size_t end = signature.find('(');
    const size_t start = signature.rfind(' ', end);
    KernelName name{signature.substr(start + 1, end - start - 1), ""};
    const size_t with = signature.find("[with ");
    if (with == std::string::npos) {
        return name;
    }
    std::istringstream entries(signature.substr(with + 6, signature.rfind(']') - with - 6));
    std::string entry;
    while (std::getline(entries, entry, ';')) {
        const size_t equals = entry.find(" = ");
        const size_t first = entry.find_first_not_of(' ');
        // "int D = 64" is a value; "T = float" is a type, or explains a typedef.
        if (equals != std::string::npos && entry.substr(first, equals - first).find(' ') != std::string::npos) {
            name.values += (name.values.empty() ? "" : " ") + entry.substr(equals + 3);
        }
    }
    return name;
}

namespace {

// The most static shared memory that launches of each kernel have declared; the address of the signature identifies the
// kernel.
struct Learned {
    std::mutex mutex;
    std::map<const char *, size_t> bytes;
};
Learned &learned() {
    static Learned once;
    return once;
}

// The resources of a kernel in a program, whose registers are unknown.
Resources resources_in_program(const Description &kernel) {
    const std::lock_guard<std::mutex> lock(learned().mutex);
    const auto found = learned().bytes.find(kernel.signature);
    const bool known = found != learned().bytes.end();
    Resources resources = {unknown_registers, known ? found->second : 0};
    resources.registers_known = false;
    resources.shared_known = known;
    return resources;
}

Resources assumed(int registers) {
    Resources resources = {registers};
    resources.origin = "assumed";
    return resources;
}

} // namespace

bool learn_static(const Description &kernel, size_t bytes) {
    const std::lock_guard<std::mutex> lock(learned().mutex);
    const auto [place, is_new] = learned().bytes.emplace(kernel.signature, bytes);
    const bool grew = bytes > place->second;
    place->second = std::max(place->second, bytes);
    return is_new || grew;
}

Resources resources_of(const Description &kernel) {
    static const std::map<std::string, Resources> measured = read_resources();
    const KernelName name = kernel_name(kernel.signature);
    const auto found = measured.find(name.values.empty() ? name.name : name.name + " " + name.values);
    if (found != measured.end()) {
        return found->second;
    }
    const int threads = kernel.launch_bounds.threads;
    if (environment().program) {
        return resources_in_program(kernel);
    }
    if (threads == 0) {
        return assumed(unknown_registers);
    }
    const int blocks = std::max(1, kernel.launch_bounds.min_blocks);
    if (!environment().gfx.empty()) {
        return assumed(amd::most_registers(threads, blocks));
    }
    const int warps = (threads + 31) / 32;
    return assumed(std::min(255, device_properties().regsPerMultiprocessor / (blocks * warps * 32) / 8 * 8));
}

int device_attribute(cudaDeviceAttr attribute) {
    const cudaDeviceProp &p = device_properties();
    static const std::map<cudaDeviceAttr, long long> known = {
        {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
        {cudaDevAttrComputeCapabilityMajor, p.major},
        {cudaDevAttrComputeCapabilityMinor, p.minor},
        {cudaDevAttrMaxSharedMemoryPerBlock, p.sharedMemPerBlock},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, p.sharedMemPerBlockOptin},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, p.sharedMemPerMultiprocessor},
        {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
        {cudaDevAttrWarpSize, p.warpSize},
        {cudaDevAttrL2CacheSize, p.l2CacheSize},
        {cudaDevAttrIntegrated, p.integrated},
        {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
        {cudaDevAttrMaxBlockDimX, p.maxThreadsDim[0]},
        {cudaDevAttrMaxBlockDimY, p.maxThreadsDim[1]},
        {cudaDevAttrMaxBlockDimZ, p.maxThreadsDim[2]},
        {cudaDevAttrMaxGridDimX, p.maxGridSize[0]},
        {cudaDevAttrMaxGridDimY, p.maxGridSize[1]},
        {cudaDevAttrMaxGridDimZ, p.maxGridSize[2]},
        {cudaDevAttrMaxRegistersPerBlock, p.regsPerBlock},
        {cudaDevAttrMaxRegistersPerMultiprocessor, p.regsPerMultiprocessor},
        {cudaDevAttrMaxBlocksPerMultiprocessor, p.maxBlocksPerMultiProcessor},
        {cudaDevAttrReservedSharedMemoryPerBlock, p.reservedSharedMemPerBlock},
        {cudaDevAttrManagedMemory, 1},
        {cudaDevAttrConcurrentManagedAccess, 1},
        {cudaDevAttrClockRate, number("clockRate")},
    };
    const auto found = known.find(attribute);
    return found != known.end() ? static_cast<int>(found->second) : 0; // no other feature is simulated
}

namespace {

// The threads whose registers fit on an SM, which allocates them to whole warps, in units of eight per thread, from the
// four parts of its register file.
int threads_with(int registers) {
    if (!environment().gfx.empty()) {
        return amd::resident_threads(registers);
    }
    constexpr int parts = 4, unit = 8;
    const int warp = (registers + unit - 1) / unit * unit * device_properties().warpSize;
    return device_properties().regsPerBlock / parts / warp * parts * device_properties().warpSize;
}

} // namespace

cudaError_t attributes_of(cudaFuncAttributes *attributes, const Description &kernel) {
    if (attributes == nullptr) {
        return set_last_error(cudaErrorInvalidValue);
    }
    *attributes = {};
    const Resources resources = resources_of(kernel);
    attributes->numRegs = resources.registers;
    attributes->sharedSizeBytes = resources.shared;
    attributes->localSizeBytes = resources.local;
    // The compiler makes sure that a kernel fits within its launch bounds.
    attributes->maxThreadsPerBlock =
        kernel.launch_bounds.threads != 0
            ? kernel.launch_bounds.threads
            : std::min(device_properties().maxThreadsPerBlock, threads_with(attributes->numRegs));
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(dynamic_limit(kernel).bytes);
    attributes->ptxVersion = attributes->binaryVersion = device_properties().major * 10 + device_properties().minor;
    return cudaSuccess;
}

cudaError_t occupancy_of(int *blocks, const Description &kernel, int threads, size_t shared) {
    if (blocks == nullptr || threads <= 0) {
        return set_last_error(cudaErrorInvalidValue);
    }
    if (!environment().gfx.empty()) {
        const Resources resources = resources_of(kernel);
        *blocks =
            amd::occupancy(resources.registers_known ? resources.registers : 0, threads, shared + resources.shared);
        return cudaSuccess;
    }
    // NVIDIA's own occupancy calculator, a header of the CUDA runtime.
    cudaOccDeviceProp properties(device_properties());
    cudaFuncAttributes attributes;
    cudaOccDeviceState state;
    cudaOccResult result;
    attributes_of(&attributes, kernel);
    cudaOccFuncAttributes occupancy_attributes(attributes);
    occupancy_attributes.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &occupancy_attributes, &state, threads, shared) !=
        CUDA_OCC_SUCCESS) {
        return set_last_error(cudaErrorInvalidValue);
    }
    *blocks = result.activeBlocksPerMultiprocessor;
    return cudaSuccess;
}

} // namespace simt
