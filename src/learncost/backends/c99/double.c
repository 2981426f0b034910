/* Elementary functions for real = double. Coefficients: fdlibm (Sun Microsystems 1993; e_exp.c, e_log.c, k_sin.c, k_cos.c,
   e_rem_pio2.c, s_atan.c). */

static real scaled_real(real x, int power) { /* x 2^power, in two steps: 2^1024 is no double */
    const int half = power >> 1;
    union { uint64_t bits; real value; } one, two;
    one.bits = (uint64_t)(half + 1023) << 52;
    two.bits = (uint64_t)(power - half + 1023) << 52;
    return x * one.value * two.value;
}

static real expm1_near(real r) { /* e^r - 1 for |r| <= log(2) / 2: fdlibm, e_exp.c */
    const real t = r * r;
    real p = (real)4.13813679705723846039e-08;
    p = p * t + (real)-1.65339022054652515390e-06;
    p = p * t + (real)6.61375632143793436117e-05;
    p = p * t + (real)-2.77777777770155933842e-03;
    p = p * t + (real)1.66666666666666019037e-01;
    p = r - p * t;
    return r + r * p / ((real)2 - p);
}

static int power_of_two(real x, real *rest) { /* x = n log(2) + rest, log(2) in two parts: fdlibm, e_exp.c */
    const real times = x * (real)1.44269504088896338700;
    const int n = (int)(times < 0 ? times - (real)0.5 : times + (real)0.5);
    *rest = x - (real)n * (real)6.93147180369123816490e-01 - (real)n * (real)1.90821492927058770002e-10;
    return n;
}

static real exp_real(real x) {
    real rest;
    int n;
    if (x < (real)-745.2) return 0;
    n = power_of_two(x > (real)709.79 ? (real)709.79 : x, &rest);
    return scaled_real((real)1 + expm1_near(rest), n);
}

static real split_real(real x, int *power) { /* x = m 2^power with m from sqrt(1/2) to sqrt(2) */
    union { uint64_t bits; real value; } u;
    int e = 0;
    u.value = x;
    if (u.bits < 0x0010000000000000u) { u.value = x * (real)18014398509481984.0; e = -54; }
    e += (int)(u.bits >> 52) - 1022;
    u.bits = (u.bits & 0x000fffffffffffffu) | 0x3fe0000000000000u;
    if (u.value < (real)0.70710678118654752440) { u.value = u.value + u.value; e--; }
    *power = e;
    return u.value;
}

static real log_real(real x) { /* fdlibm, e_log.c */
    int n;
    real f, s, z, p, half;
    if (!(x > 0)) return x < 0 ? (x - x) / (x - x) : (real)-1 / (x * x);
    if (x > (real)1.7976931348623157e308) return x;
    f = split_real(x, &n) - (real)1;
    s = f / ((real)2 + f);
    z = s * s;
    p = (real)1.479819860511658591e-01;
    p = p * z + (real)1.531383769920937332e-01;
    p = p * z + (real)1.818357216161805012e-01;
    p = p * z + (real)2.222219843214978396e-01;
    p = p * z + (real)2.857142874366239149e-01;
    p = p * z + (real)3.999999999940941908e-01;
    p = p * z + (real)6.666666666666735130e-01;
    half = (real)0.5 * f * f;
    p = s * (half + p * z) + (real)n * (real)1.90821492927058770002e-10;
    return (real)n * (real)6.93147180369123816490e-01 - ((half - p) - f);
}

static real tanh_real(real x) { /* by e^2x - 1, which is exact where x is small: fdlibm, s_tanh.c */
    const real size = x < 0 ? -x : x;
    real t, y = 1;
    if (size < (real)1) {
        t = expm1_real((real)-2 * size);
        y = -t / (t + (real)2);
    } else if (size < (real)22) {
        y = (real)1 - (real)2 / (expm1_real((real)2 * size) + (real)2);
    }
    return x < 0 ? -y : y;
}

static real erf_real(real x) { /* Abramowitz & Stegun 7.1.6: a series of terms of one sign */
    const real square = x * x;
    real term = x, sum = x;
    if (square > (real)36) return x < 0 ? (real)-1 : (real)1;
    for (int n = 1; n < 200 && sum + term != sum; n++) {
        term = term * square / ((real)n + (real)0.5);
        sum += term;
    }
    return (real)1.12837916709551257390 * exp_real(-square) * sum;
}

static real sqrt_real(real x) { /* correctly rounded: the root of a whole number, bit by bit, as in fdlibm's e_sqrt.c */
    union { uint64_t bits; real value; } u;
    uint64_t m, bit, root = 0, twice = 0;
    int e = -1023;
    if (!(x > 0) || x > (real)1.7976931348623157e308) return x < 0 ? (x - x) / (x - x) : x;
    u.value = x;
    if (u.bits < 0x0010000000000000u) { u.value = x * (real)18014398509481984.0; e -= 54; }
    e += (int)(u.bits >> 52);
    m = (u.bits & 0x000fffffffffffffu) | 0x0010000000000000u;
    if (e & 1) m += m;
    m += m;
    for (bit = 0x0020000000000000u; bit; bit >>= 1) {
        if (twice + bit <= m) { m -= twice + bit; twice += bit + bit; root += bit; }
        m += m;
    }
    if (m) root += root & 1u;
    u.bits = (root >> 1) + 0x3fe0000000000000u + ((uint64_t)((e - (e & 1)) / 2) << 52);
    return u.value;
}

static real sin_near(real r) { /* for |r| <= pi / 4: fdlibm, k_sin.c */
    const real z = r * r;
    real p = (real)1.58969099521155010221e-10;
    p = p * z + (real)-2.50507602534068634195e-08;
    p = p * z + (real)2.75573137070700676789e-06;
    p = p * z + (real)-1.98412698298579493134e-04;
    p = p * z + (real)8.33333333332248946124e-03;
    p = p * z + (real)-1.66666666666666324348e-01;
    return p * z * r + r;
}

static real cos_near(real r) { /* fdlibm, k_cos.c */
    const real z = r * r;
    real p = (real)-1.13596475577881948265e-11;
    p = p * z + (real)2.08757232129817482790e-09;
    p = p * z + (real)-2.75573143513906633035e-07;
    p = p * z + (real)2.48015872894767294178e-05;
    p = p * z + (real)-1.38888888888741095749e-03;
    p = p * z + (real)4.16666666666666019037e-02;
    return p * z * z - (real)0.5 * z + (real)1;
}

static real atan_near(real r) { /* for |r| <= 7 / 16: fdlibm, s_atan.c */
    const real z = r * r;
    real p = (real)1.62858201153657823623e-02;
    p = p * z + (real)-3.65315727442169155270e-02;
    p = p * z + (real)4.97687799461593236017e-02;
    p = p * z + (real)-5.83357013379057348645e-02;
    p = p * z + (real)6.66107313738753120669e-02;
    p = p * z + (real)-7.69187620504482999495e-02;
    p = p * z + (real)9.09088713343650656196e-02;
    p = p * z + (real)-1.11111104054623557880e-01;
    p = p * z + (real)1.42857142725034663711e-01;
    p = p * z + (real)-1.99999999998764832476e-01;
    p = p * z + (real)3.33333333333329318027e-01;
    return r - p * z * r;
}

static int quarter_turns(real x, real *rest) { /* x = n pi/2 + rest, pi/2 in three parts: fdlibm, e_rem_pio2.c */
    const real times = x * (real)0.63661977236758134308;
    const int n = (int)(times < 0 ? times - (real)0.5 : times + (real)0.5);
    const real k = (real)n;
    *rest = ((x - k * (real)1.57079632673412561417) - k * (real)6.07710050630396597660e-11)
          - k * (real)2.02226624879595063154e-21;
    return n;
}

static real floor_real(real x) {
    real whole;
    if (!(x > (real)-4503599627370496.0 && x < (real)4503599627370496.0)) return x;
    whole = (real)(int64_t)x;
    return whole > x ? whole - (real)1 : whole;
}
