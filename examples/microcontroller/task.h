/* What main.c has to know of the emitted network: its inputs and its weights. */

#ifndef TASK_H
#define TASK_H

#include "net.h"

#define BATCH 4
#define INPUT net_X
#define ANSWERS net_targets

/* Every array of weights: its name in the table, its name here. */
#define WEIGHTS(EACH) EACH(W1) EACH(b1) EACH(W2) EACH(b2) EACH(W3) EACH(b3)

#endif
