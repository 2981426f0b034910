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

#ifndef NET_H
#define NET_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef float net_real;

#define NET_RAM_BYTES 56244 /* all variables, in .data and .bss */
#define NET_FLASH_BYTES 24 /* what of it is stored in .rodata, code aside */

extern net_real net_learning_rate;
extern uint32_t net_steps; /* how many were taken */
extern uint32_t net_seed; /* of what net_begin draws */

/* Inputs, which are yours to fill before a call. */
extern net_real net_X[256]; /* X[B d] */
extern int32_t net_targets[4]; /* targets[B] */

/* Weights that learn. */
extern net_real net_W1[4096]; /* W1[d e] */
extern net_real net_b1[64]; /* b1[e] */
extern net_real net_W2[2048]; /* W2[e f] */
extern net_real net_b2[32]; /* b2[f] */
extern net_real net_W3[320]; /* W3[f v] */
extern net_real net_b3[10]; /* b3[v] */

/* What the optimizer remembers. */
extern net_real net_W1_V[4096]; /* W1.V[d e] */
extern net_real net_b1_V[64]; /* b1.V[e] */
extern net_real net_W2_V[2048]; /* W2.V[e f] */
extern net_real net_b2_V[32]; /* b2.V[f] */
extern net_real net_W3_V[320]; /* W3.V[f v] */
extern net_real net_b3_V[10]; /* b3.V[v] */

/* What never changes, in flash. */
extern const net_real net_share[4]; /* share[B] */

/* Weights as they are drawn before a training, states 0. */
void net_begin(void);

/* One step of training on the inputs: it changes weights and states. */
void net_step(void);

/* The loss of the last step, before it, in nats. */
net_real net_loss(void);

/* P[B v] of the inputs; it is overwritten by the next call. */
const net_real *net_predict(void);

#ifdef __cplusplus
}
#endif

#endif
