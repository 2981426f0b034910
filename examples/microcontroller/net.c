/*
 * net.table: one step of bp with momentum, by learncost 0.2.0.
 *
 * For B = 4, under the plan fused,epilogue-update; entries: step, predict.
 *
 * Matrices are drawn with a deviation of the root of 2 over the inputs of a sum (He et al. 2015), of 0.02 where
 * rows are looked up; biases begin at 0, gains at 1.
 *
 * Freestanding C99: no library, no allocation, one thread. All numbers are float.
 *
 * RAM 56,244 bytes: arena 2,628, weights 26,280, states 26,280, inputs 1,040, variables 16. Flash 24 bytes of
 * constants; the code, the stack and what initial values take in flash are the compiler's.
 *
 * Of the arena 2,628 bytes are in use at dW2[e f] of step: A1 1,024, dA1 1,024, dU2 512, scratch of
 * in_product_momentum 64, loss 4.
 *
 * For the same numbers on every processor compile with -std=c99 or -ffp-contract=off, and without -ffast-math.
 */

#include "net.h"

typedef net_real real;
typedef int32_t place; /* a position along an axis, or what an index holds */

#define LOWEST ((real)-1e30) /* in place of minus infinity */

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* what gcc does by -std=c99 */
#endif

#ifdef __GNUC__ /* an array begins where its type may: else gcc aligns some to 8 bytes, with a gap before */
#define PLACED __attribute__((used))
#else
#define PLACED
#endif

static real loss;
static const real net_dloss = 1.0f;
static const real mu = 0.9f;
static real arena[657] PLACED;

static int power_of_two(real x, real *rest) { /* x = n log(2) + rest, log(2) in two parts: Cephes, expf.c */
    const real times = x * (real)1.44269504088896341;
    const int n = (int)(times < 0 ? times - (real)0.5 : times + (real)0.5);
    *rest = x - (real)n * (real)0.693359375 - (real)n * (real)-2.12194440e-4;
    return n;
}

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

static void zero(place points, real *to) {
    for (place i = 0; i < points; i++) to[i] = 0;
}

static uint32_t mixed(uint32_t h) { /* Mueller's hash of 32 bits: every bit depends on every bit */
    h = (h ^ h >> 16) * 0x45d9f3bu;
    h = (h ^ h >> 16) * 0x45d9f3bu;
    return h ^ h >> 16;
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

static int quarter_turns(real x, real *rest) { /* x = n pi/2 + rest, pi/2 in three parts: Cephes, sinf.c */
    const real times = x * (real)0.63661977236758134;
    const int n = (int)(times < 0 ? times - (real)0.5 : times + (real)0.5);
    const real k = (real)n;
    *rest = ((x - k * (real)1.5703125) - k * (real)4.837512969970703125e-4) - k * (real)7.54978995489188216e-8;
    return n;
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

static real cos_real(real x) {
    real r, y;
    const int n = quarter_turns(x, &r);
    y = n & 1 ? sin_near(r) : cos_near(r);
    return (n + 1) & 2 ? -y : y;
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

/* C = A B, or C += A B. Of each factor: the stride of its rows, and of its columns; the rows of C are contiguous. */
static void product(place rows, place columns, place inner, const real *a, place a_row, place a_column, const real *b,
                    place b_row, place b_column, int add, real *c, place c_row) {
    for (place i = 0, tall; i < rows; i += tall) {
        tall = rows - i < 4 ? 1 : 4;
        for (place j = 0, wide; j < columns; j += wide) {
            const real *left = a + i * a_row;
            const real *right = b + j * b_column;
            real *to = c + i * c_row + j;
            wide = columns - j < 4 ? 1 : 4;
            if (tall == 4 && wide == 4) {
                real s00 = 0, s01 = 0, s02 = 0, s03 = 0;
                real s10 = 0, s11 = 0, s12 = 0, s13 = 0;
                real s20 = 0, s21 = 0, s22 = 0, s23 = 0;
                real s30 = 0, s31 = 0, s32 = 0, s33 = 0;
                for (place l = 0; l < inner; l++) {
                    const real b0 = right[0], b1 = right[b_column], b2 = right[2 * b_column], b3 = right[3 * b_column];
                    const real a0 = left[0];
                    s00 += a0 * b0; s01 += a0 * b1; s02 += a0 * b2; s03 += a0 * b3;
                    const real a1 = left[a_row];
                    s10 += a1 * b0; s11 += a1 * b1; s12 += a1 * b2; s13 += a1 * b3;
                    const real a2 = left[2 * a_row];
                    s20 += a2 * b0; s21 += a2 * b1; s22 += a2 * b2; s23 += a2 * b3;
                    const real a3 = left[3 * a_row];
                    s30 += a3 * b0; s31 += a3 * b1; s32 += a3 * b2; s33 += a3 * b3;
                    left += a_column;
                    right += b_row;
                }
                if (add) {
                    to[0] += s00; to[1] += s01; to[2] += s02; to[3] += s03;
                    to[c_row] += s10; to[c_row + 1] += s11; to[c_row + 2] += s12; to[c_row + 3] += s13;
                    to[2 * c_row] += s20; to[2 * c_row + 1] += s21; to[2 * c_row + 2] += s22; to[2 * c_row + 3] += s23;
                    to[3 * c_row] += s30; to[3 * c_row + 1] += s31; to[3 * c_row + 2] += s32; to[3 * c_row + 3] += s33;
                } else {
                    to[0] = s00; to[1] = s01; to[2] = s02; to[3] = s03;
                    to[c_row] = s10; to[c_row + 1] = s11; to[c_row + 2] = s12; to[c_row + 3] = s13;
                    to[2 * c_row] = s20; to[2 * c_row + 1] = s21; to[2 * c_row + 2] = s22; to[2 * c_row + 3] = s23;
                    to[3 * c_row] = s30; to[3 * c_row + 1] = s31; to[3 * c_row + 2] = s32; to[3 * c_row + 3] = s33;
                }
            } else if (wide == 4) {
                real s00 = 0, s01 = 0, s02 = 0, s03 = 0;
                for (place l = 0; l < inner; l++) {
                    const real b0 = right[0], b1 = right[b_column], b2 = right[2 * b_column], b3 = right[3 * b_column];
                    const real a0 = left[0];
                    s00 += a0 * b0; s01 += a0 * b1; s02 += a0 * b2; s03 += a0 * b3;
                    left += a_column;
                    right += b_row;
                }
                if (add) {
                    to[0] += s00; to[1] += s01; to[2] += s02; to[3] += s03;
                } else {
                    to[0] = s00; to[1] = s01; to[2] = s02; to[3] = s03;
                }
            } else if (tall == 4) {
                real s00 = 0;
                real s10 = 0;
                real s20 = 0;
                real s30 = 0;
                for (place l = 0; l < inner; l++) {
                    const real b0 = right[0];
                    const real a0 = left[0];
                    s00 += a0 * b0;
                    const real a1 = left[a_row];
                    s10 += a1 * b0;
                    const real a2 = left[2 * a_row];
                    s20 += a2 * b0;
                    const real a3 = left[3 * a_row];
                    s30 += a3 * b0;
                    left += a_column;
                    right += b_row;
                }
                if (add) {
                    to[0] += s00;
                    to[c_row] += s10;
                    to[2 * c_row] += s20;
                    to[3 * c_row] += s30;
                } else {
                    to[0] = s00;
                    to[c_row] = s10;
                    to[2 * c_row] = s20;
                    to[3 * c_row] = s30;
                }
            } else {
                real s00 = 0;
                for (place l = 0; l < inner; l++) {
                    const real b0 = right[0];
                    const real a0 = left[0];
                    s00 += a0 * b0;
                    left += a_column;
                    right += b_row;
                }
                if (add) {
                    to[0] += s00;
                } else {
                    to[0] = s00;
                }
            }
        }
    }
}

/*
   U1[B e] = H1[B e] + b1[e]
   A1[B e] = relu(U1[B e])
*/
static void net_relu(const real *H1, const real *b1, real *A1, place e) {
    enum { B = 4 };
    for (place i_B = 0; i_B < B; i_B++) {
        for (place i_e = 0; i_e < e; i_e++) {
            const real H1_i = H1[i_B * e + i_e];
            const real b1_i = b1[i_e];
            const real U1 = H1_i + b1_i;
            const real A1_i = U1 > (real)0.0 ? U1 : (real)0.0;
            A1[i_B * e + i_e] = A1_i;
        }
    }
}

/*
   L[B v] = H3[B v] + b3[v]
   P[B v] = log_softmax[v](L[B v])
   T[B] = P[B v=targets[B]]
   loss[] = T[B] share[B]
   dT[B] = dloss[] share[B]
   dP[B v=targets[B]] = dT[B]
   dL[B v] = log_softmax'[v](dP[B v], P[B v])
   db3[v] = dL[B v]
*/
static void net_log_softmax_backward(const real *dloss, const real *H3, const real *b3, const place *targets, const
        real *share, real *loss, real *dL, real *db3, real *P_E_rows) {
    enum { v = 10, B = 4 };
    loss[0] = 0;
    for (place i_v = 0; i_v < v; i_v++) {
        db3[i_v] = 0;
    }
    const real dloss_i = dloss[0];
    for (place i_B = 0; i_B < B; i_B++) {
        real P_m = LOWEST;
        for (place i_v = 0; i_v < v; i_v++) {
            const real H3_i = H3[i_B * v + i_v];
            const real b3_i = b3[i_v];
            const real L = H3_i + b3_i;
            P_m = L > P_m ? L : P_m;
        }
        real P_s = 0;
        for (place i_v = 0; i_v < v; i_v++) {
            const real H3_i = H3[i_B * v + i_v];
            const real b3_i = b3[i_v];
            const real L = H3_i + b3_i;
            const real P_C = L - P_m;
            const real P_E_i = exp_real(P_C);
            P_E_rows[i_v] = P_E_i;
            P_s += P_E_i;
        }
        const place targets_i = targets[i_B];
        const real H3_i = H3[i_B * v + targets_i];
        const real b3_i = b3[targets_i];
        const real L = H3_i + b3_i;
        const real P_C = L - P_m;
        const real P_l = log_real(P_s);
        const real P = P_C - P_l;
        const real T = P;
        const real share_i = share[i_B];
        loss[0] += T * share_i;
        const real dT = dloss_i * share_i;
        for (place i_v = 0; i_v < v; i_v++) {
            const real dP = i_v == targets_i ? dT : 0;
            const real P_E_i = P_E_rows[i_v];
            const real dL_E = P_E_i / P_s;
            const real dL_T = dL_E * dT;
            const real dL_i = dP - dL_T;
            dL[i_B * v + i_v] = dL_i;
            db3[i_v] += dL_i;
        }
    }
}

/*
   U[v] V2[v] = momentum(W[v], G[v], V[v], lr[], mu[])
*/
static void optimizer_momentum(const real *mu, const real *lr, const real *V, const real *G, const real *W, real *V2,
        real *U, place v) {
    const real mu_i = mu[0];
    const real lr_i = lr[0];
    for (place i_v = 0; i_v < v; i_v++) {
        const real V_i = V[i_v];
        const real U_A = V_i * mu_i;
        const real G_i = G[i_v];
        const real V2_i = U_A + G_i;
        const real W_i = W[i_v];
        const real U_S = V2_i * lr_i;
        const real U_i = W_i - U_S;
        V2[i_v] = V2_i;
        U[i_v] = U_i;
    }
}

/*
   dW3[f v] = dL[B v] A2[B f]
   W3.new[f v] W3.V.new[f v] = momentum(W3[f v], dW3[f v], W3.V[f v], lr[], mu[])
*/
static void in_product_momentum(const real *mu, const real *lr, const real *A2, const real *dL, const real *W3_V,
        const real *W3, real *W3_V_new, real *W3_new, real *dW3_tile, place v, place f) {
    enum { B = 4 };
    const real mu_i = mu[0];
    const real lr_i = lr[0];
    for (place from_i_v = 0; from_i_v < v; from_i_v += 4) {
        const place to_i_v = from_i_v + 4 < v ? from_i_v + 4 : v;
        for (place from_i_f = 0; from_i_f < f; from_i_f += 4) {
            const place to_i_f = from_i_f + 4 < f ? from_i_f + 4 : f;
            /* dW3[f v] = dL[B v] A2[B f] */
            product(to_i_f - from_i_f, to_i_v - from_i_v, B, A2 + from_i_f, 1, f, dL + from_i_v, v, 1, 0, dW3_tile, 4);
            for (place i_f = from_i_f; i_f < to_i_f; i_f++) {
                for (place i_v = from_i_v; i_v < to_i_v; i_v++) {
                    const real W3_V_i = W3_V[i_f * v + i_v];
                    const real W3_new_A = W3_V_i * mu_i;
                    const real dW3_tile_i = dW3_tile[(i_f - from_i_f) * 4 + (i_v - from_i_v)];
                    const real W3_V_new_i = W3_new_A + dW3_tile_i;
                    const real W3_i = W3[i_f * v + i_v];
                    const real W3_new_S = W3_V_new_i * lr_i;
                    const real W3_new_i = W3_i - W3_new_S;
                    W3_V_new[i_f * v + i_v] = W3_V_new_i;
                    W3_new[i_f * v + i_v] = W3_new_i;
                }
            }
        }
    }
}

/*
   dU2[B f] = relu'(A2[B f], dA2[B f])
   db2[f] = dU2[B f]
*/
static void net_relu_backward(const real *A2, const real *dA2, real *dU2, real *db2, place f) {
    enum { B = 4 };
    for (place i_f = 0; i_f < f; i_f++) {
        db2[i_f] = 0;
    }
    for (place i_B = 0; i_B < B; i_B++) {
        for (place i_f = 0; i_f < f; i_f++) {
            const real A2_i = A2[i_B * f + i_f];
            const int dU2_C = (real)0.0 < A2_i;
            const real dA2_i = dA2[i_B * f + i_f];
            const real dU2_i = dU2_C ? dA2_i : (real)0.0;
            dU2[i_B * f + i_f] = dU2_i;
            db2[i_f] += dU2_i;
        }
    }
}

/*
   L[B v] = H3[B v] + b3[v]
   P[B v] = log_softmax[v](L[B v])
*/
static void net_log_softmax(const real *H3, const real *b3, real *P) {
    enum { B = 4, v = 10 };
    for (place i_B = 0; i_B < B; i_B++) {
        real P_m = LOWEST;
        for (place i_v = 0; i_v < v; i_v++) {
            const real H3_i = H3[i_B * v + i_v];
            const real b3_i = b3[i_v];
            const real L = H3_i + b3_i;
            P_m = L > P_m ? L : P_m;
        }
        real P_s = 0;
        for (place i_v = 0; i_v < v; i_v++) {
            const real H3_i = H3[i_B * v + i_v];
            const real b3_i = b3[i_v];
            const real L = H3_i + b3_i;
            const real P_C = L - P_m;
            const real P_E = exp_real(P_C);
            P_s += P_E;
        }
        const real P_l = log_real(P_s);
        for (place i_v = 0; i_v < v; i_v++) {
            const real H3_i = H3[i_B * v + i_v];
            const real b3_i = b3[i_v];
            const real L = H3_i + b3_i;
            const real P_C = L - P_m;
            const real P_i = P_C - P_l;
            P[i_B * v + i_v] = P_i;
        }
    }
}

void net_step(void) {
    net_steps++;
    /* --- net --- */
    /* 1. H1[B e] = X[B d] W1[d e] */
    product(4, 64, 64, net_X, 64, 1, net_W1, 64, 1, 0, arena, 64);
    /* 2. U1[B e] = H1[B e] + b1[e]
       A1[B e] = relu(U1[B e]) */
    net_relu(arena, net_b1, arena, 64);
    /* 3. H2[B f] = A1[B e] W2[e f] */
    product(4, 32, 64, arena, 64, 1, net_W2, 32, 1, 0, arena + 512, 32);
    /* 4. U2[B f] = H2[B f] + b2[f]
       A2[B f] = relu(U2[B f]) */
    net_relu(arena + 512, net_b2, arena + 512, 32);
    /* 5. H3[B v] = A2[B f] W3[f v] */
    product(4, 10, 32, arena + 512, 32, 1, net_W3, 10, 1, 0, arena + 384, 10);
    /* 6. L[B v] = H3[B v] + b3[v]
       P[B v] = log_softmax[v](L[B v])
       T[B] = P[B v=targets[B]]
       loss[] = T[B] share[B]
       dT[B] = dloss[] share[B]
       dP[B v=targets[B]] = dT[B]
       dL[B v] = log_softmax'[v](dP[B v], P[B v])
       db3[v] = dL[B v] */
    net_log_softmax_backward(&net_dloss, arena + 384, net_b3, net_targets, net_share, arena + 656, arena + 384,
                             arena + 256, arena + 266);

    /* --- optimizer --- */
    /* 7. b3.new[v] b3.V.new[v] = momentum(b3[v], db3[v], b3.V[v], lr[], mu[]) */
    optimizer_momentum(&mu, &net_learning_rate, net_b3_V, arena + 256, net_b3, net_b3_V, net_b3, 10);

    /* --- net, backward --- */
    /* 8. dA2[B f] = dL[B v] W3[f v] */
    product(4, 32, 10, arena + 384, 10, 1, net_W3, 1, 10, 0, arena + 256, 32);
    /* 9. dW3[f v] = dL[B v] A2[B f]
       W3.new[f v] W3.V.new[f v] = momentum(W3[f v], dW3[f v], W3.V[f v], lr[], mu[]) */
    in_product_momentum(&mu, &net_learning_rate, arena + 512, arena + 384, net_W3_V, net_W3, net_W3_V, net_W3,
                        arena + 424, 10, 32);
    /* 10. dU2[B f] = relu'(A2[B f], dA2[B f])
       db2[f] = dU2[B f] */
    net_relu_backward(arena + 512, arena + 256, arena + 512, arena + 384, 32);

    /* --- optimizer --- */
    /* 11. b2.new[f] b2.V.new[f] = momentum(b2[f], db2[f], b2.V[f], lr[], mu[]) */
    optimizer_momentum(&mu, &net_learning_rate, net_b2_V, arena + 384, net_b2, net_b2_V, net_b2, 32);

    /* --- net, backward --- */
    /* 12. dA1[B e] = dU2[B f] W2[e f] */
    product(4, 64, 32, arena + 512, 32, 1, net_W2, 1, 32, 0, arena + 256, 64);
    /* 13. dW2[e f] = dU2[B f] A1[B e]
       W2.new[e f] W2.V.new[e f] = momentum(W2[e f], dW2[e f], W2.V[e f], lr[], mu[]) */
    in_product_momentum(&mu, &net_learning_rate, arena, arena + 512, net_W2_V, net_W2, net_W2_V, net_W2,
                        arena + 640, 32, 64);
    /* 14. dU1[B e] = relu'(A1[B e], dA1[B e])
       db1[e] = dU1[B e] */
    net_relu_backward(arena, arena + 256, arena, arena + 512, 64);
    /* 15. dW1[d e] = dU1[B e] X[B d]
       W1.new[d e] W1.V.new[d e] = momentum(W1[d e], dW1[d e], W1.V[d e], lr[], mu[]) */
    in_product_momentum(&mu, &net_learning_rate, net_X, arena, net_W1_V, net_W1, net_W1_V, net_W1, arena + 256, 64,
                        64);

    /* --- optimizer --- */
    /* 16. b1.new[e] b1.V.new[e] = momentum(b1[e], db1[e], b1.V[e], lr[], mu[]) */
    optimizer_momentum(&mu, &net_learning_rate, net_b1_V, arena + 512, net_b1, net_b1_V, net_b1, 64);
    loss = *(arena + 656);
}

const real *net_predict(void) {
    /* --- net --- */
    /* 17. H1[B e] = X[B d] W1[d e] */
    product(4, 64, 64, net_X, 64, 1, net_W1, 64, 1, 0, arena, 64);
    /* 18. U1[B e] = H1[B e] + b1[e]
       A1[B e] = relu(U1[B e]) */
    net_relu(arena, net_b1, arena, 64);
    /* 19. H2[B f] = A1[B e] W2[e f] */
    product(4, 32, 64, arena, 64, 1, net_W2, 32, 1, 0, arena + 256, 32);
    /* 20. U2[B f] = H2[B f] + b2[f]
       A2[B f] = relu(U2[B f]) */
    net_relu(arena + 256, net_b2, arena + 256, 32);
    /* 21. H3[B v] = A2[B f] W3[f v] */
    product(4, 10, 32, arena + 256, 32, 1, net_W3, 10, 1, 0, arena, 10);
    /* 22. L[B v] = H3[B v] + b3[v]
       P[B v] = log_softmax[v](L[B v]) */
    net_log_softmax(arena, net_b3, arena);
    return arena;
}

void net_begin(void) {
    zero(4096, net_W1_V);
    zero(64, net_b1_V);
    zero(2048, net_W2_V);
    zero(32, net_b2_V);
    zero(320, net_W3_V);
    zero(10, net_b3_V);
    draw(4096, (real)0.0, (real)0.1767766952966369, net_seed + 1u, net_W1);
    draw(64, (real)0.0, (real)0.0, net_seed + 2u, net_b1);
    draw(2048, (real)0.0, (real)0.1767766952966369, net_seed + 3u, net_W2);
    draw(32, (real)0.0, (real)0.0, net_seed + 4u, net_b2);
    draw(320, (real)0.0, (real)0.25, net_seed + 5u, net_W3);
    draw(10, (real)0.0, (real)0.0, net_seed + 6u, net_b3);
    net_steps = 0;
}

net_real net_X[256] PLACED; /* X[B d] */
int32_t net_targets[4] PLACED; /* targets[B] */
const net_real net_share[4] = {-0.25f, -0.25f, -0.25f, -0.25f}; /* share[B] */
net_real net_W1_V[4096] PLACED; /* W1.V[d e] */
net_real net_b1_V[64] PLACED; /* b1.V[e] */
net_real net_W2_V[2048] PLACED; /* W2.V[e f] */
net_real net_b2_V[32] PLACED; /* b2.V[f] */
net_real net_W3_V[320] PLACED; /* W3.V[f v] */
net_real net_b3_V[10] PLACED; /* b3.V[v] */
net_real net_W1[4096] PLACED; /* W1[d e] */
net_real net_b1[64] PLACED; /* b1[e] */
net_real net_W2[2048] PLACED; /* W2[e f] */
net_real net_b2[32] PLACED; /* b2[f] */
net_real net_W3[320] PLACED; /* W3[f v] */
net_real net_b3[10] PLACED; /* b3[v] */
net_real net_loss(void) { return loss; }
net_real net_learning_rate = 0.01f;
uint32_t net_steps = 0;
uint32_t net_seed = 1;
