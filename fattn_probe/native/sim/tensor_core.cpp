#include "tensor_core.h"

#include "environment.h"
#include "tensor_core_avx512.h"
#include "vectors.h"

#include <cmath>
#include <cstring>

namespace simt {
namespace {

// A factor's value, and the power of two that aligns its products: that of its exponent field, 0 for a zero.
struct Factors {
    Floats value;
    Floats power;
};

Factors factors_of_halves(const uint16_t *halves) {
    Halves packed;
    memcpy(&packed, halves, sizeof(packed));
    const Ints bits = convert<Ints>(packed);
    const Ints exponent = bits & 0x7C00;
    const Ints field = ((exponent == 0 ? Ints{} + 0x400 : exponent) << 13) + (112 << 23);
    return {floats_of(packed), as<Floats>((bits & 0x7FFF) == 0 ? Ints{} : field)};
}

// The operands of `rows` x 8 results: a[row][k], and b[k][column] with one vector for each k.
struct Operands {
    Floats a[16][2], a_power[16][2];
    Floats b[16], b_power[16];
    Floats largest{}; // power of any factor, by lane: 65536 stands for an infinity or a NaN

    // Eight consecutive k of a row of A.
    void set_a(int row, int k, const uint16_t *halves) {
        const Factors factors = factors_of_halves(halves);
        a[row][k / 8] = factors.value;
        a_power[row][k / 8] = factors.power;
        note(factors.power);
    }
    // `count` rows of B, from k on: element i of `halves[column]` is row k + i of that column.
    void set_b(int k, int count, const uint16_t (*halves)[8]) {
        for (int i = 0; i < count; i++) {
            uint16_t row[columns];
            for (int column = 0; column < columns; column++) {
                row[column] = halves[column][i];
            }
            const Factors factors = factors_of_halves(row);
            b[k + i] = factors.value;
            b_power[k + i] = factors.power;
            note(factors.power);
        }
    }
    void note(Floats power) { largest = power > largest ? power : largest; }
    bool finite() const {
        float most = 0.0f;
        for (int i = 0; i < columns; i++) {
            most = largest[i] > most ? largest[i] : most;
        }
        return most < 65536.0f;
    }
};

// One group of products and the accumulator, aligned and truncated to integers; multiply by `unit` for the values.
struct Aligned {
    Ints sum[2]; // two, so that 17 terms below 2^27 cannot overflow
    Floats unit;
    Ints no_product;
};

Aligned align(const Operands &operands, int row, int first, Floats c) {
    const auto *a = reinterpret_cast<const float *>(operands.a[row]);
    const auto *a_power = reinterpret_cast<const float *>(operands.a_power[row]);
    Floats largest{};
#pragma GCC unroll 16
    for (int k = first; k < first + group; k++) {
        const Floats power = a_power[k] * operands.b_power[k];
        largest = power > largest ? power : largest;
    }
    const Ints no_product = largest == 0.0f;
    const Floats c_power = as<Floats>(as<Ints>(c) & 0x7F800000);
    largest = c_power > largest ? c_power : largest;
    // The largest exponent becomes 23 + extra: 24 bits and `extra` before the point.
    const Ints shift = (no_product ? Ints{} + (127 << 23) : as<Ints>(largest)) - ((23 + extra) << 23);
    const Floats scale = as<Floats>((254 << 23) - shift);
    Aligned aligned{{convert<Ints>(c * scale), Ints{}}, as<Floats>(shift), no_product};
#pragma GCC unroll 16
    for (int k = first; k < first + group; k++) {
        aligned.sum[k & 1] += convert<Ints>(a[k] * operands.b[k] * scale);
    }
    return aligned;
}

// Truncates toward zero to 24 bits. `sticky` keeps a trace of the cut bits in the last bit, so that rounding to f16
// afterwards equals one rounding of the exact sum.
HalfOfFloats truncate(Doubles exact, bool sticky) {
    Longs bits = as<Longs>(exact);
    if (sticky) {
        bits |= (bits & 0x1FFFFFFF) != 0 ? Longs{} + 0x20000000 : Longs{};
    }
    return convert<HalfOfFloats>(as<Doubles>(bits & ~0x1FFFFFFFll));
}

Floats sum_of(const Aligned &aligned, Floats c, bool sticky) {
    Floats result;
    for (int half = 0; half < 2; half++) {
        const auto even = convert<Doubles>(part_of<HalfOfInts>(aligned.sum[0], half));
        const auto odd = convert<Doubles>(part_of<HalfOfInts>(aligned.sum[1], half));
        const auto unit = convert<Doubles>(part_of<HalfOfFloats>(aligned.unit, half));
        set_part(result, half, truncate((even + odd) * unit, sticky));
    }
    return aligned.no_product ? c : result;
}

// Infinities and NaNs propagate as in any sum of products.
Floats plain_row(const Operands &operands, int row, int K, Floats c) {
    for (int k = 0; k < K; k++) {
        c += operands.a[row][k / 8][k % 8] * operands.b[k];
    }
    return c;
}

bool any(Ints lanes) {
    const Longs pairs = as<Longs>(lanes);
    return (pairs[0] | pairs[1] | pairs[2] | pairs[3]) != 0;
}

// `finite`: no operand is an infinity or a NaN. `sticky`: the result will be rounded to f16.
Floats multiply_row(const Operands &operands, int row, int K, Floats c, bool finite, bool sticky) {
    if (__builtin_expect(!finite || any((as<Ints>(c) & 0x7F800000) == 0x7F800000), 0)) {
        return plain_row(operands, row, K, c);
    }
    for (int first = 0; first < K; first += group) {
        const bool last = first + group >= K;
        c = sum_of(align(operands, row, first, c), c, sticky && last);
    }
    return c;
}

// The fragments of m16n8kK: register 2*(k/8) + (row/8) of A holds an 8x8 tile, row by row; those of B are columns.
Operands operands_m16n8(int K, const LaneWords *a, const LaneWords *b) {
    Operands operands;
    for (int k = 0; k < K; k += 8) {
        for (int row = 0; row < 16; row++) {
            operands.set_a(row, k, reinterpret_cast<const uint16_t *>(&a[2 * (k / 8) + row / 8][4 * (row % 8)]));
        }
        operands.set_b(k, 8, reinterpret_cast<const uint16_t (*)[8]>(b[k / 8]));
    }
    for (int k = K; k < group; k++) { // a group longer than K: m16n8k8 on Hopper
        for (int row = 0; row < 16; row++) {
            operands.a[row][k / 8] = operands.a_power[row][k / 8] = Floats{};
        }
        operands.b[k] = operands.b_power[k] = Floats{};
    }
    return operands;
}

bool use_avx512() {
    static const bool use = has_avx512() && !environment().portable;
    return use;
}

// The position of an element of C and D.
struct Place {
    int number, lane;
};

// D of `rows` rows, in f32: `place(row, column)`.
template <class Places>
void multiply_f32(const Operands &operands, int rows, int K, const LaneWords *c, LaneWords *d, Places place) {
    const bool finite = operands.finite();
    for (int row = 0; row < rows; row++) {
        Floats sum;
        for (int column = 0; column < columns; column++) {
            const auto [number, lane] = place(row, column);
            sum[column] = float_of_bits(c[number][lane]);
        }
        sum = multiply_row(operands, row, K, sum, finite, false);
        for (int column = 0; column < columns; column++) {
            const auto [number, lane] = place(row, column);
            d[number][lane] = bits_of_float(sum[column]);
        }
    }
}

// In f16: `place(row, pair)` of two columns.
template <class Places>
void multiply_f16(const Operands &operands, int rows, int K, const LaneWords *c, LaneWords *d, Places place) {
    const bool finite = operands.finite();
    for (int row = 0; row < rows; row++) {
        Floats sum;
        for (int pair = 0; pair < columns / 2; pair++) {
            const auto [number, lane] = place(row, pair);
            const FloatPair both = floats_of_pair(c[number][lane]);
            sum[2 * pair] = both[0];
            sum[2 * pair + 1] = both[1];
        }
        sum = multiply_row(operands, row, K, sum, finite, true);
        for (int pair = 0; pair < columns / 2; pair++) {
            const auto [number, lane] = place(row, pair);
            d[number][lane] = pair_of_floats(FloatPair{sum[2 * pair], sum[2 * pair + 1], 0, 0});
        }
    }
}

} // namespace

void mma_f16_accumulate_f32(int K, const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    if (use_avx512() && mma_f16_accumulate_f32_avx512(K, a, b, c, d)) {
        return;
    }
    // c0, c1: row lane/4, columns 2*(lane%4) and the next; c2, c3: the row eight below.
    multiply_f32(operands_m16n8(K, a, b), 16, K, c, d,
                 [](int row, int column) { return Place{row / 8 * 2 + column % 2, row % 8 * 4 + column / 2}; });
}

void mma_f16_accumulate_f16(int K, const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    if (use_avx512() && mma_f16_accumulate_f16_avx512(K, a, b, c, d)) {
        return;
    }
    multiply_f16(operands_m16n8(K, a, b), 16, K, c, d,
                 [](int row, int pair) { return Place{row / 8, row % 8 * 4 + pair}; });
}

void mma_bf16_accumulate_f32(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    const auto element = [](const LaneWords *m, int tile, int line, int k) {
        return reinterpret_cast<const uint16_t *>(&m[tile][4 * line])[k];
    };
    const auto exponent = [](uint16_t bits) { return (bits >> 7 & 255) - 127; };
    for (int out = 0; out < 128; out++) {
        const int row = out / 8, column = out % 8, reg = row / 8 * 2 + column % 2, lane = row % 8 * 4 + column / 2;
        double sum = float_of_bits(c[reg][lane]);
        for (int first = 0; first < 16; first += group) {
            double terms[17] = {sum};
            int largest = sum == 0 ? -1000 : std::ilogb(sum);
            for (int k = first; k < first + group; k++) {
                const uint16_t x = element(a, 2 * (k / 8) + row / 8, row % 8, k % 8);
                const uint16_t y = element(b, k / 8, column, k % 8);
                terms[k - first + 1] =
                    static_cast<double>(float_of_bfloat(x)) * static_cast<double>(float_of_bfloat(y));
                if (terms[k - first + 1] != 0) {
                    largest = std::max(largest, exponent(x) + exponent(y));
                }
            }
            const double unit = std::ldexp(1.0, largest - 23 - extra);
            double total = 0;
            for (int i = 0; i <= group; i++) {
                total += std::trunc(terms[i] / unit);
            }
            const double exact = largest == -1000 ? 0.0 : total * unit;
            float cut = static_cast<float>(exact);
            if (std::fabs(static_cast<double>(cut)) > std::fabs(exact)) {
                cut = std::nextafter(cut, 0.0f);
            }
            sum = cut;
        }
        d[reg][lane] = bits_of_float(static_cast<float>(sum));
    }
}

namespace {

// Lanes of quad pair q: rows and columns 0-3 in lanes 4q.., 4-7 in lanes 16+4q..
int quad_lane(int quad, int index) { return 4 * quad + index % 4 + (index >= 4 ? 16 : 0); }

Operands operands_m8n8k4(int quad, const LaneWords *a, const LaneWords *b, bool b_by_rows) {
    Operands operands;
    uint16_t columns_of_b[8][8] = {};
    for (int i = 0; i < 8; i++) {
        const int lane = quad_lane(quad, i);
        uint16_t halves[8] = {};
        memcpy(halves, &a[0][lane], 4);
        memcpy(halves + 2, &a[1][lane], 4);
        operands.set_a(i, 0, halves);
        operands.a[i][1] = operands.a_power[i][1] = Floats{};
        for (int j = 0; j < 4; j++) {
            const auto half = static_cast<uint16_t>(b[j / 2][lane] >> (16 * (j % 2)));
            if (b_by_rows) { // row i % 4, columns 0-3 or 4-7
                columns_of_b[j + (i >= 4 ? 4 : 0)][i % 4] = half;
            } else { // column i, rows 0-3
                columns_of_b[i][j] = half;
            }
        }
    }
    operands.set_b(0, 4, columns_of_b);
    for (int k = 4; k < group; k++) {
        operands.b[k] = operands.b_power[k] = Floats{};
    }
    return operands;
}

} // namespace

void mma_m8n8k4_f32(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    for (int quad = 0; quad < 4; quad++) {
        // Element i of a lane: row (lane & 1) + (i & 2), column (i & 4) + (lane & 2) + (i & 1).
        multiply_f32(operands_m8n8k4(quad, a, b, false), 8, 4, c, d, [quad](int row, int column) {
            return Place{(column & 4) | (row & 2) | (column & 1),
                         quad_lane(quad, (row & 4) | (column & 2) | (row & 1))};
        });
    }
}

void mma_m8n8k4_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    for (int quad = 0; quad < 4; quad++) {
        multiply_f16(operands_m8n8k4(quad, a, b, true), 8, 4, c, d,
                     [quad](int row, int pair) { return Place{pair, quad_lane(quad, row)}; });
    }
}

} // namespace simt
