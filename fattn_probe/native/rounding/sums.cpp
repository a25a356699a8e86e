// The sums of the rounding model, compiled. Its NumPy code (verdict/truth/rounding_model: functions.py, tensor_core.py)
// defines every bit. No code is shared with the simulator, so that a mistake cannot hide in both.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace {

constexpr long WIDTH = 64;               // numbers computed together
constexpr long COLUMNS = 32;             // sums of a matrix computed together
constexpr int NONE = -64, LOWEST = -100; // as in tensor_core.py
constexpr int NOT_FINITE = 128;          // the exponent of infinities and NaNs

template <class To, class From> To as(From value) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To result;
    memcpy(&result, &value, sizeof(To));
    return result;
}

float power_of_two(int exponent) { return as<float>((exponent + 127) << 23); }

int exponent_of(float x) { return (as<int32_t>(x) >> 23 & 255) - 127; }

// Rounds to f16, ties to even: adding, then subtracting, 1.5 * 2^42 times the binade of x leaves 11 bits.
float half_of(double x) {
    const double size = std::fabs(x);
    const double binade = as<double>(as<int64_t>(size) & int64_t(0x7FF) << 52);
    const double magic = std::max(binade, 0x1p-14) * 0x1.8p42;
    const double rounded = (size + magic) - magic;
    return float(std::copysign(size >= 65520 ? std::numeric_limits<double>::infinity() : rounded, x));
}

constexpr auto powers = [] { // 2 to the power of i/128
    std::array<double, 128> found{};
    for (int i = 0; i < 128; i++) {
        found[i] = __builtin_exp2(i / 128.0);
    }
    return found;
}();

template <bool HALF> float fused(float a, float b, float c) {
    return HALF ? half_of(double(a) * b + c) : __builtin_fmaf(a, b, c);
}

// Adds one product to each of n sums; the steps between factors are mostly 0 or 1, which g++ can vectorise.
template <bool HALF>
void add_products(long n, const float *a, long a_step, const float *b, long b_step, float *__restrict sums) {
    if (b_step == 1 && a_step == 0) {
        const float factor = *a;
        for (long i = 0; i < n; i++) {
            sums[i] = fused<HALF>(factor, b[i], sums[i]);
        }
    } else if (b_step == 1 && a_step == 1) {
        for (long i = 0; i < n; i++) {
            sums[i] = fused<HALF>(a[i], b[i], sums[i]);
        }
    } else {
        for (long i = 0; i < n; i++) {
            sums[i] = fused<HALF>(a[i * a_step], b[i * b_step], sums[i]);
        }
    }
}

// The exponent that aligns a factor's products; `least` is the exponent of the smallest normal number.
int8_t alignment(float factor, int least) { return factor == 0 ? NONE : std::max(exponent_of(factor), least); }

// Adds one group of products to COLUMNS sums exactly, and rounds to `fraction` bits or, if `fraction` is 0, to f16. a
// has a factor for each of `terms` rows of b; `of_a` and `of_b` are the exponents of a and b.
void add_group(long terms, const float *a, const int8_t *of_a, const float *b, const int8_t *of_b, int bits,
               int fraction, float *__restrict sums) {
    int8_t most[COLUMNS];
    std::fill(most, most + COLUMNS, int8_t(-128));
    for (long k = 0; k < terms; k++) {
        for (long i = 0; i < COLUMNS; i++) {
            const int8_t sum = of_a[k] + of_b[k * COLUMNS + i];
            most[i] = sum > most[i] ? sum : most[i];
        }
    }
    int exponent[COLUMNS], total[COLUMNS] = {};
    float scale[COLUMNS];
    for (long i = 0; i < COLUMNS; i++) {
        const int own = exponent_of(sums[i]), limit = own == NOT_FINITE || own < LOWEST ? LOWEST : own;
        exponent[i] = most[i] > limit ? most[i] : limit;
        scale[i] = power_of_two(bits - exponent[i]);
    }
    for (long k = 0; k < terms; k++) {
        for (long i = 0; i < COLUMNS; i++) {
            total[i] += int(a[k] * b[k * COLUMNS + i] * scale[i]);
        }
    }
    const int64_t mask = ~((int64_t(1) << (52 - fraction)) - 1);
    for (long i = 0; i < COLUMNS; i++) {
        const double exact = (total[i] + double(std::trunc(sums[i] * scale[i]))) * power_of_two(exponent[i] - bits);
        const float rounded = fraction ? float(as<double>(as<int64_t>(exact) & mask)) : half_of(exact);
        sums[i] = exponent_of(sums[i]) == NOT_FINITE ? sums[i] : rounded;
    }
}

} // namespace

extern "C" {

// Whether this processor has the instructions that the library is compiled for.
int usable() {
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}

void to_half(long n, const float *x, float *result) {
    for (long i = 0; i < n; i++) {
        result[i] = half_of(x[i]);
    }
}

// ex2.approx.ftz.f32 of n numbers (functions.py): `table` corrects the rounded power of each fraction. A second table
// has the powers for the first 7 bits, and a Taylor series computes the rest.
void powers_of_two(long n, const float *x, const int8_t *table, float *result) {
    for (long first = 0; first < n; first += WIDTH) {
        const long width = std::min(WIDTH, n - first);
        int place[WIDTH], bits[WIDTH];
        double series[WIDTH];
        for (long i = 0; i < width; i++) {
            const int fixed = int(std::min(std::max(-127.0f, x[first + i]), 128.0f) * (1 << 23)); // -127 for a NaN
            const int fraction = fixed & 0x7FFFFF;
            place[i] = fraction - ((fixed < 0) & (fraction > 0));
            bits[i] = fixed >> 23 << 23;
            const double y = (place[i] & 0xFFFF) * 0x1p-23 * M_LN2;
            series[i] = 1 + y * (1 + y * (1.0 / 2 + y * (1.0 / 6 + y * (1.0 / 24 + y * (1.0 / 120)))));
        }
        for (long i = 0; i < width; i++) {
            bits[i] += as<int>(float(powers[place[i] >> 16] * series[i])) + table[place[i]];
        }
        for (long i = 0; i < width; i++) {
            const float own = x[first + i], found = as<float>(bits[i]);
            const float beyond = own >= 128 ? std::numeric_limits<float>::infinity() : own; // or a NaN
            result[first + i] = own < -126 ? 0 : own < 128 ? found : beyond;
        }
    }
}

// c plus the products of a and b along dimension 0, one fused multiply-add each. `shape` has all dimensions, followed
// by the strides of a, b and c (in elements). The result is contiguous.
void fused_sums(int half, long dimensions, const long *shape, const float *a, const float *b, const float *c,
                float *result) {
    const long last = dimensions - 1, n = shape[last], terms = shape[0];
    const long *a_steps = shape + dimensions, *b_steps = a_steps + dimensions, *c_steps = b_steps + dimensions;
    if (b_steps[last] == 0) {
        std::swap(a, b);
        std::swap(a_steps, b_steps);
    }
    long rows = 1;
    for (long d = 1; d < last; d++) {
        rows *= shape[d];
    }
    for (long row = 0; row < rows; row++, result += n) {
        const float *x = a, *y = b, *start = c;
        for (long d = last - 1, rest = row; d > 0; rest /= shape[d], d--) {
            const long index = rest % shape[d];
            x += index * a_steps[d], y += index * b_steps[d], start += index * c_steps[d];
        }
        for (long first = 0; first < n; first += WIDTH) {
            const long width = std::min(WIDTH, n - first);
            float *sums = result + first;
            for (long i = 0; i < width; i++) {
                sums[i] = start[(first + i) * c_steps[last]];
            }
            for (long k = 0; k < terms; k++) {
                const float *of_a = x + k * a_steps[0] + first * a_steps[last];
                const float *of_b = y + k * b_steps[0] + first * b_steps[last];
                (half ? add_products<true> : add_products<false>)(width, of_a, a_steps[last], of_b, b_steps[last],
                                                                  sums);
            }
        }
    }
}

// The sizes of the (contiguous) factors of matrix_sums, and the rule by which it adds products.
struct Matrices {
    long batch, M, K, N;         // a is (batch, M, K), b (batch, K, N)
    long group;                  // products that are added at once
    long bits, fraction;         // bits after the leading one: of aligned terms, and of a result
    long k_half;                 // results are rounded to f16 after this many products; 0: never
    long least_of_a, least_of_b; // the exponents of the smallest normal factors
};

// Adds a @ b, of finite factors, to sums (batch, M, N).
void matrix_sums(const Matrices *of, const float *a, const float *b, float *sums) {
    const long M = of->M, K = of->K, N = of->N;
    std::vector<int8_t> of_a(M * K), of_b(K * COLUMNS);
    std::vector<float> columns(K * COLUMNS); // of b; columns past the last one are ignored
    for (long batch = 0; batch < of->batch; batch++, a += M * K, b += K * N, sums += M * N) {
        for (long i = 0; i < M * K; i++) {
            of_a[i] = alignment(a[i], of->least_of_a);
        }
        for (long column = 0; column < N; column += COLUMNS) {
            const long n = std::min(COLUMNS, N - column);
            for (long k = 0; k < K; k++) {
                std::copy_n(b + k * N + column, n, &columns[k * COLUMNS]);
            }
            for (long i = 0; i < K * COLUMNS; i++) {
                of_b[i] = alignment(columns[i], of->least_of_b);
            }
            for (long row = 0; row < M; row++) {
                float found[COLUMNS] = {};
                std::copy_n(sums + row * N + column, n, found);
                for (long first = 0, end; first < K; first = end) {
                    end = std::min(K, first + of->group);
                    const bool to_half = of->k_half && (end % of->k_half == 0 || end == K);
                    add_group(end - first, a + row * K + first, &of_a[row * K + first], &columns[first * COLUMNS],
                              &of_b[first * COLUMNS], of->bits, to_half ? 0 : of->fraction, found);
                }
                std::copy_n(found, n, sums + row * N + column);
            }
        }
    }
}
}
