"""Products in tiles in vector registers: the C text before the functions in every file."""

from __future__ import annotations

# Rows times 2 vectors are the sums of a tile: more of them than the 4 to 6 cycles that one addition takes on two
# units, and with 2 vectors of the right factor and one of the left no more than the registers: 32, or 16 in AVX.
# A processor with tile registers (AMX) holds 16 rows of 16 pairs in them; Linux must grant their use.
TILES = r"""
#ifdef __AVX512F__
#define TALL 8
#else
#define TALL 4
#endif
typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* C = A B, or C += A B. Cell l of row i of A: a[i * a_row + l * a_step];
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
    static void tiles_##CELL(place rows, place columns, place cells, const CELL *a, place a_row, place a_step,         \
                             const CELL *b, place b_strip, int add, float *c, place c_stride) {                        \
        for (place j = 0; j < columns; j += 2 * LANES)                                                                 \
            for (place i = 0; i < rows; i += TALL) {                                                                   \
                const CELL *left = a + i * a_row, *right = b + j / LANES * b_strip;                                    \
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

#ifdef PAIRS
typedef uint32_t pairs __attribute__((vector_size(64), may_alias));
#define PAIR_STEP(a, b, c) ((lanes)_mm512_dpbf16_ps((__m512)(c), (__m512bh)_mm512_set1_epi32((int)(a)), (__m512bh)(b)))
TILE(pair, pairs, PAIR_STEP)
#else
#define tiles_pair tiles_float
#endif

#if defined(PAIRS) && defined(__AMX_BF16__) && defined(__linux__)
#define PROCESSOR_TILES
long syscall(long, ...);
static int processor_tiles = 0;
__attribute__((constructor)) static void ask_for_tiles(void) {
    processor_tiles = syscall(158 /* arch_prctl */, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XFEATURE_XTILEDATA */) == 0;
}

typedef struct { unsigned char palette, start, none[14]; uint16_t bytes[16]; unsigned char rows[16]; } shapes;

/* The part of 16 columns of C that a row of tiles does not fill goes through `edge`. */
#define FROM_C(TILE, I, J)                                                                                             \
    if (add && whole) _tile_loadd(TILE, c + I * 16 * c_stride + J * 16, 4 * c_stride);                                 \
    else _tile_zero(TILE);
#define TO_C(TILE, I, J)                                                                                               \
    if (whole) _tile_stored(TILE, c + I * 16 * c_stride + J * 16, 4 * c_stride);                                       \
    else {                                                                                                             \
        _tile_stored(TILE, edge, 64);                                                                                  \
        for (place i = I * 16; i < rows && i < I * 16 + 16; i++)                                                       \
            for (place j = J * 16; j < columns && j < J * 16 + 16; j++) {                                              \
                const float sum = edge[i - I * 16][j - J * 16];                                                        \
                c[i * c_stride + j] = add ? c[i * c_stride + j] + sum : sum;                                           \
            }                                                                                                          \
    }

static inline __attribute__((always_inline)) void block_of_tiles(
    const int tall, const int wide, place rows, place columns, place cells, place step, const pair *a, place a_row,
    const pair *b, place b_strip, int add, float *c, place c_stride) {
    const int whole = rows >= tall * 16 && columns >= wide * 16;
    float edge[16][16];
    FROM_C(0, 0, 0)
    if (wide > 1) { FROM_C(1, 0, 1) }
    if (tall > 1) { FROM_C(2, 1, 0) }
    if (tall > 1 && wide > 1) { FROM_C(3, 1, 1) }
    for (place l = 0; l < cells; l += step) {
        _tile_loadd(4, a + l, 4 * a_row);
        _tile_loadd(6, b + l * 16, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (wide > 1) {
            _tile_loadd(7, b + b_strip + l * 16, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (tall > 1) {
            _tile_loadd(5, a + 16 * a_row + l, 4 * a_row);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (tall > 1 && wide > 1) _tile_dpbf16ps(3, 5, 7);
    }
    TO_C(0, 0, 0)
    if (wide > 1) { TO_C(1, 0, 1) }
    if (tall > 1) { TO_C(2, 1, 0) }
    if (tall > 1 && wide > 1) { TO_C(3, 1, 1) }
}

static int in_processor_tiles(place rows, place columns, place cells, const pair *a, place a_row, const pair *b,
                              place b_strip, int add, float *c, place c_stride) {
    place step = cells < 16 ? cells : 16;
    while (step > 0 && cells % step) step--;
    if (!processor_tiles || step < 8) return 0;
    shapes own = {1}, others; /* others: other libraries' that use this thread */
    for (int i = 0; i < 8; i++) {
        own.bytes[i] = i == 4 || i == 5 ? 4 * step : 64;
        own.rows[i] = i > 5 ? step : 16;
    }
    __asm__ volatile("" : : "r"(&own), "r"(&others) : "memory");
    _tile_storeconfig(&others);
    _tile_loadconfig(&own);
    for (place j = 0; j < columns; j += 32)
        for (place i = 0; i < rows; i += 32) {
            const pair *left = a + i * a_row, *right = b + j / 16 * b_strip;
            float *to = c + i * c_stride + j;
#define BLOCK(TALL, WIDE)                                                                                              \
    block_of_tiles(TALL, WIDE, rows - i, columns - j, cells, step, left, a_row, right, b_strip, add, to, c_stride)
            if (rows - i > 16 && columns - j > 16) BLOCK(2, 2);
            else if (rows - i > 16) BLOCK(2, 1);
            else if (columns - j > 16) BLOCK(1, 2);
            else BLOCK(1, 1);
        }
    __asm__ volatile("" : : "r"(&others) : "memory");
    _tile_loadconfig(&others);
    return 1;
}
#endif

/* Of the left factor: its rows as stored or, transposed, the summed axis; of pairs, rows as they were packed with
   a_inner. */
static inline void tiled_float(int a_transposed, place rows, place columns, place inner, const float *a, place a_stride,
                               const float *b, place b_inner, int add, float *c, place c_stride) {
    tiles_float(rows, columns, inner, a, a_transposed ? 1 : a_stride, a_transposed ? a_stride : 1, b, LANES * b_inner,
                add, c, c_stride);
}

static inline void tiled_pair(place rows, place columns, place inner, const pair *a, place a_inner, const pair *b,
                              place b_inner, int add, float *c, place c_stride) {
    const place cells = CELLS_pair(inner), a_row = CELLS_pair(a_inner), b_strip = LANES * CELLS_pair(b_inner);
#ifdef PROCESSOR_TILES
    if (in_processor_tiles(rows, columns, cells, a, a_row, b, b_strip, add, c, c_stride)) return;
#endif
    tiles_pair(rows, columns, cells, a, a_row, 1, b, b_strip, add, c, c_stride);
}
"""
