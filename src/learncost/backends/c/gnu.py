"""Print a kernel in GNU C: iterations in parallel threads (OpenMP), vectorizable loops, tiled products.

Sums over the iterations are added up thread by thread, so that the result is deterministic for a number of threads.

A library packs its factors again in every call. Inside of an iteration the same factors go into many small products, so
they are packed here once: a right factor in strips as wide as a vector, and all factors of a bf16 kernel in pairs of
neighbouring places of the summed axis, which one instruction multiplies and adds in float (AVX512_BF16; where a
machine has none, such a cell is one place, in float).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from learncost.backends.c import tree
from learncost.backends.c.prelude import BASIS, PRELUDE
from learncost.backends.c.printer import Printer, block, number, pointer, statements
from learncost.backends.c.tiles import TILES
from learncost.backends.c.tree import ITERATION, ZERO

PACKED = r"""
#ifdef __AVX512F__
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define UNROLLED _Pragma("GCC unroll 16")

/* Packed factors: row i in cells [i][l], or strips in cells [j / LANES][l][j % LANES], with zeros for columns that are
   not there; a row may be read, not used, up to the next multiple of 16. The source's rows are those of the result, or
   transposed: its columns are. Of strips the rows are the summed axis. */
#define CELLS_float(inner) (inner)
#define STRIP(CELL, inner, first, column) \
    ((column) / LANES * LANES * CELLS_##CELL(inner) + CELLS_##CELL(first) * LANES)
#define STRIPS(CELL, inner, columns) (((columns) + LANES - 1) / LANES * LANES * CELLS_##CELL(inner))
#define ROW(CELL, inner, first, row) ((row) * CELLS_##CELL(inner) + CELLS_##CELL(first))
#define ROWS(CELL, inner, rows) (((rows) + 15) / 16 * 16 * CELLS_##CELL(inner))

#define float_of_float(x) (x)
#define float_of_bf16(x) from_bf16(x)

#if defined(__AVX512BW__) && defined(__AVX512VL__)
static inline __mmask16 first(place count) { return count >= 16 ? 0xffff : count > 0 ? (1u << count) - 1 : 0; }

static inline void turn_16(__m512i row[16]) {  /* rows become columns, by 4 and then by 16 */
    __m512i part[16];
    UNROLLED for (int i = 0; i < 16; i += 2) {
        part[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
        part[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
    }
    UNROLLED for (int i = 0; i < 16; i += 4) {
        row[i] = _mm512_unpacklo_epi64(part[i], part[i + 2]);
        row[i + 1] = _mm512_unpackhi_epi64(part[i], part[i + 2]);
        row[i + 2] = _mm512_unpacklo_epi64(part[i + 1], part[i + 3]);
        row[i + 3] = _mm512_unpackhi_epi64(part[i + 1], part[i + 3]);
    }
    UNROLLED for (int i = 0; i < 4; i++) {
        __m512i even = _mm512_shuffle_i32x4(row[i], row[4 + i], 0x88);
        __m512i odd = _mm512_shuffle_i32x4(row[i], row[4 + i], 0xdd);
        __m512i later = _mm512_shuffle_i32x4(row[8 + i], row[12 + i], 0x88);
        __m512i last = _mm512_shuffle_i32x4(row[8 + i], row[12 + i], 0xdd);
        part[i] = _mm512_shuffle_i32x4(even, later, 0x88);
        part[4 + i] = _mm512_shuffle_i32x4(odd, last, 0x88);
        part[8 + i] = _mm512_shuffle_i32x4(even, later, 0xdd);
        part[12 + i] = _mm512_shuffle_i32x4(odd, last, 0xdd);
    }
    UNROLLED for (int i = 0; i < 16; i++) row[i] = part[i];
}

/* 16 cells from place l of a row; cell l of 16 columns. */
static inline __m512i cells_float_float(const float *x, place l, place inner) {
    return (__m512i)_mm512_maskz_loadu_ps(first(inner - l), x + l);
}
static inline __m512i cells_float_bf16(const bf16 *x, place l, place inner) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(inner - l), x + l)), 16);
}

#define STRIPS_OF(CELL, TYPE, PLACES)                                                                                  \
    static void strips_##CELL##_##TYPE(int transposed, CELL *to, place inner, place columns, const TYPE *from,         \
                                       place stride) {                                                                 \
        const place cells = CELLS_##CELL(inner);                                                                       \
        for (place l = 0; !transposed && l < cells; l++)                                                               \
            for (place j = 0; j < columns; j += 16)                                                                    \
                _mm512_store_si512(to + j * cells + l * 16,                                                            \
                                   across_##CELL##_##TYPE(from, stride, l, inner, j, columns));                        \
        for (place j = 0; transposed && j < columns; j += 16, to += 16 * cells)                                        \
            for (place l = 0; l < cells; l += 16) {                                                                    \
                __m512i row[16];                                                                                       \
                UNROLLED for (int i = 0; i < 16; i++)                                                                  \
                    row[i] = cells_##CELL##_##TYPE(from + (j + i < columns ? j + i : 0) * stride, l * PLACES,          \
                                                   j + i < columns ? inner : 0);                                       \
                turn_16(row);                                                                                          \
                UNROLLED for (int i = 0; i < 16; i++)                                                                  \
                    if (l + i < cells) _mm512_store_si512(to + (l + i) * 16, row[i]);                                  \
            }                                                                                                          \
    }
#define across_float_float(from, stride, l, inner, j, columns) cells_float_float(from + l * stride, j, columns)
#define across_float_bf16(from, stride, l, inner, j, columns) cells_float_bf16(from + l * stride, j, columns)
STRIPS_OF(float, float, 1)
STRIPS_OF(float, bf16, 1)
#else
#define STRIPS_OF(CELL, TYPE)                                                                                          \
    static void strips_##CELL##_##TYPE(int transposed, CELL *to, place inner, place columns, const TYPE *from,         \
                                      place stride) {                                                                  \
        place along = transposed ? 1 : stride, across = transposed ? stride : 1;                                       \
        for (place j = 0; j < columns; j += LANES, to += LANES * inner)                                                \
            for (place l = 0; l < inner; l++)                                                                          \
                for (place i = 0; i < LANES; i++)                                                                      \
                    to[l * LANES + i] = j + i < columns ? float_of_##TYPE(from[l * along + (j + i) * across]) : 0;     \
    }
STRIPS_OF(float, float)
STRIPS_OF(float, bf16)
#endif

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define PAIRS
typedef uint32_t pair;  /* places 2 l and 2 l + 1 of the summed axis */
#define CELLS_pair(inner) (((inner) + 1) / 2)
static inline __m256i load_bf16(const bf16 *x, place count) { return _mm256_maskz_loadu_epi16(first(count), x); }
static inline __m256i load_float(const float *x, place count) {
    return (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(first(count), x));
}

#define PACK(TYPE)                                                                                                     \
    static inline __m512i cells_pair_##TYPE(const TYPE *x, place l, place inner) {                                     \
        return _mm512_inserti64x4(_mm512_castsi256_si512(load_##TYPE(x + l, inner - l)),                               \
                                  load_##TYPE(x + l + 16, inner - l - 16), 1);                                         \
    }                                                                                                                  \
    static inline __m512i across_pair_##TYPE(const TYPE *x, place stride, place l, place inner, place j,               \
                                             place columns) {                                                          \
        const TYPE *one = x + 2 * l * stride + j, *two = 2 * l + 1 < inner ? one + stride : one;                       \
        __m512i low = _mm512_cvtepu16_epi32(load_##TYPE(one, columns - j));                                            \
        __m512i high = _mm512_cvtepu16_epi32(load_##TYPE(two, one == two ? 0 : columns - j));                          \
        return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));                                                      \
    }                                                                                                                  \
    STRIPS_OF(pair, TYPE, 2)                                                                                           \
    static void rows_pair_##TYPE(int transposed, pair *to, place rows, place inner, const TYPE *from, place stride) {  \
        const place cells = CELLS_pair(inner);                                                                         \
        for (place i = 0; !transposed && i < rows; i++)                                                                \
            for (place l = 0; l < cells; l += 16)                                                                      \
                _mm512_mask_storeu_epi32(to + i * cells + l, first(cells - l),                                         \
                                         cells_pair_##TYPE(from + i * stride, 2 * l, inner));                          \
        for (place i = 0; transposed && i < rows; i += 16)                                                             \
            for (place l = 0; l < cells; l += 16) {                                                                    \
                __m512i row[16];                                                                                       \
                UNROLLED for (int m = 0; m < 16; m++)                                                                  \
                    row[m] = across_pair_##TYPE(from, stride, l + m < cells ? l + m : 0, inner, i,                     \
                                                l + m < cells ? rows : 0);                                             \
                turn_16(row);                                                                                          \
                UNROLLED for (int m = 0; m < 16; m++)                                                                  \
                    if (i + m < rows) _mm512_mask_storeu_epi32(to + (i + m) * cells + l, first(cells - l), row[m]);    \
            }                                                                                                          \
    }
#else
typedef float pair;
#define CELLS_pair(inner) (inner)
#define strips_pair_float strips_float_float
#define strips_pair_bf16 strips_float_bf16
#define PACK(TYPE)                                                                                                     \
    static void rows_pair_##TYPE(int transposed, pair *to, place rows, place inner, const TYPE *from, place stride) {  \
        for (place i = 0; i < rows; i++)                                                                               \
            for (place l = 0; l < inner; l++)                                                                          \
                to[i * inner + l] = float_of_##TYPE(from[transposed ? l * stride + i : i * stride + l]);               \
    }
#endif
PACK(bf16)
PACK(float)
"""


def _function(routine: tree.Routine, constants: Mapping[str, int]) -> Iterator[str]:
    """Return constants and a parallel region: a thread's workspace, iterations, and the sums of all threads."""
    totals, scratch = routine.totals, routine.arrays("scratch")
    yield from (f"const place {c} = {constants[axis]};" for axis, c in routine.sizes.items() if axis in constants)
    yield from statements(routine.before, GNU)
    if totals:
        yield "static char *sums[THREADS];"
    inside = []
    if totals:
        parallel = "omp_get_thread_num(), threads = omp_get_num_threads()" if routine.work else "0, threads = 1"
        inside.append(f"const int thread = {parallel};")
    buffers = {
        array: f"ROUND(({number(array.points)}) * sizeof({array.type}))"
        for array in (*(total.sums for total in totals), *scratch)
    }
    if buffers:
        inside.append(f"char *memory = own({' + '.join(buffers.values())});")
    if totals:
        inside.append("sums[thread] = memory;")
    for array, size in buffers.items():
        inside.append(f"{array.type} *{array.name} = ({array.type} *)memory;")
        inside += [f"memset(memory, 0, {size});"] if array.role == "sums" else []
        inside.append(f"memory += {size};")
    if routine.work:
        yield f"#pragma omp parallel if ((double){number(routine.work)} > 50000.0)"
        inside.append(_share_out(routine))
    inside += statements([routine.iterations], GNU)
    for i, total in enumerate(totals):
        first = " + ".join([*buffers.values()][:i]) or "0"
        inside += ["#pragma omp for"] if routine.work else []
        inside += _added_up(total, first)
    yield from block("", inside)


def _share_out(routine: tree.Routine) -> str:
    """Return the OpenMP schedule: dynamic for iterations with products, unless sums must be deterministic."""
    body = routine.iterations.body
    flat = all(
        isinstance(statement, tree.Let) or (isinstance(statement, tree.Store) and statement.sign == "=")
        for statement in body
    )
    simple = flat and not routine.totals and routine.iterations.counter != ITERATION
    dynamic = not routine.totals and any(isinstance(part, tree.Dot) for part in routine.parts)
    return f"#pragma omp for {'simd ' if simple else ''}schedule({'dynamic' if dynamic else 'static'})"


def _added_up(total: tree.ThreadSum, first: str) -> Iterator[str]:
    """Return the reduction over all threads; their sums begin at an offset of their workspace."""
    kind = total.sums.type
    return block(
        f"for (place i = 0; i < {number(total.sums.points)}; i++)",
        (
            f"{kind} sum = 0;",
            f"for (int one = 0; one < threads; one++) sum += ((const {kind} *)(sums[one] + {first}))[i];",
            f"{total.to.name}[i] = {number(total.value)};",
        ),
    )


def _product(part: tree.Dot | tree.Pack) -> Iterator[str]:
    """Return the call of a product: of tiles for packed factors, else of a library."""
    if isinstance(part, tree.Pack):
        kind = f"{part.to.type}_{part.source.first.array.type}"
        extents = ", ".join(map(number, part.extents))
        source = f"{pointer(part.source)}, {number(part.source.stride)}"
        yield f"{part.form}_{kind}({int(part.source.is_transposed)}, {part.to.name}, {extents}, {source});"
        return
    factors = (part.left, part.right)
    packed = isinstance(part.right, tree.Packed) and part.right.array.type
    name = f"tiled_{packed}" if packed else f"product_{part.to.first.array.type}"
    transposed = [str(int(factor.is_transposed)) for factor in factors if isinstance(factor, tree.MatrixBlock)]
    yield f"{name}({', '.join((*transposed, *map(number, part.extents)))},"
    yield from (f"              {_factor(factor)}," for factor in factors)
    yield f"              {int(part.add)}, {pointer(part.to)}, {number(part.to.stride)});"


def _factor(factor: tree.MatrixBlock | tree.Packed) -> str:
    if isinstance(factor, tree.MatrixBlock):
        return f"{pointer(factor)}, {number(factor.stride)}"
    form, array, length = factor.form.upper()[:-1], factor.array, number(factor.length)
    first = f" + {form}({array.type}, {length}, {', '.join(map(number, factor.first))})"
    return f"{array.name}{'' if factor.first == (ZERO, ZERO) else first}, {length}"


GNU = Printer(
    BASIS.lstrip() + PRELUDE + PACKED + TILES + "\n",
    _function,
    _product,
    ("#pragma GCC ivdep",),
    tiles=True,
    tile=(16, 128),
)
