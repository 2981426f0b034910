/* The functions of whole numbers of 32 bits, where a program has no others. */

static real shift_real(real x, real z) { /* x 2^-z as the nearest whole number, at most 2^30; >> keeps the sign */
    const real most = 1073741824;
    if (z > 0) return z > 32 ? 0 : ((x >> (z - 1)) + 1) >> 1;
    if (x > (z < -30 ? 0 : most >> -z)) return most;
    if (x < (z < -30 ? 0 : -(most >> -z))) return -most;
    return z < -30 ? 0 : x * (real)((uint32_t)1 << -z);
}

static real bits_real(real x) { /* the least n of which 2^n is larger than |x|; of 0 it is 0 */
    real n = 0;
    for (real size = x < 0 ? -x : x; size; size >>= 1) n++;
    return n;
}

static void draw(place points, real mean, real deviation, uint32_t seed, real *to) { /* all as likely, from 7/4 of it */
    const uint32_t first = mixed(seed * 0x9e3779b9u), wide = (uint32_t)(deviation * 7 / 4);
    for (place i = 0; i < points; i++)
        to[i] = mean + (real)(mixed(first + (uint32_t)i) % (wide + wide + 1u)) - (real)wide;
}

static void draw_codes(place points, real mean, real deviation, uint32_t seed, int8_t *to) {
    const uint32_t first = mixed(seed * 0x9e3779b9u), wide = (uint32_t)(deviation * 7 / 4);
    for (place i = 0; i < points; i++)
        to[i] = (int8_t)(mean + (real)(mixed(first + (uint32_t)i) % (wide + wide + 1u)) - (real)wide);
}
