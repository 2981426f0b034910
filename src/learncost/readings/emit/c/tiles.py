"""Products in tiles that lie in vector registers: the C text that stands after the prelude in every file.

A library packs its factors again in every call. Inside of a turn the same factors go into many small products, so
they are packed here once: a right factor in strips as wide as a vector, and all factors of a bf16 kernel in pairs of
neighbouring places of the summed axis, which one instruction multiplies and adds in float (AVX512_BF16; where a
machine has none, such a cell is one place, in float).
"""

from __future__ import annotations

# Rows times 2 vectors are the sums of a tile: more of them than the 4 to 6 cycles that one addition takes on two
# units, and with 2 vectors of the right factor and one of the left no more than the registers: 32, or 16 in AVX.
TILES = r"""
#ifdef __AVX512F__
#include <immintrin.h>
#define LANES 16
#define TALL 8
#elif defined(__AVX__)
#define LANES 8
#define TALL 4
#else
#define LANES 4
#define TALL 4
#endif
typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define UNROLLED _Pragma("GCC unroll 8")

/* C = A B, or C += A B. Cell l of row i of A: a[i / LANES * a_strip + i % LANES * a_row + l * a_step];
   of column j of B: b[j / LANES * b_strip + l * LANES + j % LANES]. */
#define TILE(CELL, VECTOR, STEP)                                                                                       \
    static inline __attribute__((always_inline)) void tile_##CELL(                                                     \
        const int wide, place rows, place columns, place cells, const CELL *a, place a_row, place a_step,              \
        const CELL *b, place b_strip, int add, float *c, place c_stride) {                                             \
        lanes sums[TALL][2];                                                                                           \
        const CELL *row[TALL];                                                                                         \
        UNROLLED for (int i = 0; i < TALL; i++) {                                                                      \
            row[i] = a + (i < rows ? i : rows - 1) * a_row; /* for a row that is not there, the last one again */      \
            UNROLLED for (int j = 0; j < wide; j++) sums[i][j] = (lanes){0};                                           \
        }                                                                                                              \
        for (place l = 0; l < cells; l++) {                                                                            \
            VECTOR right[2];                                                                                           \
            UNROLLED for (int j = 0; j < wide; j++) right[j] = *(const VECTOR *)(b + j * b_strip + l * LANES);         \
            UNROLLED for (int i = 0; i < TALL; i++)                                                                    \
                UNROLLED for (int j = 0; j < wide; j++) sums[i][j] = STEP(row[i][l * a_step], right[j], sums[i][j]);   \
        }                                                                                                              \
        if (rows >= TALL && columns >= wide * LANES) {                                                                 \
            UNROLLED for (int i = 0; i < TALL; i++) UNROLLED for (int j = 0; j < wide; j++) {                          \
                loose *to = (loose *)(c + i * c_stride + j * LANES);                                                   \
                if (add) sums[i][j] += (lanes)*to;                                                                     \
                *to = (loose)sums[i][j];                                                                               \
            }                                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        float edge[TALL][2 * LANES];                                                                                   \
        UNROLLED for (int i = 0; i < TALL; i++)                                                                        \
            UNROLLED for (int j = 0; j < wide; j++) *(loose *)(edge[i] + j * LANES) = sums[i][j];                      \
        for (place i = 0; i < rows && i < TALL; i++)                                                                   \
            for (place j = 0; j < columns && j < wide * LANES; j++)                                                    \
                c[i * c_stride + j] = add ? c[i * c_stride + j] + edge[i][j] : edge[i][j];                             \
    }                                                                                                                  \
    static void tiles_##CELL(place rows, place columns, place cells, const CELL *a, place a_row, place a_strip,        \
                             place a_step, const CELL *b, place b_strip, int add, float *c, place c_stride) {          \
        for (place j = 0; j < columns; j += 2 * LANES)                                                                 \
            for (place i = 0; i < rows; i += TALL) {                                                                   \
                const CELL *left = a + i / LANES * a_strip + i % LANES * a_row, *right = b + j / LANES * b_strip;      \
                float *to = c + i * c_stride + j;                                                                      \
                if (columns - j > LANES)                                                                               \
                    tile_##CELL(2, rows - i, columns - j, cells, left, a_row, a_step, right, b_strip, add, to,         \
                                c_stride);                                                                             \
                else                                                                                                   \
                    tile_##CELL(1, rows - i, columns - j, cells, left, a_row, a_step, right, b_strip, add, to,         \
                                c_stride);                                                                             \
            }                                                                                                          \
    }
#define FLOAT_STEP(a, b, c) ((c) + (a) * (b))
TILE(float, lanes, FLOAT_STEP)

/* Packed factors: row i in cells [i][l], or strips in cells [j / LANES][l][j % LANES], with zeros for what is not
   there. The source's rows are the summed axis, or turned: its columns are. */
#define CELLS_float(inner) (inner)
#define STRIP(CELL, inner, first, column) \
    ((column) / LANES * LANES * CELLS_##CELL(inner) + CELLS_##CELL(first) * LANES)
#define STRIPS(CELL, inner, columns) (((columns) + LANES - 1) / LANES * LANES * CELLS_##CELL(inner))
#define ROW(CELL, inner, first, row) ((row) * CELLS_##CELL(inner) + CELLS_##CELL(first))

#define PLAIN_STRIPS(CELL, TYPE)                                                                                       \
    static void strips_##CELL##_##TYPE(int turned, CELL *to, place inner, place columns, const TYPE *from,             \
                                       place stride) {                                                                 \
        place along = turned ? 1 : stride, across = turned ? stride : 1;                                               \
        for (place j = 0; j < columns; j += LANES, to += LANES * inner)                                                \
            for (place l = 0; l < inner; l++)                                                                          \
                for (place i = 0; i < LANES; i++)                                                                      \
                    to[l * LANES + i] = j + i < columns ? float_of_##TYPE(from[l * along + (j + i) * across]) : 0;     \
    }

#define float_of_float(x) (x)
#define float_of_bf16(x) from_bf16(x)
PLAIN_STRIPS(float, float)
PLAIN_STRIPS(float, bf16)

#ifdef __AVX512BF16__
typedef uint32_t pair;  /* places 2 l and 2 l + 1 of the summed axis */
typedef uint32_t pairs __attribute__((vector_size(64), may_alias));
#define CELLS_pair(inner) (((inner) + 1) / 2)
#define PAIR_STEP(a, b, c) ((lanes)_mm512_dpbf16_ps((__m512)(c), (__m512bh)_mm512_set1_epi32((int)(a)), (__m512bh)(b)))
TILE(pair, pairs, PAIR_STEP)

static inline __mmask16 first(place count) { return count >= 16 ? 0xffff : (__mmask16)((1u << count) - 1); }
static inline __m256i load_bf16(const bf16 *x, place count) { return _mm256_maskz_loadu_epi16(first(count), x); }
static inline __m256i load_float(const float *x, place count) {
    return (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(first(count), x));
}

#define PACK(TYPE)                                                                                                     \
    static void rows_pair_##TYPE(pair *to, place rows, place inner, const TYPE *from, place stride) {                  \
        for (place i = 0; i < rows; i++, to += CELLS_pair(inner))                                                      \
            for (place l = 0; l < inner; l += 16)                                                                      \
                _mm256_mask_storeu_epi32(to + l / 2, (__mmask8)first(CELLS_pair(inner - l)),                           \
                                         load_##TYPE(from + i * stride + l, inner - l));                               \
    }                                                                                                                  \
    static void strips_pair_##TYPE(int turned, pair *to, place inner, place columns, const TYPE *from, place stride) { \
        const place strip = LANES * CELLS_pair(inner), all = (columns + LANES - 1) / LANES * LANES;                    \
        for (place j = 0; turned && j < all; j++)                                                                      \
            for (place l = 0; l < inner; l += 16) {                                                                    \
                union { __m256i all; pair one[8]; } row;                                                               \
                row.all = j < columns ? load_##TYPE(from + j * stride + l, inner - l) : _mm256_setzero_si256();        \
                pair *at = to + j / LANES * strip + l / 2 * LANES + j % LANES;                                         \
                for (place m = 0; m < 8 && m < CELLS_pair(inner - l); m++) at[m * LANES] = row.one[m];                 \
            }                                                                                                          \
        for (place l = 0; !turned && l < inner; l += 2)                                                                \
            for (place j = 0; j < columns; j += LANES) {                                                               \
                const TYPE *one = from + l * stride + j;                                                               \
                __m512i low = _mm512_cvtepu16_epi32(load_##TYPE(one, columns - j));                                    \
                __m512i high = _mm512_cvtepu16_epi32(load_##TYPE(one + stride, l + 1 < inner ? columns - j : 0));      \
                high = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));                                              \
                _mm512_store_si512(to + j / LANES * strip + l / 2 * LANES, high);                                      \
            }                                                                                                          \
    }
#else
typedef float pair;
#define CELLS_pair(inner) (inner)
#define tiles_pair tiles_float
#define PACK(TYPE)                                                                                                     \
    static void rows_pair_##TYPE(pair *to, place rows, place inner, const TYPE *from, place stride) {                  \
        for (place i = 0; i < rows; i++)                                                                               \
            for (place l = 0; l < inner; l++) to[i * inner + l] = float_of_##TYPE(from[i * stride + l]);               \
    }                                                                                                                  \
    PLAIN_STRIPS(pair, TYPE)
#endif
PACK(bf16)
PACK(float)

/* Of the left factor: its rows as they lie or, turned, the summed axis; of pairs, as they were packed with a_inner. */
static inline void tiled_float(int a_turned, place rows, place columns, place inner, const float *a, place a_stride,
                               const float *b, place b_inner, int add, float *c, place c_stride) {
    tiles_float(rows, columns, inner, a, a_turned ? 1 : a_stride, a_turned ? LANES : LANES * a_stride,
                a_turned ? a_stride : 1, b, LANES * b_inner, add, c, c_stride);
}

static inline void tiled_pair(int a_turned, place rows, place columns, place inner, const pair *a, place a_inner,
                              const pair *b, place b_inner, int add, float *c, place c_stride) {
    place length = CELLS_pair(a_inner);
    tiles_pair(rows, columns, CELLS_pair(inner), a, a_turned ? 1 : length, LANES * length, a_turned ? LANES : 1, b,
               LANES * CELLS_pair(b_inner), add, c, c_stride);
}
"""
