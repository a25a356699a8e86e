// amd_kernels INSTRUCTION: as amd_matrix.cpp, but each instruction is executed by a wave, by clang's name for it.
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>
#if defined(__F16C__)
#include <immintrin.h> // as ggml-impl.h of older releases
#endif

template <class T, int N> using vector = simt::ext_vector<T, N>;

using Kernel = void (*)(const unsigned *, unsigned *);
struct Entry {
    const char * name;
    Kernel kernel;
    size_t bytes_in, bytes_out; // of a lane
};
static std::vector<Entry> & entries() {
    static std::vector<Entry> made;
    return made;
}

// A lane's registers of an operand, [register][lane].
template <class T> __device__ T load(const unsigned *& in) {
    unsigned registers[sizeof(T) / 4];
    for (unsigned & word : registers) {
        word = in[threadIdx.x];
        in += simt::warp_size;
    }
    T operand;
    memcpy((void *) &operand, registers, sizeof(operand));
    return operand;
}
template <class T> __device__ void store(unsigned * out, const T & result) {
    unsigned registers[sizeof(T) / 4];
    memcpy(registers, (const void *) &result, sizeof(result));
    for (unsigned word : registers) {
        out[threadIdx.x] = word;
        out += simt::warp_size;
    }
}

template <class Instruction> __global__ void execute(const unsigned * in, unsigned * out) {
    using AB = typename Instruction::AB;
    using CD = typename Instruction::CD;
    in += blockIdx.x * (2 * sizeof(AB) + sizeof(CD)) / 4 * simt::warp_size;
    const CD c = load<CD>(in);
    const AB a = load<AB>(in);
    const AB b = load<AB>(in);
    store<CD>(out + blockIdx.x * sizeof(CD) / 4 * simt::warp_size, Instruction::result(a, b, c));
}

#define INSTRUCTION(id, name, of_a, of_c, ...)                                                       \
    struct id {                                                                                      \
        using AB = of_a;                                                                             \
        using CD = of_c;                                                                             \
        static __device__ CD result(const AB & a, const AB & b, const CD & c) { return __VA_ARGS__; } \
    };                                                                                               \
    static const bool id##_entered = (entries().push_back({name, execute<id>, 2 * sizeof(of_a) + sizeof(of_c), sizeof(of_c)}), true);

#if SIMT_GFX_NUMBER >= 0x1200
using halves = vector<__half, 8>;
using bfloats = vector<__nv_bfloat16, 8>;
using floats = vector<float, 8>;
using two = vector<int, 2>;
using eight = vector<int, 8>;
INSTRUCTION(f32_f16, "v_wmma_f32_16x16x16_f16", halves, floats, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c))
INSTRUCTION(f32_bf16, "v_wmma_f32_16x16x16_bf16", bfloats, floats, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c))
INSTRUCTION(f16_f16, "v_wmma_f16_16x16x16_f16", halves, halves, __builtin_amdgcn_wmma_f16_16x16x16_f16_w32_gfx12(a, b, c))
INSTRUCTION(i32_iu8, "v_wmma_i32_16x16x16_iu8/110", two, eight, __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, a, true, b, c, false))
#elif SIMT_GFX_NUMBER >= 0x1100
using halves = vector<__half, 16>;
using bfloats = vector<__nv_bfloat16, 16>;
using floats = vector<float, 8>;
using four = vector<int, 4>;
using eight = vector<int, 8>;
INSTRUCTION(f32_f16, "v_wmma_f32_16x16x16_f16", halves, floats, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c))
INSTRUCTION(f32_bf16, "v_wmma_f32_16x16x16_bf16", bfloats, floats, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c))
INSTRUCTION(f16_f16, "v_wmma_f16_16x16x16_f16", halves, halves, __builtin_amdgcn_wmma_f16_16x16x16_f16_w32(a, b, c, false))
INSTRUCTION(f16_high, "v_wmma_f16_16x16x16_f16/high", halves, halves, __builtin_amdgcn_wmma_f16_16x16x16_f16_w32(a, b, c, true))
INSTRUCTION(i32_iu8, "v_wmma_i32_16x16x16_iu8/110", four, eight, __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, a, true, b, c, false))
#else
using halves = vector<__half, 4>;
using bfloats = vector<__nv_bfloat16, 4>;
using floats = vector<float, 4>;
using four = vector<int, 4>;
using sixteen = vector<int, 16>;
INSTRUCTION(f32_f32, "v_mfma_f32_16x16x4_f32", float, floats, __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, 0, 0, 0))
INSTRUCTION(f32_f16, "v_mfma_f32_16x16x16_f16", halves, floats, __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0))
#if SIMT_GFX_NUMBER == 0x942
using two_floats = vector<float, 2>;
INSTRUCTION(f32_xf32, "v_mfma_f32_16x16x8_xf32", two_floats, floats, __builtin_amdgcn_mfma_f32_16x16x8_xf32(a, b, c, 0, 0, 0))
INSTRUCTION(i32_i8, "v_mfma_i32_16x16x32_i8", int64_t, four, __builtin_amdgcn_mfma_i32_16x16x32_i8(a, b, c, 0, 0, 0))
INSTRUCTION(i32_i8_32x32, "v_mfma_i32_32x32x16_i8", int64_t, sixteen, __builtin_amdgcn_mfma_i32_32x32x16_i8(a, b, c, 0, 0, 0))
#else
using two_bfloats = vector<__nv_bfloat16, 2>;
INSTRUCTION(f32_bf16_k8, "v_mfma_f32_16x16x8_bf16", two_bfloats, floats, __builtin_amdgcn_mfma_f32_16x16x8bf16(a, b, c, 0, 0, 0))
INSTRUCTION(i32_i8, "v_mfma_i32_16x16x16_i8", int, four, __builtin_amdgcn_mfma_i32_16x16x16i8(a, b, c, 0, 0, 0))
INSTRUCTION(i32_i8_32x32, "v_mfma_i32_32x32x8_i8", int, sixteen, __builtin_amdgcn_mfma_i32_32x32x8i8(a, b, c, 0, 0, 0))
#endif
#if SIMT_GFX_NUMBER != 0x908
INSTRUCTION(f32_bf16, "v_mfma_f32_16x16x16_bf16", bfloats, floats, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0))
#endif
#endif

// Half of a wave is at each of two instructions.
static __global__ void in_branches(const unsigned * in, unsigned * out) {
    const halves a = load<halves>(in);
    floats c = load<floats>(in);
    if (threadIdx.x % 32 < 16) {
        c = f32_f16::result(a, a, c); // one
    } else {
        c = f32_f16::result(a, a, c); // other
        c[0] += 1;
    }
    store<floats>(out, c);
}
static const bool in_branches_entered = (entries().push_back({"in_branches", in_branches, sizeof(halves) + sizeof(floats), sizeof(floats)}), true);

// What lanes get from other lanes: all of them, and those that an input chooses.
static __global__ void lanes(const unsigned * in, unsigned * out) {
    const int value = load<int>(in), address = load<int>(in), chosen = load<int>(in);
    int results[5] = {};
    results[0] = __builtin_amdgcn_readfirstlane(value);
    results[1] = __builtin_amdgcn_ds_bpermute(address, value);
    __shared__ int shared[simt::warp_size];
    shared[threadIdx.x] = value;
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    results[2] = shared[simt::warp_size - 1 - threadIdx.x];
    __builtin_amdgcn_s_setprio(1);
    if (chosen) {
        results[3] = __builtin_amdgcn_readfirstlane(value);
        results[4] = __builtin_amdgcn_ds_bpermute(address, value);
        __builtin_amdgcn_wave_barrier();
        asm volatile("s_waitcnt vmcnt(%0) lgkmcnt(0)\n\ts_nop 0\n\ts_setprio 0" : : "n"(0) : "memory");
    }
    asm volatile("" ::: "memory");
    for (int result : results) {
        store<int>(out, result);
        out += simt::warp_size;
    }
}
static const bool lanes_entered = (entries().push_back({"lanes", lanes, 12, 20}), true);

static __global__ void medians(const unsigned * in, unsigned * out) {
    const float a = load<float>(in), b = load<float>(in), c = load<float>(in);
    store<float>(out, __builtin_amdgcn_fmed3f(a, b, c));
}
static const bool medians_entered = (entries().push_back({"medians", medians, 12, 4}), true);

static __global__ void unknown(const unsigned *, unsigned * out) {
    asm volatile("s_waitcnt vmcnt(0)\n\tv_frobnicate_b32 %0, 1" : "=v"(out[threadIdx.x])); // unknown
}
static const bool unknown_entered = (entries().push_back({"unknown", unknown, 4, 4}), true);

static __global__ void exponentials(const unsigned * in, unsigned * out) {
    in += blockIdx.x * blockDim.x;
    out += blockIdx.x * blockDim.x;
    out[threadIdx.x] = __float_as_uint(expf(__uint_as_float(in[threadIdx.x])));
}
static __global__ void tangents(const unsigned * in, unsigned * out) {
    in += blockIdx.x * blockDim.x;
    out += blockIdx.x * blockDim.x;
    out[threadIdx.x] = __float_as_uint(tanhf(__uint_as_float(in[threadIdx.x])));
}
static const bool functions_entered = (entries().push_back({"expf", exponentials, 4, 4}), entries().push_back({"tanhf", tangents, 4, 4}), true);

int main(int, char ** words) {
    for (const Entry & entry : entries()) {
        if (strcmp(words[1], entry.name) != 0) {
            continue;
        }
        std::vector<char> input(1 << 20);
        input.resize(fread(input.data(), 1, input.size(), stdin));
        const size_t waves = input.size() / (entry.bytes_in * simt::warp_size);
        std::vector<char> output(waves * entry.bytes_out * simt::warp_size);
        unsigned * in;
        unsigned * out;
        cudaMalloc((void **) &in, input.size());
        cudaMalloc((void **) &out, output.size());
        cudaMemcpy(in, input.data(), input.size(), cudaMemcpyHostToDevice);
        Kernel kernel = entry.kernel;
        kernel<<<waves, simt::warp_size>>>(in, out);
        cudaMemcpy(output.data(), out, output.size(), cudaMemcpyDeviceToHost);
        fwrite(output.data(), 1, output.size(), stdout);
        return 0;
    }
    return 3;
}
