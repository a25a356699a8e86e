// The tensor cores' arithmetic (tensor_core.h) with 512-bit registers: one lane for each of the 16 rows of a result.
//
// The rule is the same, and so is every bit; only the order of the work differs. Columns are computed one by one. The
// products of a column are A's k-th elements of all rows, kept in registers, times one element of B. Exponents are
// added and compared as bytes, four columns at once.
#include "tensor_core_avx512.h"

#if defined(__x86_64__)
#include <immintrin.h>

// GCC warns about the undefined operands of its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#define SIMT_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#define SIMT_AVX512_INLINE SIMT_AVX512 __attribute__((always_inline)) inline

namespace simt {
namespace {

// The exponent of a zero factor: added to any other, it is below every product's exponent.
constexpr char no_factor = -64;

// Indices that transpose 8x8 halves: element 8*i + j of the result is element 8*j + i. The inverse is the same.
alignas(64) constexpr uint16_t transposed[64] = {0, 8,  16, 24, 32, 40, 48, 56, 1, 9,  17, 25, 33, 41, 49, 57,
                                                 2, 10, 18, 26, 34, 42, 50, 58, 3, 11, 19, 27, 35, 43, 51, 59,
                                                 4, 12, 20, 28, 36, 44, 52, 60, 5, 13, 21, 29, 37, 45, 53, 61,
                                                 6, 14, 22, 30, 38, 46, 54, 62, 7, 15, 23, 31, 39, 47, 55, 63};
// Indices that take columns j and j + 2 (here: words j/2 and j/2 + 1 of each four) of eight rows, and the way back.
alignas(64) constexpr uint32_t two_columns[2][16] = {{0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29},
                                                     {2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31}};
alignas(64) constexpr uint32_t four_rows[2][16] = {{0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27},
                                                   {4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31}};

SIMT_AVX512_INLINE __m512i load(const void *from) { return _mm512_loadu_si512(from); }

// 8x8 halves in two registers, transposed.
struct Tile {
    __m512i low, high;
};
SIMT_AVX512_INLINE Tile transpose(__m512i low, __m512i high) {
    return {_mm512_permutex2var_epi16(low, load(transposed), high),
            _mm512_permutex2var_epi16(low, load(transposed + 32), high)};
}

// The exponents of 32 halves as bytes: those of f16's fields, 1 for subnormals.
SIMT_AVX512_INLINE __m256i exponents(__m512i halves) {
    const __m512i field = _mm512_and_si512(_mm512_srli_epi16(halves, 10), _mm512_set1_epi16(31));
    const __mmask32 zero = _mm512_testn_epi16_mask(halves, _mm512_set1_epi16(0x7FFF));
    const __m512i exponent = _mm512_max_epi16(field, _mm512_set1_epi16(1));
    return _mm512_cvtepi16_epi8(_mm512_mask_mov_epi16(exponent, zero, _mm512_set1_epi16(no_factor)));
}

SIMT_AVX512_INLINE bool finite(__m512i halves) {
    const __m512i infinity = _mm512_set1_epi16(0x7C00);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(halves, infinity), infinity) == 0;
}

// Columns j and j + 1 of 16 rows, from the tiles of rows 0 to 7 and 8 to 15: [column][row].
SIMT_AVX512_INLINE __m512i first_columns(__m512i above, __m512i below) {
    return _mm512_permutex2var_epi64(above, _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), below);
}
SIMT_AVX512_INLINE __m512i last_columns(__m512i above, __m512i below) {
    return _mm512_permutex2var_epi64(above, _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4), below);
}

// The operands of 16 x 8 results, ready for `column`.
template <int K> struct Operands {
    static constexpr int step = group < K ? group : K; // products that are added at once

    __m512 a[K];                      // the k-th elements of all rows
    alignas(64) float b[K / 8][8][8]; // [k / 8][column][k % 8]
    alignas(64) char a_exponents[K][16];
    alignas(64) char b_exponents[8][16]; // [column][k]
    bool finite;
};

template <int K> SIMT_AVX512_INLINE void prepare(Operands<K> &operands, const LaneWords *a, const LaneWords *b) {
    operands.finite = true;
    for (int k = 0; k < K; k += 8) {
        const uint32_t *above = a[2 * (k / 8)], *below = a[2 * (k / 8) + 1];
        const Tile upper = transpose(load(above), load(above + 16)), lower = transpose(load(below), load(below + 16));
        const __m512i pairs[4] = {first_columns(upper.low, lower.low), last_columns(upper.low, lower.low),
                                  first_columns(upper.high, lower.high), last_columns(upper.high, lower.high)};
        for (int i = 0; i < 4; i++) {
            operands.a[k + 2 * i] = _mm512_cvtph_ps(_mm512_castsi512_si256(pairs[i]));
            operands.a[k + 2 * i + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(pairs[i], 1));
            _mm256_store_si256(reinterpret_cast<__m256i *>(operands.a_exponents[k + 2 * i]), exponents(pairs[i]));
            operands.finite &= finite(pairs[i]);
        }
        for (int half = 0; half < 2; half++) { // four columns each
            const __m512i columns = load(b[k / 8] + 16 * half);
            operands.finite &= finite(columns);
            _mm512_store_ps(operands.b[k / 8][4 * half], _mm512_cvtph_ps(_mm512_castsi512_si256(columns)));
            _mm512_store_ps(operands.b[k / 8][4 * half + 2], _mm512_cvtph_ps(_mm512_extracti64x4_epi64(columns, 1)));
            const __m256i bytes = exponents(columns);
            for (int i = 0; i < 4; i++) {
                char *to = operands.b_exponents[4 * half + i] + k;
                const auto word = static_cast<int64_t>(i == 0   ? _mm256_extract_epi64(bytes, 0)
                                                       : i == 1 ? _mm256_extract_epi64(bytes, 1)
                                                       : i == 2 ? _mm256_extract_epi64(bytes, 2)
                                                                : _mm256_extract_epi64(bytes, 3));
                __builtin_memcpy(to, &word, 8);
            }
        }
    }
}

// The largest sum of two exponents among the products of a group, [column][row]; negative where all products are zero.
template <int K>
SIMT_AVX512_INLINE void largest_exponents(const Operands<K> &operands, int first, __m512i (&largest)[2]) {
    for (int half = 0; half < 2; half++) {
        const __m512i b = load(operands.b_exponents[4 * half]);
        __m512i most = _mm512_set1_epi8(-128);
#pragma GCC unroll 16
        for (int k = first; k < first + operands.step; k++) {
            const __m512i row =
                _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i *>(operands.a_exponents[k])));
            const __m512i column = _mm512_shuffle_epi8(b, _mm512_set1_epi8(static_cast<char>(k)));
            most = _mm512_max_epi8(most, _mm512_add_epi8(row, column));
        }
        largest[half] = most;
    }
}

// Truncates toward zero to 24 bits; `sticky` keeps a trace of the cut bits in the last bit (tensor_core.cpp, truncate).
template <bool sticky> SIMT_AVX512_INLINE __m256 truncate(__m512d exact) {
    __m512i bits = _mm512_castpd_si512(exact);
    if (sticky) {
        const __mmask8 cut = _mm512_test_epi64_mask(bits, _mm512_set1_epi64(0x1FFFFFFF));
        bits = _mm512_mask_or_epi64(bits, cut, bits, _mm512_set1_epi64(0x20000000));
    }
    return _mm512_cvtpd_ps(_mm512_castsi512_pd(_mm512_and_si512(bits, _mm512_set1_epi64(~0x1FFFFFFFll))));
}

// One group of products of a column added to c, in all rows. `largest`: see `largest_exponents`.
template <int K, bool sticky>
SIMT_AVX512_INLINE __m512 add_group(const Operands<K> &operands, int column, int first, __m128i largest, __m512 c) {
    const __m512i sums = _mm512_cvtepi8_epi32(largest);
    const __mmask16 no_product = _mm512_cmplt_epi32_mask(sums, _mm512_setzero_si512());
    const __m512i c_exponent = _mm512_and_si512(_mm512_castps_si512(c), _mm512_set1_epi32(0x7F800000));
    // Two f16 exponent fields plus 97 make the f32 exponent field of the product of the two powers.
    const __m512i product = _mm512_slli_epi32(_mm512_add_epi32(sums, _mm512_set1_epi32(127 - 30)), 23);
    const __m512i exponent = _mm512_max_epi32(product, c_exponent);
    const __m512i shift = _mm512_sub_epi32(_mm512_mask_mov_epi32(exponent, no_product, _mm512_set1_epi32(127 << 23)),
                                           _mm512_set1_epi32((23 + extra) << 23));
    const __m512 scale = _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32(254 << 23), shift));
    __m512i sum[2] = {_mm512_cvttps_epi32(_mm512_mul_ps(c, scale)), _mm512_setzero_si512()};
#pragma GCC unroll 16
    for (int k = first; k < first + operands.step; k++) {
        const __m512 b = _mm512_set1_ps(operands.b[k / 8][column][k % 8]);
        sum[k & 1] =
            _mm512_add_epi32(sum[k & 1], _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_mul_ps(operands.a[k], b), scale)));
    }
    __m256 halves[2];
    for (int half = 0; half < 2; half++) {
        const __m256i x = half ? _mm512_extracti64x4_epi64(sum[0], 1) : _mm512_castsi512_si256(sum[0]);
        const __m256i y = half ? _mm512_extracti64x4_epi64(sum[1], 1) : _mm512_castsi512_si256(sum[1]);
        const __m256i unit = half ? _mm512_extracti64x4_epi64(shift, 1) : _mm512_castsi512_si256(shift);
        const __m512d exact = _mm512_add_pd(_mm512_cvtepi32_pd(x), _mm512_cvtepi32_pd(y));
        halves[half] = truncate<sticky>(_mm512_mul_pd(exact, _mm512_cvtps_pd(_mm256_castsi256_ps(unit))));
    }
    const __m512 result = _mm512_insertf32x8(_mm512_castps256_ps512(halves[0]), halves[1], 1);
    return _mm512_mask_mov_ps(result, no_product, c);
}

// c += A*B for eight columns of 16 rows.
template <int K, bool sticky> SIMT_AVX512_INLINE void multiply(const Operands<K> &operands, __m512 (&c)[8]) {
    for (int first = 0; first < K; first += group) {
        __m512i largest[2];
        largest_exponents(operands, first, largest);
        alignas(64) char bytes[8][16];
        _mm512_store_si512(bytes[0], largest[0]);
        _mm512_store_si512(bytes[4], largest[1]);
        const bool last = first + group >= K;
        for (int column = 0; column < 8; column++) {
            const __m128i most = _mm_load_si128(reinterpret_cast<const __m128i *>(bytes[column]));
            c[column] = sticky && last ? add_group<K, true>(operands, column, first, most, c[column])
                                       : add_group<K, false>(operands, column, first, most, c[column]);
        }
    }
}

SIMT_AVX512_INLINE bool finite(const __m512 (&c)[8]) {
    __mmask16 other = 0;
    const __m512i infinity = _mm512_set1_epi32(0x7F800000);
    for (const __m512 &column : c) {
        other |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_castps_si512(column), infinity), infinity);
    }
    return other == 0;
}

SIMT_AVX512_INLINE __m512 both(__m512 x, __m512 y, bool high) {
    return high ? _mm512_shuffle_f32x4(x, y, 0xEE) : _mm512_shuffle_f32x4(x, y, 0x44);
}

template <int K>
SIMT_AVX512 bool accumulate_f32(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    Operands<K> operands;
    prepare(operands, a, b);
    __m512 sum[8];
    // c[2 * (row / 8) + column % 2][4 * (row % 8) + column / 2]
    for (int odd = 0; odd < 2; odd++) {
        for (int pair = 0; pair < 2; pair++) {
            const __m512i index = load(two_columns[pair]);
            const __m512 above = _mm512_castsi512_ps(_mm512_permutex2var_epi32(load(c[odd]), index, load(c[odd] + 16)));
            const __m512 below =
                _mm512_castsi512_ps(_mm512_permutex2var_epi32(load(c[odd + 2]), index, load(c[odd + 2] + 16)));
            sum[4 * pair + odd] = both(above, below, false);
            sum[4 * pair + odd + 2] = both(above, below, true);
        }
    }
    if (__builtin_expect(!operands.finite || !finite(sum), 0)) {
        return false;
    }
    multiply<K, false>(operands, sum);
    for (int odd = 0; odd < 2; odd++) {
        for (int low = 0; low < 2; low++) {
            const __m512i first = _mm512_castps_si512(both(sum[odd], sum[odd + 2], low));
            const __m512i second = _mm512_castps_si512(both(sum[odd + 4], sum[odd + 6], low));
            for (int rows = 0; rows < 2; rows++) {
                _mm512_storeu_si512(d[odd + 2 * low] + 16 * rows,
                                    _mm512_permutex2var_epi32(first, load(four_rows[rows]), second));
            }
        }
    }
    return true;
}

template <int K>
SIMT_AVX512 bool accumulate_f16(const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    Operands<K> operands;
    prepare(operands, a, b);
    const Tile upper = transpose(load(c[0]), load(c[0] + 16)), lower = transpose(load(c[1]), load(c[1] + 16));
    __m512i pairs[4] = {first_columns(upper.low, lower.low), last_columns(upper.low, lower.low),
                        first_columns(upper.high, lower.high), last_columns(upper.high, lower.high)};
    __m512 sum[8];
    for (int i = 0; i < 4; i++) {
        sum[2 * i] = _mm512_cvtph_ps(_mm512_castsi512_si256(pairs[i]));
        sum[2 * i + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(pairs[i], 1));
    }
    if (__builtin_expect(!operands.finite || !finite(sum), 0)) {
        return false;
    }
    multiply<K, true>(operands, sum);
    for (int i = 0; i < 4; i++) {
        const __m256i first = _mm512_cvtps_ph(sum[2 * i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m256i second = _mm512_cvtps_ph(sum[2 * i + 1], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        pairs[i] = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
    }
    for (int half = 0; half < 2; half++) { // rows 0 to 7, then 8 to 15
        const __m512i index =
            half ? _mm512_set_epi64(15, 14, 11, 10, 7, 6, 3, 2) : _mm512_set_epi64(13, 12, 9, 8, 5, 4, 1, 0);
        const Tile rows = transpose(_mm512_permutex2var_epi64(pairs[0], index, pairs[1]),
                                    _mm512_permutex2var_epi64(pairs[2], index, pairs[3]));
        _mm512_storeu_si512(d[half], rows.low);
        _mm512_storeu_si512(d[half] + 16, rows.high);
    }
    return true;
}

} // namespace

bool has_avx512() {
    static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return has;
}

bool mma_f16_accumulate_f32_avx512(int K, const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    return K == 16 ? accumulate_f32<16>(a, b, c, d) : accumulate_f32<8>(a, b, c, d);
}

bool mma_f16_accumulate_f16_avx512(int K, const LaneWords *a, const LaneWords *b, const LaneWords *c, LaneWords *d) {
    return K == 16 ? accumulate_f16<16>(a, b, c, d) : accumulate_f16<8>(a, b, c, d);
}

} // namespace simt

#else

namespace simt {
bool has_avx512() { return false; }
bool mma_f16_accumulate_f32_avx512(int, const LaneWords *, const LaneWords *, const LaneWords *, LaneWords *) {
    return false;
}
bool mma_f16_accumulate_f16_avx512(int, const LaneWords *, const LaneWords *, const LaneWords *, LaneWords *) {
    return false;
}
} // namespace simt
#endif
