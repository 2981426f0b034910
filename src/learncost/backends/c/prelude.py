"""The prelude of C files: types and loop products; for GNU C also vectorizable functions."""

from __future__ import annotations

BASIS = r"""
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef ptrdiff_t place; /* a position along an axis */
typedef uint16_t bf16;   /* the upper half of a float */

#define LOWEST -1e30f /* what minus infinity is here: -ffast-math knows no infinities */

static inline float from_bf16(bf16 x) {
    union { uint32_t bits; float value; } u = {(uint32_t)x << 16};
    return u.value;
}

static inline bf16 to_bf16(float x) {  /* to the nearest, ties to even */
    union { float value; uint32_t bits; } u = {x};
    uint32_t rounded = (u.bits + 0x7fffu + (u.bits >> 16 & 1u)) >> 16;
    uint32_t quiet = u.bits >> 16 | 0x40u;
    return (bf16)((u.bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline uint32_t mixed_uint32(double x, double z) {  /* a hash of two whole numbers */
    uint32_t h = (uint32_t)(int64_t)x * 0x9e3779b1u + (uint32_t)(int64_t)z;
    h = (h ^ h >> 16) * 0x45d9f3bu;
    h = (h ^ h >> 16) * 0x45d9f3bu;
    return h ^ h >> 16;
}

static inline float hashed_float(double x, double z) { return (float)(mixed_uint32(x, z) >> 8); }
static inline float coin_float(double x, double z) { return mixed_uint32(x, z) >> 31 ? -1.0f : 1.0f; }
#define hashed_double hashed_float

static inline double shift_double(double x, double z) {  /* x 2^-z as the nearest whole number, at most 2^30 */
    double y = floor(x * exp2(z > 64 ? -64 : z < -64 ? 64 : -z) + 0.5);
    return y > 1073741824.0 ? 1073741824.0 : y < -1073741824.0 ? -1073741824.0 : y;
}

static inline double bits_double(double x) {
    int n;
    frexp(x, &n);
    return n;
}

static inline float shift_float(float x, float z) { return (float)shift_double(x, z); }
static inline float bits_float(float x) { return (float)bits_double(x); }
#define coin_double coin_float

/* C = A B, or C += A B; the elements of a row, or of a transposed factor's column, are adjacent. */
#define LOOPS(TYPE)                                                                                                    \
    static inline void loops_##TYPE(int a_transposed, int b_transposed, place rows, place columns, place inner,        \
                                    const TYPE *a, place a_stride, const TYPE *b, place b_stride, int add, TYPE *c,    \
                                    place c_stride) {                                                                  \
        for (place i = 0; i < rows; i++) {                                                                             \
            for (place j = 0; j < columns && !add; j++) c[i * c_stride + j] = 0;                                       \
            for (place l = 0; l < inner; l++) {                                                                        \
                const TYPE factor = a_transposed ? a[l * a_stride + i] : a[i * a_stride + l];                          \
                for (place j = 0; j < columns; j++)                                                                    \
                    c[i * c_stride + j] += factor * (b_transposed ? b[j * b_stride + l] : b[l * b_stride + j]);        \
            }                                                                                                          \
        }                                                                                                              \
    }
LOOPS(float)
LOOPS(double)
"""
"""C99 for all printers."""

# float exp: Cephes' expf (Moshier), a polynomial of degree 6 on +-log(2)/2 with log(2) in two parts.
# float tanh and erf: odd rational functions, minimax over the range outside of which the value rounds to one, with
# the coefficients of Eigen (MathFunctionsImpl.h, SpecialFunctionsImpl.h). tests/test_c_functions.py measures all three.
PRELUDE = r"""
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

#define THREADS 1024 /* more threads than that share no sums */

static inline float times_plus(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

static inline float exp_float(float x) {
    float clamped = x < -87.33654f ? -87.33654f : x > 88.72283f ? 88.72283f : x;
    float n = __builtin_rintf(clamped * 1.44269504088896341f);
    float r = times_plus(n, -0.693359375f, clamped);
    r = times_plus(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = times_plus(p, r, 1.3981999507e-3f);
    p = times_plus(p, r, 8.3334519073e-3f);
    p = times_plus(p, r, 4.1665795894e-2f);
    p = times_plus(p, r, 1.6666665459e-1f);
    p = times_plus(p, r, 5.0000001201e-1f);
    p = times_plus(p, r * r, r + 1.0f);
    int whole = (int)n, half = whole >> 1;  /* twice a half power: 2^128 is no float */
    union { int32_t bits; float value; } one = {(half + 127) << 23}, two = {(whole - half + 127) << 23};
    float y = p * one.value * two.value;
    return x < -87.33654f ? 0.0f : y;
}

static inline float tanh_float(float x) {
    float c = x < -7.90531110763549805f ? -7.90531110763549805f : x > 7.90531110763549805f ? 7.90531110763549805f : x;
    float s = c * c;
    float p = times_plus(s, -2.76076847742355e-16f, 2.00018790482477e-13f);
    p = times_plus(p, s, -8.60467152213735e-11f);
    p = times_plus(p, s, 5.12229709037114e-08f);
    p = times_plus(p, s, 1.48572235717979e-05f);
    p = times_plus(p, s, 6.37261928875436e-04f);
    p = times_plus(p, s, 4.89352455891786e-03f);
    float q = times_plus(s, 1.19825839466702e-06f, 1.18534705686654e-04f);
    q = times_plus(q, s, 2.26843463243900e-03f);
    q = times_plus(q, s, 4.89352518554385e-03f);
    return c * p / q;
}

static inline float erf_float(float x) {
    float c = x < -4.0f ? -4.0f : x > 4.0f ? 4.0f : x;
    float s = c * c;
    float p = times_plus(s, -2.72614225801306e-10f, 2.77068142495902e-08f);
    p = times_plus(p, s, -2.10102402082508e-06f);
    p = times_plus(p, s, -5.69250639462346e-05f);
    p = times_plus(p, s, -7.34990630326855e-04f);
    p = times_plus(p, s, -2.95459980854025e-03f);
    p = times_plus(p, s, -1.60960333262415e-02f);
    float q = times_plus(s, -1.45660718464996e-05f, -2.13374055278905e-04f);
    q = times_plus(q, s, -1.68282697438203e-03f);
    q = times_plus(q, s, -7.37332916720468e-03f);
    q = times_plus(q, s, -1.42647390514189e-02f);
    return c * p / q;
}

static inline float log_float(float x) { return logf(x); }
static inline float sqrt_float(float x) { return __builtin_sqrtf(x); }
static inline double exp_double(double x) { return x < -745.0 ? 0.0 : exp(x); }
static inline double tanh_double(double x) { return tanh(x); }
static inline double erf_double(double x) { return erf(x); }
static inline double log_double(double x) { return log(x); }
static inline double sqrt_double(double x) { return sqrt(x); }

/* Memory of a thread's own, kept from call to call. */
static __thread char *own_memory = NULL;
static __thread size_t own_size = 0;

static char *own(size_t bytes) {
    if (bytes > own_size) {
        free(own_memory);
        own_memory = NULL;
        if (posix_memalign((void **)&own_memory, 64, bytes)) abort();
        own_size = bytes;
    }
    return own_memory;
}

#define ROUND(bytes) (((size_t)(bytes) + 63) / 64 * 64)

/* Products in double of a library, handed in once; without one, loops. Rows of C are contiguous: C = A B, or C += A B.
   Those in float are made of tiles, below. */
typedef void (*gemm_double)(const char *, const char *, const int *, const int *, const int *, const double *,
                            const double *, const int *, const double *, const int *, const double *, double *,
                            const int *);
static gemm_double library_double = NULL;

void bind(void *for_float, void *for_double) {
    (void)for_float;
    library_double = (gemm_double)for_double;
}

static inline void product_double(int a_transposed, int b_transposed, place rows, place columns, place inner,
                                  const double *a, place a_stride, const double *b, place b_stride, int add, double *c,
                                  place c_stride) {
    if (rows <= 0 || columns <= 0) return;
    if (library_double && inner > 0) {
        int m = (int)rows, n = (int)columns, k = (int)inner;
        int as = (int)a_stride, bs = (int)b_stride, cs = (int)c_stride;
        double one = 1, beta = add;
        library_double(b_transposed ? "T" : "N", a_transposed ? "T" : "N", &n, &m, &k, &one, b, &bs, a, &as, &beta, c,
                       &cs);
        return;
    }
    loops_double(a_transposed, b_transposed, rows, columns, inner, a, a_stride, b, b_stride, add, c, c_stride);
}
"""
