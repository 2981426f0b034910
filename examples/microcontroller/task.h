/* What main.c has to know of the emitted network: its inputs, its weights, and with which it begins. */

#ifndef TASK_H
#define TASK_H

#include "net.h"

#define BATCH 4
#define INPUT net_X
#define ANSWERS net_targets

/* Every array of weights: its name in the table, its name here. */
#define WEIGHTS(EACH) EACH(W1) EACH(b1) EACH(W2) EACH(b2) EACH(W3) EACH(b3)

/* net_begin draws with a deviation of 0.02; for relu it has to be the root of 2 / inputs (He et al. 2015). */
#define BEGIN()                 \
    do {                        \
        grow(net_W1, 4096, 8.84f);  \
        grow(net_W2, 2048, 8.84f);  \
        grow(net_W3, 320, 12.5f);   \
    } while (0)

#endif
