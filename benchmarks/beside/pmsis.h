/* PULP's SDK on one core, as far as PULP-TrainLib's layers ask for it: a fork is a call. */
#ifndef PMSIS_H
#define PMSIS_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUM_CORES 1
#define PI_L1
#define PI_L2
#define pi_core_id() 0
#define pi_cl_team_fork(cores, function, arguments) (function)(arguments)
#define pi_cl_team_barrier()

typedef short float16alt; /* no number of 16 bits is computed */

/* What copies between memories is compiled, and not called. */
typedef int pi_cl_dma_cmd_t;
enum { PI_CL_DMA_DIR_EXT2LOC, PI_CL_DMA_DIR_LOC2EXT };
#define pi_cl_dma_cmd(...) abort()
#define pi_cl_dma_cmd_2d(...) abort()
#define pi_cl_dma_cmd_wait(...) abort()

#endif
