// The simulator's sums of f16 products, without its matrix layouts, for scripts/maintain/amd_sums.py.
#include "amd/dot2.h"
#if SIMT_GFX_NUMBER >= 0x1100
#include "amd/rdna_matrices.h"
#else
#include "amd/cdna_sums.h"
#endif

namespace {

using namespace simt::amd;

#if SIMT_GFX_NUMBER >= 0x1100
using Factor = WithExponent<Half, rdna_zero>;
#else
using Factor = WithExponent<Half, cdna_zero>;
#endif

Words sum(const ScaledNumber *a, const Scaled *b, Words c, [[maybe_unused]] bool packed) {
#if SIMT_GFX_NUMBER >= 0x1100
    return packed ? in_steps<Floats, 16, true>(a, b, c) : in_steps<Floats, 16, false>(a, b, c);
#else
    return fused<16, 8>(a, b, c);
#endif
}

} // namespace

// c += a*b for a[row][k], b[column][k] and c[row][column], all of size 16; c has f32 or, if `packed`, f16 in words.
extern "C" void add_product(const uint16_t *a, const uint16_t *b, uint32_t *c, bool packed) {
    for (int x = 0; x < 16; x += columns) {
        Scaled of_b[16];
        for (int k = 0; k < 16; k++) {
            Words halves;
            for (int i = 0; i < columns; i++) {
                halves[i] = b[16 * (x + i) + k];
            }
            of_b[k] = Factor::decode(halves);
        }
        for (int row = 0; row < 16; row++) {
            ScaledNumber of_a[16];
            for (int k = 0; k < 16; k++) {
                const Scaled all = Factor::decode(Words{} + a[16 * row + k]);
                of_a[k] = {all.value[0], all.exponent[0]};
            }
            Words sums;
            memcpy(&sums, c + 16 * row + x, sizeof(sums));
            sums = sum(of_a, of_b, sums, packed);
            memcpy(c + 16 * row + x, &sums, sizeof(sums));
        }
    }
}

// v_dot2_f32_f16 for `count` lanes: a and b are pairs of f16, and c is f32.
extern "C" void add_pairs_of_lanes(const uint32_t *a, const uint32_t *b, uint32_t *c, int count) {
    for (int i = 0; i < count; i++) {
        const auto low = [](uint32_t pair) { return static_cast<uint16_t>(pair); };
        const auto high = [](uint32_t pair) { return static_cast<uint16_t>(pair >> 16); };
        c[i] = as<uint32_t>(dot2(low(a[i]), low(b[i]), high(a[i]), high(b[i]), as<float>(c[i])));
    }
}
