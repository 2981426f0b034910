/* Elementary functions for real = float. Coefficients: Cephes (Moshier 1992; expf.c, logf.c, sinf.c, atanf.c) for exp, log, sin,
   cos and atan; Eigen (MathFunctionsImpl.h, SpecialFunctionsImpl.h) for tanh and erf. */

static real scaled_real(real x, int power) { /* x 2^power, in two steps: 2^128 is no float */
    const int half = power >> 1;
    union { int32_t bits; real value; } one, two;
    one.bits = (int32_t)((uint32_t)(half + 127) << 23);
    two.bits = (int32_t)((uint32_t)(power - half + 127) << 23);
    return x * one.value * two.value;
}

static real expm1_near(real r) { /* e^r - 1 for |r| <= log(2) / 2: Cephes, expf.c */
    real p = (real)1.9875691500e-4;
    p = p * r + (real)1.3981999507e-3;
    p = p * r + (real)8.3334519073e-3;
    p = p * r + (real)4.1665795894e-2;
    p = p * r + (real)1.6666665459e-1;
    p = p * r + (real)5.0000001201e-1;
    return p * (r * r) + r;
}

static int power_of_two(real x, real *rest) { /* x = n log(2) + rest, log(2) in two parts: Cephes, expf.c */
    const real times = x * (real)1.44269504088896341;
    const int n = (int)(times < 0 ? times - (real)0.5 : times + (real)0.5);
    *rest = x - (real)n * (real)0.693359375 - (real)n * (real)-2.12194440e-4;
    return n;
}

static real exp_real(real x) {
    real rest;
    int n;
    if (x < (real)-87.33654) return 0;
    n = power_of_two(x > (real)88.72283 ? (real)88.72283 : x, &rest);
    return scaled_real((real)1 + expm1_near(rest), n);
}

static real split_real(real x, int *power) { /* x = m 2^power with m from sqrt(1/2) to sqrt(2) */
    union { uint32_t bits; real value; } u;
    int e = 0;
    u.value = x;
    if (u.bits < 0x00800000u) { u.value = x * (real)33554432.0; e = -25; }
    e += (int)(u.bits >> 23) - 126;
    u.bits = (u.bits & 0x007fffffu) | 0x3f000000u;
    if (u.value < (real)0.70710678118654752) { u.value = u.value + u.value; e--; }
    *power = e;
    return u.value;
}

static real log_real(real x) { /* Cephes, logf.c */
    int n;
    real f, z, p;
    if (!(x > 0)) return x < 0 ? (x - x) / (x - x) : (real)-1 / (x * x);
    if (x > (real)3.4028234e38) return x;
    f = split_real(x, &n) - (real)1;
    z = f * f;
    p = (real)7.0376836292e-2;
    p = p * f + (real)-1.1514610310e-1;
    p = p * f + (real)1.1676998740e-1;
    p = p * f + (real)-1.2420140846e-1;
    p = p * f + (real)1.4249322787e-1;
    p = p * f + (real)-1.6668057665e-1;
    p = p * f + (real)2.0000714765e-1;
    p = p * f + (real)-2.4999993993e-1;
    p = p * f + (real)3.3333331174e-1;
    p = p * f * z + (real)n * (real)-2.12194440e-4 - (real)0.5 * z;
    return f + p + (real)n * (real)0.693359375;
}

static real tanh_real(real x) { /* Eigen: an odd rational function, up to where tanh rounds to one */
    const real end = (real)7.90531110763549805;
    const real c = x < -end ? -end : x > end ? end : x, s = c * c;
    real p = s * (real)-2.76076847742355e-16 + (real)2.00018790482477e-13;
    real q = s * (real)1.19825839466702e-06 + (real)1.18534705686654e-04;
    p = p * s + (real)-8.60467152213735e-11;
    p = p * s + (real)5.12229709037114e-08;
    p = p * s + (real)1.48572235717979e-05;
    p = p * s + (real)6.37261928875436e-04;
    p = p * s + (real)4.89352455891786e-03;
    q = q * s + (real)2.26843463243900e-03;
    q = q * s + (real)4.89352518554385e-03;
    return c * p / q;
}

static real erf_real(real x) { /* Eigen: an odd rational function, up to where erf rounds to one */
    const real c = x < (real)-4 ? (real)-4 : x > (real)4 ? (real)4 : x, s = c * c;
    real p = s * (real)-2.72614225801306e-10 + (real)2.77068142495902e-08;
    real q = s * (real)-1.45660718464996e-05 + (real)-2.13374055278905e-04;
    p = p * s + (real)-2.10102402082508e-06;
    p = p * s + (real)-5.69250639462346e-05;
    p = p * s + (real)-7.34990630326855e-04;
    p = p * s + (real)-2.95459980854025e-03;
    p = p * s + (real)-1.60960333262415e-02;
    q = q * s + (real)-1.68282697438203e-03;
    q = q * s + (real)-7.37332916720468e-03;
    q = q * s + (real)-1.42647390514189e-02;
    return c * p / q;
}

static real sqrt_real(real x) { /* correctly rounded: the root of a whole number, bit by bit, as in fdlibm's e_sqrtf.c */
    union { uint32_t bits; real value; } u;
    uint32_t m, bit, root = 0, twice = 0;
    int e = -127;
    if (!(x > 0) || x > (real)3.4028234e38) return x < 0 ? (x - x) / (x - x) : x;
    u.value = x;
    if (u.bits < 0x00800000u) { u.value = x * (real)16777216.0; e -= 24; }
    e += (int)(u.bits >> 23);
    m = (u.bits & 0x007fffffu) | 0x00800000u;
    if (e & 1) m += m;
    m += m;
    for (bit = 0x01000000u; bit; bit >>= 1) {
        if (twice + bit <= m) { m -= twice + bit; twice += bit + bit; root += bit; }
        m += m;
    }
    if (m) root += root & 1u;
    u.bits = (root >> 1) + 0x3f000000u + ((uint32_t)((e - (e & 1)) / 2) << 23);
    return u.value;
}

static real sin_near(real r) { /* for |r| <= pi / 4: Cephes, sinf.c */
    const real z = r * r;
    return (((real)-1.9515295891e-4 * z + (real)8.3321608736e-3) * z + (real)-1.6666654611e-1) * z * r + r;
}

static real cos_near(real r) {
    const real z = r * r;
    const real p = ((real)2.443315711809948e-5 * z + (real)-1.388731625493765e-3) * z + (real)4.166664568298827e-2;
    return p * z * z - (real)0.5 * z + (real)1;
}

static real atan_near(real r) { /* for |r| <= tan(pi / 8): Cephes, atanf.c */
    const real z = r * r;
    real p = (real)8.05374449538e-2;
    p = p * z + (real)-1.38776856032e-1;
    p = p * z + (real)1.99777106478e-1;
    p = p * z + (real)-3.33329491539e-1;
    return p * z * r + r;
}

static int quarter_turns(real x, real *rest) { /* x = n pi/2 + rest, pi/2 in three parts: Cephes, sinf.c */
    const real times = x * (real)0.63661977236758134;
    const int n = (int)(times < 0 ? times - (real)0.5 : times + (real)0.5);
    const real k = (real)n;
    *rest = ((x - k * (real)1.5703125) - k * (real)4.837512969970703125e-4) - k * (real)7.54978995489188216e-8;
    return n;
}

static real floor_real(real x) {
    real whole;
    if (!(x > (real)-8388608.0 && x < (real)8388608.0)) return x;
    whole = (real)(int32_t)x;
    return whole > x ? whole - (real)1 : whole;
}
