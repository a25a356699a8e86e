// amd_matrix INSTRUCTION: instructions from stdin, the registers of C, A and B of each, [register][lane]; those of D to
// stdout. Exit code 3: this architecture does not have it.
#include "amd/intrinsics.h"
#include "amd/matrix_cores.h"

#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace {

using simt::LaneWords;

template <int of_c, int of_a, class Work> int run(Work work) {
    LaneWords in[of_c + 2 * of_a], out[of_c] = {};
    while (fread(in, sizeof(in), 1, stdin) == 1) {
        work(in + of_c, in + of_c + of_a, in, out);
        fwrite(out, sizeof(out), 1, stdout);
    }
    return 0;
}

// An instruction that each lane executes for itself.
template <class Operation> int run_lanes(Operation operation) {
    return run<1, 1>([=](const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
        for (int lane = 0; lane < simt::warp_size; lane++) {
            d[0][lane] = operation(a[0][lane], b[0][lane], c[0][lane]);
        }
    });
}

} // namespace

int main(int, char **words) {
    using namespace simt::amd;
    const auto asks_for = [&](const char *name) { return strcmp(words[1], name) == 0; };
    if (asks_for("v_dot2_f32_f16")) {
        return run_lanes([](uint32_t a, uint32_t b, uint32_t c) {
            float sum = simt::float_of_bits(c);
            simt::ptx::v_dot2_f32_f16(sum, __half2::of_bits(a), __half2::of_bits(b));
            return simt::bits_of_float(sum);
        });
    }
    if (asks_for("v_perm_b32")) {
        return run_lanes(__builtin_amdgcn_perm);
    }
    for (const bool clamp : {false, true}) {
        if (asks_for(clamp ? "v_dot4_i32_i8/clamp" : "v_dot4_i32_i8")) {
            return run_lanes([=](int a, int b, int c) { return __builtin_amdgcn_sdot4(a, b, c, clamp); });
        }
        if (asks_for(clamp ? "v_dot4_i32_iu8/clamp" : "v_dot4_i32_iu8")) {
            return run_lanes([=](int a, int b, int c) { return __builtin_amdgcn_sudot4(true, a, false, b, c, clamp); });
        }
    }
#if SIMT_GFX_NUMBER >= 0x1100
    constexpr bool rdna4 = SIMT_GFX_NUMBER >= 0x1200;
    const auto bytes = [](bool a_signed, bool b_signed, bool clamp) {
        return [=](const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
            wmma_i32_16x16x16_iu8(a_signed, b_signed, clamp, a, b, c, d);
        };
    };
    if (asks_for("v_wmma_f32_16x16x16_f16")) {
        return run<8, rdna4 ? 4 : 8>(wmma_f32_16x16x16_f16);
    }
    if (asks_for("v_wmma_f32_16x16x16_bf16")) {
        return run<8, rdna4 ? 4 : 8>(wmma_f32_16x16x16_bf16);
    }
    for (int i = 0; i < 8; i++) {
        char name[100];
        snprintf(name, sizeof(name), "v_wmma_i32_16x16x16_iu8/%d%d%d", i >> 2, i >> 1 & 1, i & 1);
        if (asks_for(name)) {
            return run<8, rdna4 ? 2 : 4>(bytes(i >> 2, i >> 1 & 1, i & 1));
        }
    }
#if SIMT_GFX_NUMBER >= 0x1200
    if (asks_for("v_wmma_f16_16x16x16_f16")) {
        return run<4, 4>(wmma_f16_16x16x16_f16);
    }
#else
    for (const bool high : {false, true}) {
        if (asks_for(high ? "v_wmma_f16_16x16x16_f16/high" : "v_wmma_f16_16x16x16_f16")) {
            return run<8, 8>([=](const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
                wmma_f16_16x16x16_f16(high, a, b, c, d);
            });
        }
    }
#endif
#else
    if (asks_for("v_mfma_f32_16x16x4_f32")) {
        return run<4, 1>(mfma_f32_16x16x4_f32);
    }
    if (asks_for("v_mfma_f32_16x16x16_f16")) {
        return run<4, 2>(mfma_f32_16x16x16_f16);
    }
#if SIMT_GFX_NUMBER == 0x942
    if (asks_for("v_mfma_f32_16x16x8_xf32")) {
        return run<4, 2>(mfma_f32_16x16x8_xf32);
    }
    if (asks_for("v_mfma_i32_16x16x32_i8")) {
        return run<4, 2>(mfma_i32_16x16x32_i8);
    }
    if (asks_for("v_mfma_i32_32x32x16_i8")) {
        return run<16, 2>(mfma_i32_32x32x16_i8);
    }
#else
    if (asks_for("v_mfma_f32_16x16x8_bf16")) {
        return run<4, 1>(mfma_f32_16x16x8_bf16);
    }
    if (asks_for("v_mfma_i32_16x16x16_i8")) {
        return run<4, 1>(mfma_i32_16x16x16_i8);
    }
    if (asks_for("v_mfma_i32_32x32x8_i8")) {
        return run<16, 1>(mfma_i32_32x32x8_i8);
    }
#endif
#if SIMT_GFX_NUMBER != 0x908
    if (asks_for("v_mfma_f32_16x16x16_bf16")) {
        return run<4, 2>(mfma_f32_16x16x16_bf16);
    }
#endif
#endif
    return 3;
}
