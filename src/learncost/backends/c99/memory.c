/* What a step does with whole arrays, and the optimizer's numbers. */

static void copy(place points, const real *from, real *to) { /* by twos: in a row compilers make memmove of it */
    for (place odd = 0; odd < 2; odd++)
        for (place i = odd; i < points; i += 2) to[i] = from[i];
}

static void copy_codes(place points, const int8_t *from, int8_t *to) {
    for (place odd = 0; odd < 2; odd++)
        for (place i = odd; i < points; i += 2) to[i] = from[i];
}

static void zero(place points, real *to) {
    for (place i = 0; i < points; i++) to[i] = 0;
}

/* Rows are added to those of a table that an index names. */
static void add_rows(place turns, place rows, place columns, const place *at, const real *from, real *to) {
    for (place t = 0; t < turns; t++)
        for (place r = 0; r < rows; r++)
            for (place c = 0; c < columns; c++) to[at[r] * columns + c] += from[(t * rows + r) * columns + c];
}

static real missing_power(real c, uint32_t t) { /* 1 - (1 - c)^t, with all its digits where c is small */
    real y = 0;
    for (; t; t >>= 1) {
        if (t & 1u) y = y + c - y * c;
        c = c + c - c * c;
    }
    return y;
}

static real normal(uint32_t number) { /* Box and Muller 1958 */
    const real u = ((real)(mixed(number) >> 8) + (real)0.5) / (real)16777216.0;
    const real v = (real)(mixed(number + 1u) >> 8) / (real)16777216.0;
    return sqrt_real((real)-2 * log_real(u)) * cos_real((real)6.28318530717958648 * v);
}

static void draw(place points, real mean, real deviation, uint32_t seed, real *to) {
    uint32_t number = mixed(seed * 0x9e3779b9u);
    for (place i = 0; i < points; i++) {
        to[i] = mean;
        if (deviation > 0) to[i] += deviation * normal(number);
        number += 2u;
    }
}

static void draw_codes(place points, real mean, real deviation, uint32_t seed, int8_t *to) {
    uint32_t number = mixed(seed * 0x9e3779b9u);
    for (place i = 0; i < points; i++) {
        const real code = floor_real(mean + deviation * normal(number) + (real)0.5);
        to[i] = (int8_t)(code > 127 ? 127 : code < -127 ? -127 : code);
        number += 2u;
    }
}

static void drop(place points, uint32_t least, real kept, uint32_t seed, real *to) {
    for (place i = 0; i < points; i++) to[i] = mixed(seed + (uint32_t)i) >> 8 < least ? (real)0 : kept;
}
