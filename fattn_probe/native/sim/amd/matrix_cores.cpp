// Compiled for one AMD architecture. Unlike NVIDIA's kernels, its kernels keep denormals, so these functions must too.
#if defined(SIMT_GFX_NUMBER)
#include "matrix_cores.h"

#if SIMT_GFX_NUMBER >= 0x1100
#include "rdna_matrices.h"
#else
#include "cdna_sums.h"
#endif

namespace simt::amd {
namespace {

#if SIMT_GFX_NUMBER >= 0x1100
constexpr bool rdna4 = !rdna3;
#else
constexpr bool rdna3 = false, rdna4 = false;
#endif

// The position of element (x, y) of a matrix: (row, k) for A, (column, k) for B, (column, row) for C and D. x runs
// along the lanes. `chunk` consecutive y, of `bits` bits each, are in the registers of one lane. The next chunk is in
// the next of `groups` groups of lanes; the chunk after the last group is in further registers of the first group.
template <int width, int groups, int chunk, int bits> struct Layout {
    static constexpr int lane(int y) { return width * (y / chunk % groups); }
    static constexpr int first_bit(int y) { return (y / (chunk * groups) * chunk + y % chunk) * bits; }

    static Words load(const LaneWords *registers, int y, int x) {
        Words words;
        memcpy(&words, &registers[first_bit(y) / 32][lane(y) + x], sizeof(words));
        return words >> (first_bit(y) % 32);
    }
    static void store(LaneWords *registers, int y, int x, Words words) {
        uint32_t *const place = &registers[first_bit(y) / 32][lane(y) + x];
        if constexpr (bits < 32) {
            const Words mask = Words{} + (((1u << bits) - 1) << first_bit(y) % 32);
            Words others;
            memcpy(&others, place, sizeof(others));
            words = (others & ~mask) | (words << (first_bit(y) % 32) & mask);
        }
        memcpy(place, &words, sizeof(words));
    }
};

// The layout of A and B. On RDNA3, a lane has all k of a row, and so has the lane 16 above, for the odd rows of D.
template <int width, int K, int bits> struct FactorLayout {
    static constexpr int groups = rdna3 ? 1 : rdna4 ? 2 : 64 / width;
    static constexpr int chunk = rdna4 && bits == 16 ? 4 : K / groups;
    using type = Layout<width, groups, chunk, bits>;
};
// The layout of C and D.
template <int width, int bits = 32>
using ResultLayout = Layout<width, rdna3 || rdna4 ? 2 : 64 / width,
                            rdna3   ? 1
                            : rdna4 ? 8
                                    : 4,
                            bits>;

[[maybe_unused]] float at(const Floats &values, int i) { return values[i]; }
[[maybe_unused]] int at(const Ints &values, int i) { return values[i]; }
[[maybe_unused]] ScaledNumber at(const Scaled &values, int i) { return {values.value[i], values.exponent[i]}; }

// D of `width` x `width` results; A and B are K deep. `multiply(a, b, c)` returns the new c, the words of 8 columns of
// C, from a[k] of their row and b[k] of their columns.
template <class A, class B, int width, int K, class Results, class Multiply>
void product(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d, Multiply multiply) {
    using Factors = typename FactorLayout<width, K, A::bits>::type;
    using Vector = decltype(A::decode(Words{}));
    constexpr int parts = width / columns, lanes = rdna3 ? 2 * width : width; // on RDNA3, odd rows are made from copies
    Vector of_a[lanes / columns][K], of_b[lanes / columns][K];
    for (int part = 0; part < lanes / columns; part++) {
        for (int k = 0; k < K; k++) {
            of_a[part][k] = A::decode(Factors::load(a, k, columns * part));
            of_b[part][k] = B::decode(Factors::load(b, k, columns * part));
        }
    }
    for (int row = 0; row < width; row++) {
        const int copy = rdna3 ? row % 2 * parts : 0;
        decltype(at(Vector{}, 0)) of_row[K];
        for (int k = 0; k < K; k++) {
            of_row[k] = at(of_a[copy + row / columns][k], row % columns);
        }
        for (int x = 0; x < width; x += columns) {
            Results::store(d, row, x, multiply(of_row, of_b[copy + x / columns], Results::load(c, row, x)));
        }
    }
}

template <int K> Words integers(const int *a, const Ints *b, Words c) {
    for (int k = 0; k < K; k++) {
        c += as<Words>(a[k] * b[k]);
    }
    return c;
}

} // namespace

#if SIMT_GFX_NUMBER >= 0x1100
using HalfFactor = WithExponent<Half, rdna_zero>;
using BfloatFactor = WithExponent<std::conditional_t<rdna3, Flushed<Bfloat, true>, Bfloat>, rdna_zero>;

void wmma_f32_16x16x16_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<HalfFactor, HalfFactor, 16, 16, ResultLayout<16>>(a, b, c, d, in_steps<Floats, 16, false>);
}
void wmma_f32_16x16x16_bf16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<BfloatFactor, BfloatFactor, 16, 16, ResultLayout<16>>(a, b, c, d, in_steps<Doubles, 16, false>);
}
void wmma_i32_16x16x16_iu8(bool a_signed, bool b_signed, bool clamp, const LaneWords *a, const LaneWords *b,
                           const LaneWords *c, LaneWords *d) {
    const auto multiply = [clamp](const int *x, const Ints *y, Words sum) {
        const Ints old = as<Ints>(sum), products = as<Ints>(integers<16>(x, y, Words{}));
        const Ints made = as<Ints>(sum + as<Words>(products));
        const Ints overflow = ((old ^ made) & (products ^ made)) < 0;
        const Ints limit = old < 0 ? Ints{} + INT32_MIN : Ints{} + INT32_MAX;
        return as<Words>(clamp && overflow ? limit : made);
    };
    using Results = ResultLayout<16>;
    if (a_signed) {
        b_signed ? product<Byte<true>, Byte<true>, 16, 16, Results>(a, b, c, d, multiply)
                 : product<Byte<true>, Byte<false>, 16, 16, Results>(a, b, c, d, multiply);
    } else {
        b_signed ? product<Byte<false>, Byte<true>, 16, 16, Results>(a, b, c, d, multiply)
                 : product<Byte<false>, Byte<false>, 16, 16, Results>(a, b, c, d, multiply);
    }
}
#if SIMT_GFX_NUMBER < 0x1200
void wmma_f16_16x16x16_f16(bool high, const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    const int shift = high ? 16 : 0;
    const auto multiply = [shift](const ScaledNumber *x, const Scaled *y, Words sum) {
        return (sum & ~(0xFFFFu << shift)) | in_steps<Floats, 16, true>(x, y, sum >> shift) << shift;
    };
    product<HalfFactor, HalfFactor, 16, 16, ResultLayout<16>>(a, b, c, d, multiply);
}
#else
void wmma_f16_16x16x16_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<HalfFactor, HalfFactor, 16, 16, ResultLayout<16, 16>>(a, b, c, d, in_steps<Floats, 16, true>);
}
#endif

#else
void mfma_f32_16x16x4_f32(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Float, Float, 16, 4, ResultLayout<16>>(a, b, c, d, in_order<4>);
}
#if SIMT_GFX_NUMBER == 0x942
using HalfFactor = WithExponent<Half, cdna_zero>;
using BfloatFactor = WithExponent<Bfloat, cdna_zero>;
using ShortFactor = WithExponent<ShortFloat, cdna_zero>;

void mfma_f32_16x16x16_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<HalfFactor, HalfFactor, 16, 16, ResultLayout<16>>(a, b, c, d, fused<16, 8>);
}
void mfma_f32_16x16x16_bf16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<BfloatFactor, BfloatFactor, 16, 16, ResultLayout<16>>(a, b, c, d, fused<16, 8>);
}
void mfma_f32_16x16x8_xf32(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<ShortFactor, ShortFactor, 16, 8, ResultLayout<16>>(a, b, c, d, fused<8, 4>);
}
void mfma_i32_16x16x32_i8(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Byte<true>, Byte<true>, 16, 32, ResultLayout<16>>(a, b, c, d, integers<32>);
}
void mfma_i32_32x32x16_i8(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Byte<true>, Byte<true>, 32, 16, ResultLayout<32>>(a, b, c, d, integers<16>);
}
#else
constexpr bool flushes = SIMT_GFX_NUMBER == 0x90a;
using HalfFactor = std::conditional_t<flushes, Flushed<Half, false>, Half>;
using BfloatFactor = std::conditional_t<flushes, Flushed<Bfloat, false>, Bfloat>;

void mfma_f32_16x16x16_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<HalfFactor, HalfFactor, 16, 16, ResultLayout<16>>(a, b, c, d, in_pairs<16, 4, flushes>);
}
void mfma_f32_16x16x8_bf16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<BfloatFactor, BfloatFactor, 16, 8, ResultLayout<16>>(a, b, c, d, in_pairs<8, 2, flushes>);
}
#if SIMT_GFX_NUMBER != 0x908
void mfma_f32_16x16x16_bf16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<BfloatFactor, BfloatFactor, 16, 16, ResultLayout<16>>(a, b, c, d, in_pairs<16, 4, flushes>);
}
#endif
void mfma_i32_16x16x16_i8(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Byte<true>, Byte<true>, 16, 16, ResultLayout<16>>(a, b, c, d, integers<16>);
}
void mfma_i32_32x32x8_i8(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Byte<true>, Byte<true>, 32, 8, ResultLayout<32>>(a, b, c, d, integers<8>);
}
#endif
#endif

} // namespace simt::amd
#endif
