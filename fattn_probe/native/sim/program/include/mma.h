// nvcuda::wmma for f16 and bf16: tiles of 16x16x16, 32x8x16 and 8x32x16 (CUDA C++ Programming Guide, "Warp Matrix
// Functions"). Products are computed as by mma.m16n8k16, with the tensor cores' rounding.
//
// CUDA does not specify which lane holds which element; here, the layout is that of Ampere's registers. A tile with 8
// rows is computed as the transpose of a tile with 8 columns.
#pragma once

#include "../../ptx.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

namespace details {

// The elements of a lane in one fragment: of the 16x16 A, of the 16x8 B, of the 16x8 C (PTX ISA, "Matrix Fragments for
// mma.m16n8k16").
inline unsigned a_row(unsigned lane, unsigned i) { return lane / 4 + (i / 2 % 2) * 8; }
inline unsigned a_column(unsigned lane, unsigned i) { return lane % 4 * 2 + i % 2 + i / 4 * 8; }
inline unsigned b_row(unsigned lane, unsigned i) { return lane % 4 * 2 + i % 2 + i / 2 * 8; }
inline unsigned b_column(unsigned lane) { return lane / 4; }
inline unsigned c_row(unsigned lane, unsigned i) { return lane / 4 + i / 2 * 8; }
inline unsigned c_column(unsigned lane, unsigned i) { return lane % 4 * 2 + i % 2; }

template <class T> uint32_t pair(T low, T high) {
    return static_cast<uint32_t>(low.bits) | static_cast<uint32_t>(high.bits) << 16;
}

// D += A * B: 16x8 with inner size 16.
template <class T> void multiply(float *c, const uint32_t *a, const uint32_t *b) {
    if constexpr (std::is_same_v<T, __half>) {
        simt::ptx::mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(c[0], c[1], c[2], c[3], a[0], a[1], a[2], a[3],
                                                                     b[0], b[1]);
    } else {
        simt::ptx::mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(c[0], c[1], c[2], c[3], a[0], a[1], a[2], a[3],
                                                                       b[0], b[1]);
    }
}
template <class T> void multiply(__half *c, const uint32_t *a, const uint32_t *b) {
    uint32_t low = pair(c[0], c[1]), high = pair(c[2], c[3]);
    simt::ptx::mma_sync_aligned_m16n8k16_row_col_f16_f16_f16_f16(low, high, a[0], a[1], a[2], a[3], b[0], b[1]);
    for (int i = 0; i < 4; i++) {
        c[i] = __half::of_bits(static_cast<uint16_t>((i < 2 ? low : high) >> 16 * (i % 2)));
    }
}

} // namespace details

template <class Use, int m, int n, int k, class T, class Layout = void> class fragment;

#define SIMT_SHAPE(m, n, k)                                                                                            \
    static_assert(k == 16 && ((m == 16 && n == 16) || (m == 32 && n == 8) || (m == 8 && n == 32)),                     \
                  "the simulator has wmma for 16x16x16, 32x8x16 and 8x32x16 of __half and __nv_bfloat16")

// The common part of A (m rows) and B (n columns): `outer` is m or n. It has tiles of 16 if it becomes the A of mma,
// and tiles of 8 if it becomes the B.
template <int outer, bool wide, class T, class Layout, bool rows> struct operand {
    static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>,
                  "the simulator has wmma for __half and __nv_bfloat16");
    static constexpr int tiles = outer / (wide ? 16 : 8), each = wide ? 8 : 4;
    static constexpr int num_elements = tiles * each;
    T x[num_elements];

    // Element i of this lane: its place along m or n, and along k.
    static void place(int i, unsigned &along, unsigned &inner) {
        const unsigned lane = simt::self->lane, tile = static_cast<unsigned>(i / each),
                       e = static_cast<unsigned>(i % each);
        along = wide ? tile * 16 + details::a_row(lane, e) : tile * 8 + details::b_column(lane);
        inner = wide ? details::a_column(lane, e) : details::b_row(lane, e);
    }
    void load(const T *from, unsigned stride) {
        // Along m, rows of A are `stride` apart if it is row-major; along n, columns of B if it is column-major.
        constexpr bool along_is_slow = std::is_same_v<Layout, row_major> == rows;
        for (int i = 0; i < num_elements; i++) {
            unsigned along, inner;
            place(i, along, inner);
            x[i] = along_is_slow ? from[along * stride + inner] : from[inner * stride + along];
        }
    }
    void words(int tile, uint32_t *out) const {
        for (int i = 0; i < each / 2; i++) {
            out[i] = details::pair(x[tile * each + 2 * i], x[tile * each + 2 * i + 1]);
        }
    }
};

template <int m, int n, int k, class T, class Layout>
class fragment<matrix_a, m, n, k, T, Layout> : public operand<m, m != 8, T, Layout, true> {
    SIMT_SHAPE(m, n, k);
};
template <int m, int n, int k, class T, class Layout>
class fragment<matrix_b, m, n, k, T, Layout> : public operand<n, m == 8, T, Layout, false> {
    SIMT_SHAPE(m, n, k);
};

template <int m, int n, int k, class T> class fragment<accumulator, m, n, k, T, void> {
    SIMT_SHAPE(m, n, k);

  public:
    static constexpr bool transposed = m == 8;
    static constexpr int num_elements = 8, columns = (transposed ? m : n) / 8;
    T x[num_elements];

    static void place(int i, unsigned &row, unsigned &column) {
        const unsigned lane = simt::self->lane, tile = static_cast<unsigned>(i / 4), e = static_cast<unsigned>(i % 4);
        row = tile / columns * 16 + details::c_row(lane, e);
        column = tile % columns * 8 + details::c_column(lane, e);
        if (transposed) {
            const unsigned swapped = row;
            row = column;
            column = swapped;
        }
    }
};

#undef SIMT_SHAPE

template <class Fragment, class T> void fill_fragment(Fragment &fragment, const T &value) {
    for (auto &element : fragment.x) {
        element = static_cast<std::decay_t<decltype(element)>>(static_cast<float>(value));
    }
}

template <class Use, int m, int n, int k, class T, class Layout>
void load_matrix_sync(fragment<Use, m, n, k, T, Layout> &fragment, const T *from, unsigned stride) {
    fragment.load(from, stride);
}
template <int m, int n, int k, class T>
void load_matrix_sync(fragment<accumulator, m, n, k, T> &fragment, const T *from, unsigned stride, layout_t layout) {
    for (int i = 0; i < fragment.num_elements; i++) {
        unsigned row, column;
        fragment.place(i, row, column);
        fragment.x[i] = from[layout == mem_row_major ? row * stride + column : column * stride + row];
    }
}
template <int m, int n, int k, class T>
void store_matrix_sync(T *to, const fragment<accumulator, m, n, k, T> &fragment, unsigned stride, layout_t layout) {
    for (int i = 0; i < fragment.num_elements; i++) {
        unsigned row, column;
        fragment.place(i, row, column);
        to[layout == mem_row_major ? row * stride + column : column * stride + row] = fragment.x[i];
    }
    __syncwarp();
}

template <int m, int n, int k, class D, class T, class LayoutA, class LayoutB, class C>
void mma_sync(fragment<accumulator, m, n, k, D> &d, const fragment<matrix_a, m, n, k, T, LayoutA> &a,
              const fragment<matrix_b, m, n, k, T, LayoutB> &b, const fragment<accumulator, m, n, k, C> &c) {
    static_assert(std::is_same_v<C, D>, "the simulator has wmma with equal types of C and D");
    const auto multiply = [&](const auto &wide, const auto &narrow) {
        for (int tile = 0; tile < d.num_elements / 4; tile++) {
            uint32_t rows[4], columns[2];
            wide.words(tile / d.columns, rows);
            narrow.words(tile % d.columns, columns);
            D part[4];
            for (int i = 0; i < 4; i++) {
                part[i] = c.x[4 * tile + i];
            }
            details::multiply<T>(part, rows, columns);
            for (int i = 0; i < 4; i++) {
                d.x[4 * tile + i] = part[i];
            }
        }
    };
    if constexpr (m == 8) {
        multiply(b, a); // D^T = B^T * A^T
    } else {
        multiply(a, b);
    }
}

} // namespace wmma
} // namespace nvcuda
