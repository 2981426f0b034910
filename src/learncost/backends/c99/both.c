/* What follows from the functions of either type. */

static real expm1_real(real x) { /* e^x - 1, exact where x is small */
    real rest;
    int n;
    if (x < (real)-40) return (real)-1;
    if (x > (real)80) return exp_real(x);
    n = power_of_two(x, &rest);
    return n ? scaled_real(expm1_near(rest), n) + (scaled_real((real)1, n) - (real)1) : expm1_near(rest);
}

static real log1p_real(real x) { /* log(1 + x), exact where x is small: Kahan's correction of what 1 + x loses */
    const real u = (real)1 + x;
    return u - (real)1 == 0 ? x : log_real(u) * (x / (u - (real)1));
}

static real sin_real(real x) { /* for |x| up to some thousand pi; beyond it loses digits */
    real r, y;
    const int n = quarter_turns(x, &r);
    y = n & 1 ? cos_near(r) : sin_near(r);
    return n & 2 ? -y : y;
}

static real cos_real(real x) {
    real r, y;
    const int n = quarter_turns(x, &r);
    y = n & 1 ? sin_near(r) : cos_near(r);
    return (n + 1) & 2 ? -y : y;
}

static real atan_real(real x) { /* of |x| around 1 the angle from 45 degrees, of a larger one that from 90 */
    const real size = x < 0 ? -x : x;
    real y;
    if (size < (real)0.4142135623730950488) return atan_near(x);
    if (size < (real)2.4142135623730950488) {
        y = (real)0.78539816339744830962 + atan_near((size - (real)1) / (size + (real)1));
    } else {
        y = (real)1.57079632679489661923 - atan_near((real)1 / size);
    }
    return x < 0 ? -y : y;
}

static real atan2_real(real x, real z) { /* the angle of the point with x across and z along the axis */
    const real half_turn = (real)3.14159265358979323846;
    if (z > 0) return atan_real(x / z);
    if (z < 0) return atan_real(x / z) + (x < 0 ? -half_turn : half_turn);
    return x > 0 ? (real)0.5 * half_turn : x < 0 ? (real)-0.5 * half_turn : x + z;
}

static uint32_t mixed(uint32_t h) { /* Mueller's hash of 32 bits: every bit depends on every bit */
    h = (h ^ h >> 16) * 0x45d9f3bu;
    h = (h ^ h >> 16) * 0x45d9f3bu;
    return h ^ h >> 16;
}

static real hashed_real(real x, real z) { /* a whole number below 2^24 that two whole numbers give, as if drawn */
    return (real)(mixed((uint32_t)(int32_t)x * 0x9e3779b1u + (uint32_t)(int32_t)z) >> 8);
}

static real coin_real(real x, real z) { /* 1 or -1, as two whole numbers say */
    return mixed((uint32_t)(int32_t)x * 0x9e3779b1u + (uint32_t)(int32_t)z) >> 31 ? (real)-1 : (real)1;
}

static real fabs_real(real x) { return x < 0 ? -x : x; }

static real shift_real(real x, real z) { /* x 2^-z as the nearest whole number, at most 2^30 */
    real y = x;
    for (; z >= 1; z = z - (real)1) y = y * (real)0.5;
    for (; z <= (real)-1; z = z + (real)1) y = y + y;
    y = floor_real(y + (real)0.5);
    return y > (real)1073741824 ? (real)1073741824 : y < (real)-1073741824 ? (real)-1073741824 : y;
}

static real bits_real(real x) { /* the least n of which 2^n is larger than |x|; of 0 it is 0 */
    real size = x < 0 ? -x : x, n = 0;
    for (; size >= 1; size = size * (real)0.5) n = n + (real)1;
    for (; size > 0 && size < (real)0.5; size = size + size) n = n - (real)1;
    return n;
}

static real pow_real(real x, real z) { /* by multiplying for small whole z, else e^(z log x) */
    const real size = z < 0 ? -z : z;
    real y = 1, factor = x;
    if (size <= (real)32 && floor_real(size) - size == 0) {
        for (int n = (int)size; n; n >>= 1, factor = factor * factor)
            if (n & 1) y = y * factor;
        return z < 0 ? (real)1 / y : y;
    }
    if (x > 0) return exp_real(z * log_real(x));
    if (x < 0 && floor_real(z) - z == 0) {
        y = exp_real(z * log_real(-x));
        return floor_real(z * (real)0.5) * (real)2 - z == 0 ? y : -y;
    }
    return x < 0 ? (x - x) / (x - x) : z < 0 ? (real)1 / (x * x) : (real)0;
}
