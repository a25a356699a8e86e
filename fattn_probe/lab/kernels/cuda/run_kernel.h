// Launches one kernel on arrays in a folder, whose files are named after the kernel's arguments. Reads the inputs, and
// writes the outputs and the seconds of each timed run. fattn_probe/lab/kernels/tilelang_attention.py writes the main()
// that calls it.
#pragma once

#include <cuda_runtime.h>

#include "timed.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

struct ArrayArgument {
    const char *name;
    size_t bytes;
    bool is_output;
};

// The bytes of a file, read or written whole.
inline void transfer(const std::string &path, const char *mode, std::vector<char> &bytes) {
    FILE *file = std::fopen(path.c_str(), mode);
    const bool reads = *mode == 'r';
    const size_t done = !file   ? 0
                        : reads ? std::fread(bytes.data(), 1, bytes.size(), file)
                                : std::fwrite(bytes.data(), 1, bytes.size(), file);
    if (!file || done != bytes.size() || std::fclose(file) != 0) {
        std::perror(path.c_str());
        std::exit(1);
    }
}

template <class... Parameters>
int run_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, char **words,
               const std::vector<ArrayArgument> &arrays) {
    const std::string folder = words[1];
    const int warmup = std::atoi(words[2]), repeats = std::atoi(words[3]);
    std::vector<void *> memory(arrays.size()), arguments(arrays.size());
    for (size_t i = 0; i < arrays.size(); i++) {
        CHECKED(cudaMalloc(&memory[i], arrays[i].bytes));
        arguments[i] = &memory[i];
        if (!arrays[i].is_output) {
            std::vector<char> bytes(arrays[i].bytes);
            transfer(folder + "/" + arrays[i].name, "rb", bytes);
            CHECKED(cudaMemcpy(memory[i], bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
        }
    }
    CHECKED(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
    std::vector<char> seconds;
    for (int run = 0; run < 1 + warmup + repeats; run++) {
        const double time =
            milliseconds([&] { CHECKED(cudaLaunchKernel(kernel, grid, block, arguments.data(), shared, nullptr)); }) /
            1000.0;
        CHECKED(cudaDeviceSynchronize());
        if (run > warmup) {
            seconds.insert(seconds.end(), (const char *)&time, (const char *)(&time + 1));
        }
    }
    transfer(folder + "/seconds", "wb", seconds);
    for (size_t i = 0; i < arrays.size(); i++) {
        if (arrays[i].is_output) {
            std::vector<char> bytes(arrays[i].bytes);
            CHECKED(cudaMemcpy(bytes.data(), memory[i], bytes.size(), cudaMemcpyDeviceToHost));
            transfer(folder + "/" + arrays[i].name, "wb", bytes);
        }
        CHECKED(cudaFree(memory[i]));
    }
    return 0;
}
