#include "occupancy.h"

#include "../device.h"
#include "../environment.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace simt::amd {
namespace {

constexpr int simds = 4; // in a compute unit; on RDNA, in a pair, because hipDeviceProp_t counts pairs

// The VGPRs of each SIMD for a lane of one wave, their unit of allocation, the most waves (LLVM, AMDGPUBaseInfo.cpp:
// getTotalNumVGPRs, getVGPRAllocGranule, getAddressableNumVGPRs; HIP counts at most 8 waves on GCN and CDNA).
struct RegisterFile {
    int registers, granule, addressable, waves;
};

RegisterFile register_file() {
    const long number = strtol(environment().gfx.c_str() + 3, nullptr, 16);
    if (number < 0x90a) {
        return {256, 4, 256, 8};
    }
    if (number < 0x1000) {
        return {512, 8, 512, 8};
    }
    const bool large = number == 0x1100 || number == 0x1101 || number == 0x1151 || number >= 0x1200;
    return large ? RegisterFile{1536, 24, 256, 16} : RegisterFile{1024, 16, 256, 16};
}

int waves_of(int threads) { return (threads + device_properties().warpSize - 1) / device_properties().warpSize; }

} // namespace

int resident_threads(int registers) {
    const RegisterFile file = register_file();
    const int each = (std::max(1, registers) + file.granule - 1) / file.granule * file.granule;
    return simds * std::min(file.waves, file.registers / each) * device_properties().warpSize;
}

int occupancy(int registers, int threads, size_t shared) {
    const cudaDeviceProp &device = device_properties();
    const int by_registers = resident_threads(registers) / (waves_of(threads) * device.warpSize);
    return shared == 0 ? by_registers
                       : static_cast<int>(std::min<size_t>(by_registers, device.sharedMemPerMultiprocessor / shared));
}

int most_registers(int threads, int waves) {
    const RegisterFile file = register_file();
    const int resident = std::max(waves, (waves_of(threads) + simds - 1) / simds);
    return std::min(file.addressable, file.registers / resident / file.granule * file.granule);
}

} // namespace simt::amd
