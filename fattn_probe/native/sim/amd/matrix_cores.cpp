// Compiled for one architecture of AMD's. Its kernels run with denormals, other than NVIDIA's: so must these functions.
#if defined(SIMT_GFX_NUMBER)
#include "matrix_cores.h"

#include "../half_bits.h"

#include <cmath>
#include <cstring>

#pragma GCC diagnostic ignored "-Wpsabi" // the vectors below are passed between functions of this file only

namespace simt::amd {
namespace {

constexpr bool rdna3 = SIMT_GFX_NUMBER >= 0x1100 && SIMT_GFX_NUMBER < 0x1200;
constexpr bool rdna4 = SIMT_GFX_NUMBER >= 0x1200;
constexpr bool flushes = SIMT_GFX_NUMBER == 0x90a; // denormals of f16 and bf16, and of their sums

constexpr int columns = 16; // computed at once

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t Longs __attribute__((vector_size(64)));
typedef float HalfOfFloats __attribute__((vector_size(32)));
typedef int32_t HalfOfInts __attribute__((vector_size(32)));
typedef uint16_t Halves __attribute__((vector_size(32)));

template <class To, class From> To as(From value) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To result;
    memcpy(&result, &value, sizeof(To));
    return result;
}

// Where element (x, y) of a matrix lies: of A (row, k), of B (column, k), of C and D (column, row). x runs along the
// lanes. `chunk` consecutive y lie in the registers of one lane, `bits` each; the next chunk lies in the next of
// `groups` groups of lanes; behind the last group follow the further registers of the first.
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

// Of A and B. On RDNA3 a lane has all k of a row, and so has the lane 16 further.
template <int width, int K, int bits> struct FactorLayout {
    static constexpr int groups = rdna3 ? 1 : rdna4 ? 2 : 64 / width;
    static constexpr int chunk = rdna4 && bits == 16 ? 4 : K / groups;
    using type = Layout<width, groups, chunk, bits>;
};
// Of C and D.
template <int width, int bits = 32>
using ResultLayout = Layout<width, rdna3 || rdna4 ? 2 : 64 / width,
                            rdna3   ? 1
                            : rdna4 ? 8
                                    : 4,
                            bits>;

// How a factor's bits become a number. `smallest`: the exponent of the smallest normal number.
struct Half {
    static constexpr int bits = 16, smallest = -14;
    static Floats decode(Words words) {
        const Halves halves = __builtin_convertvector(words, Halves);
        Floats values;
#if defined(__F16C__)
        for (int i = 0; i < columns; i += 8) {
            HalfBits part;
            memcpy(&part, reinterpret_cast<const char *>(&halves) + 2 * i, sizeof(part));
            const HalfOfFloats numbers = __builtin_ia32_vcvtph2ps256(part);
            memcpy(reinterpret_cast<char *>(&values) + 4 * i, &numbers, sizeof(numbers));
        }
#else
        for (int i = 0; i < columns; i++) {
            values[i] = float_of_half(halves[i]);
        }
#endif
        return values;
    }
    static Words encode(Floats values) { // rounded to nearest even
        Halves halves;
#if defined(__F16C__)
        for (int i = 0; i < columns; i += 8) {
            HalfOfFloats part;
            memcpy(&part, reinterpret_cast<const char *>(&values) + 4 * i, sizeof(part));
            const HalfBits numbers = __builtin_ia32_vcvtps2ph256(part, 0);
            memcpy(reinterpret_cast<char *>(&halves) + 2 * i, &numbers, sizeof(numbers));
        }
#else
        for (int i = 0; i < columns; i++) {
            halves[i] = half_of_float(values[i]);
        }
#endif
        return __builtin_convertvector(halves, Words);
    }
};
struct Bfloat {
    static constexpr int bits = 16, smallest = -126;
    static Floats decode(Words words) { return as<Floats>(words << 16); }
};
struct Float {
    static constexpr int bits = 32;
    static Floats decode(Words words) { return as<Floats>(words); }
};
struct ShortFloat { // xf32: of the fraction 10 bits count
    static constexpr int bits = 32, smallest = -126;
    static Floats decode(Words words) { return as<Floats>(words & ~0x1FFFu); }
};
template <bool is_signed> struct Byte {
    static constexpr int bits = 8;
    static Ints decode(Words words) { return is_signed ? as<Ints>(words << 24) >> 24 : as<Ints>(words & 0xFF); }
};
// A factor whose denormals are zeros, on GPUs that flush them.
template <class Type> struct Flushed : Type {
    static Floats decode(Words words) {
        const Floats values = Type::decode(words);
        const float normal = Type::smallest == -14 ? 0x1p-14f : 0x1p-126f;
        return flushes ? (values < normal && values > -normal ? Floats{} : values) : values;
    }
};
// A factor with its exponent as an adder sees it: a denormal's is that of the smallest normal number, a zero's is low.
struct Scaled {
    Floats value;
    Ints exponent;
};
struct ScaledNumber {
    float value;
    int exponent;
};
Ints exponents(Floats values, int smallest) {
    const Ints bits = as<Ints>(values) & 0x7FFFFFFF, exponent = (bits >> 23) - 127;
    return bits == 0 ? Ints{} - 126 : exponent < smallest ? Ints{} + smallest : exponent;
}
template <class Type> struct WithExponent : Type {
    static Scaled decode(Words words) {
        const Floats values = Type::decode(words);
        return {values, exponents(values, Type::smallest)};
    }
};

float at(const Floats &values, int i) { return values[i]; }
int at(const Ints &values, int i) { return values[i]; }
ScaledNumber at(const Scaled &values, int i) { return {values.value[i], values.exponent[i]}; }

// D of `width` x `width` results; A and B are K deep. `multiply(a, b, c)` is what becomes of c, the words of 16 columns
// of C, given a[k] of their row and b[k] of their columns.
template <class A, class B, int width, int K, class Results, class Multiply>
void product(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d, Multiply multiply) {
    using Factors = typename FactorLayout<width, K, A::bits>::type;
    using Vector = decltype(A::decode(Words{}));
    Vector of_a[width / columns][K], of_b[width / columns][K];
    for (int x = 0; x < width; x += columns) {
        for (int k = 0; k < K; k++) {
            of_a[x / columns][k] = A::decode(Factors::load(a, k, x));
            of_b[x / columns][k] = B::decode(Factors::load(b, k, x));
        }
    }
    for (int row = 0; row < width; row++) {
        decltype(at(Vector{}, 0)) of_row[K];
        for (int k = 0; k < K; k++) {
            of_row[k] = at(of_a[row / columns][k], row % columns);
        }
        for (int x = 0; x < width; x += columns) {
            Results::store(d, row, x, multiply(of_row, of_b[x / columns], Results::load(c, row, x)));
        }
    }
}

// fma(a[k], b[k], c), one k after the other: the compiler contracts.
template <int K> Words in_order(const float *a, const Floats *b, Words c) {
    Floats sum = as<Floats>(c);
    for (int k = 0; k < K; k++) {
        sum += a[k] * b[k];
    }
    return as<Words>(sum);
}

// The same in f16, which rounds each time. The sum is made in f32 and rounded to odd there (half_of_double()).
template <int K> Words in_order_of_halves(const float *a, const Floats *b, Words c) {
    Words halves = c & 0xFFFF;
    for (int k = 0; k < K; k++) {
        const Floats old = Half::decode(halves), zero = {};
        const Floats term = a[k] * b[k] + zero; // 22 bits: exact
        const Floats sum = old + term;
        const Floats part = sum - old, error = (old - (sum - part)) + (term - part); // Knuth's sum of two
        const Ints bits = as<Ints>(sum), larger = (as<Ints>(error) ^ bits) >= 0;
        const Ints cut = error != 0.0f && (bits & 1) == 0 && (bits & 0x7F800000) != 0x7F800000;
        halves = Half::encode(as<Floats>(bits + (cut ? (larger ? Ints{} + 1 : Ints{} - 1) : Ints{})));
    }
    return halves;
}

// A denormal becomes a zero of its sign, on GPUs that flush them.
Floats flushed(Floats values) {
    const Ints bits = as<Ints>(values), sign = bits & static_cast<int32_t>(0x80000000);
    return flushes ? as<Floats>((bits & 0x7F800000) == 0 ? sign : bits) : values;
}

// (a0*b0 + a1*b1) + (a2*b2 + a3*b3), or of two products the first bracket, is added to c; then the next. Each operation
// rounds.
template <int K, int group> Words in_pairs(const float *a, const Floats *b, Words c) {
    Floats sum = as<Floats>(flushes && (c & 0x7F800000) == 0 ? Words{} : c);
    const auto term = [&](int k) { return flushed(a[k] * b[k] + Floats{}); };
    const auto pair = [&](int k) { return flushed(term(k) + term(k + 1)); };
    for (int k = 0; k < K; k += group) {
        sum = flushed(sum + (group == 2 ? pair(k) : flushed(pair(k) + pair(k + 2))));
    }
    return as<Words>(sum);
}

Doubles floor_of(Doubles values) { // below 2^51
    const Doubles shift = Doubles{} + 0x1.8p52, near = values + shift - shift;
    return near > values ? near - 1.0 : near;
}
Doubles power_of_two(Longs exponent) { return as<Doubles>((exponent + 1023) << 52); }

// The end of a fused sum: `sum` of products in units of 2^(exponent - 24), and c, both aligned to the larger exponent
// and cut downwards, c to 24 bits behind the point and the sum to 31. Rounds to nearest.
HalfOfFloats add_aligned(HalfOfInts sum, HalfOfInts exponent, HalfOfFloats c, HalfOfInts c_exponent) {
    const Longs own = __builtin_convertvector(exponent, Longs), other = __builtin_convertvector(c_exponent, Longs);
    const Longs most = own > other ? own : other;
    const Doubles products = floor_of(__builtin_convertvector(sum, Doubles) * power_of_two(own - most + 7));
    const Doubles addend = floor_of(__builtin_convertvector(c, Doubles) * power_of_two(24 - most));
    return __builtin_convertvector((products + 128.0 * addend) * power_of_two(most - 31), HalfOfFloats);
}

// What is no number, or too large for f32 before it is added.
float plain_sum(const ScaledNumber *a, const Scaled *b, int count, int column, float c) {
    double sum = c;
    float infinite = 0.0f;
    for (int k = 0; k < count; k++) {
        const double term = static_cast<double>(a[k].value) * static_cast<double>(b[k].value[column]);
        sum += term;
        infinite += std::fabs(term) >= 0x1p128 ? std::copysign(HUGE_VALF, static_cast<float>(term)) : 0.0f;
    }
    return std::isfinite(sum) ? infinite : static_cast<float>(sum);
}

template <class Vector, class Whole> Vector part_of(const Whole &whole, int i) {
    Vector part;
    memcpy(&part, reinterpret_cast<const char *>(&whole) + i * sizeof(part), sizeof(part));
    return part;
}

// Products, cut toward zero to 24 bits behind the point of the largest exponent (that of a product is the sum of its
// factors'), are summed exactly; add_aligned() adds c. Then the next `group` of products.
template <int K, int group> Words fused(const ScaledNumber *a, const Scaled *b, Words c) {
    Floats sum = as<Floats>(c);
    for (int first = 0; first < K; first += group) {
        Ints exponent = Ints{} - 252;
        for (int k = first; k < first + group; k++) {
            const Ints own = a[k].exponent + b[k].exponent;
            exponent = own > exponent ? own : exponent;
        }
        const Ints c_exponent = exponents(sum, -126);
        Ints unusual = (as<Ints>(sum) & 0x7F800000) == 0x7F800000;
        Floats next;
        for (int part = 0; part < 2; part++) {
            const auto of_part = part_of<HalfOfInts>(exponent, part);
            const Doubles scale = power_of_two(24 - __builtin_convertvector(of_part, Longs));
            HalfOfInts total = {}, strange = {};
            for (int k = first; k < first + group; k++) {
                const auto factor = part_of<HalfOfFloats>(b[k].value, part);
                const Doubles term = static_cast<double>(a[k].value) * __builtin_convertvector(factor, Doubles);
                strange |= __builtin_convertvector(!(term < 0x1p128 && term > -0x1p128), HalfOfInts);
                total += __builtin_convertvector(term * scale, HalfOfInts);
            }
            const HalfOfFloats made =
                add_aligned(total, of_part, part_of<HalfOfFloats>(sum, part), part_of<HalfOfInts>(c_exponent, part));
            memcpy(reinterpret_cast<char *>(&next) + part * sizeof(made), &made, sizeof(made));
            strange |= part_of<HalfOfInts>(unusual, part);
            memcpy(reinterpret_cast<char *>(&unusual) + part * sizeof(strange), &strange, sizeof(strange));
        }
        for (int column = 0; column < columns; column++) {
            if (__builtin_expect(unusual[column] != 0, 0)) {
                next[column] = plain_sum(a + first, b + first, group, column, sum[column]);
            }
        }
        sum = next;
    }
    return as<Words>(sum);
}

template <int K> Words integers(const int *a, const Ints *b, Words c) {
    for (int k = 0; k < K; k++) {
        c += as<Words>(a[k] * b[k]);
    }
    return c;
}

} // namespace

#if SIMT_GFX_NUMBER >= 0x1100
void wmma_f32_16x16x16_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Half, Half, 16, 16, ResultLayout<16>>(a, b, c, d, in_order<16>);
}
void wmma_f32_16x16x16_bf16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Bfloat, Bfloat, 16, 16, ResultLayout<16>>(a, b, c, d, in_order<16>);
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
    product<Half, Half, 16, 16, ResultLayout<16>>(a, b, c, d, [shift](const float *x, const Floats *y, Words sum) {
        return (sum & ~(0xFFFFu << shift)) | in_order_of_halves<16>(x, y, sum >> shift) << shift;
    });
}
#else
void wmma_f16_16x16x16_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Half, Half, 16, 16, ResultLayout<16, 16>>(a, b, c, d, in_order_of_halves<16>);
}
#endif

#else
void mfma_f32_16x16x4_f32(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Float, Float, 16, 4, ResultLayout<16>>(a, b, c, d, in_order<4>);
}
#if SIMT_GFX_NUMBER == 0x942
using ScaledHalf = WithExponent<Half>;
using ScaledBfloat = WithExponent<Bfloat>;
using ScaledShortFloat = WithExponent<ShortFloat>;
void mfma_f32_16x16x16_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<ScaledHalf, ScaledHalf, 16, 16, ResultLayout<16>>(a, b, c, d, fused<16, 8>);
}
void mfma_f32_16x16x16_bf16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<ScaledBfloat, ScaledBfloat, 16, 16, ResultLayout<16>>(a, b, c, d, fused<16, 8>);
}
void mfma_f32_16x16x8_xf32(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<ScaledShortFloat, ScaledShortFloat, 16, 8, ResultLayout<16>>(a, b, c, d, fused<8, 4>);
}
void mfma_i32_16x16x32_i8(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Byte<true>, Byte<true>, 16, 32, ResultLayout<16>>(a, b, c, d, integers<32>);
}
void mfma_i32_32x32x16_i8(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Byte<true>, Byte<true>, 32, 16, ResultLayout<32>>(a, b, c, d, integers<16>);
}
#else
void mfma_f32_16x16x16_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Flushed<Half>, Flushed<Half>, 16, 16, ResultLayout<16>>(a, b, c, d, in_pairs<16, 4>);
}
void mfma_f32_16x16x8_bf16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Flushed<Bfloat>, Flushed<Bfloat>, 16, 8, ResultLayout<16>>(a, b, c, d, in_pairs<8, 2>);
}
#if SIMT_GFX_NUMBER != 0x908
void mfma_f32_16x16x16_bf16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    product<Flushed<Bfloat>, Flushed<Bfloat>, 16, 16, ResultLayout<16>>(a, b, c, d, in_pairs<16, 4>);
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
