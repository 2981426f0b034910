/* A step of the network 64-64-32-10 by PULP-TrainLib: one sample, cross-entropy, SGD. FW, WG, IG choose its products. */
#include "board.h"
#include "pmsis.h"
#include "pulp_train_utils_fp32.h"
#include "pulp_act_fp32.h"
#include "pulp_linear_fp32.h"
#include "pulp_losses_fp32.h"
#include "pulp_optimizers_fp32.h"

enum { LAYERS = 3, WIDEST = 64 };
static const int WIDTHS[LAYERS + 1] = {64, 64, 32, 10};

static float weights[6464], weight_gradients[6464], biases[106], bias_gradients[106];
static float values[2 * LAYERS + 1][WIDEST], gradients[2 * LAYERS + 1][WIDEST], target[10], loss;
static struct blob blobs[2 * LAYERS + 1], matrices[LAYERS], shifts[LAYERS];
static struct Linear_args linears[LAYERS];
static struct act_args relus[LAYERS];
static struct optim_args updates[LAYERS];
static struct loss_args losses;

static uint32_t seed = 1;
static float drawn(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / 16777216.0f - 0.5f;
}

static struct blob blob_of(float *data, float *diff, int points) {
    struct blob made = {data, diff, points, points, 1, 1};
    return made;
}

static void step(void) {
    for (int l = 0; l < LAYERS; l++) {
        pulp_linear_fp32_fw_cl(&linears[l]);
        if (l + 1 < LAYERS) pulp_relu_fp32_fw_cl(&relus[l]);
    }
    pulp_CrossEntropyLoss(&losses);
    pulp_CrossEntropyLoss_backward(&losses);
    for (int l = LAYERS - 1; l >= 0; l--) {
        if (l + 1 < LAYERS) pulp_relu_fp32_bw_cl(&relus[l]);
        pulp_linear_fp32_bw_cl(&linears[l]);
    }
    for (int l = 0; l < LAYERS; l++) pi_cl_team_fork(NUM_CORES, pulp_gradient_descent_fp32, &updates[l]);
}

int main(void) {
    int at = 0, from = 0;
    for (int i = 0; i < 6464; i++) weights[i] = drawn() * 0.3f;
    for (int i = 0; i < 64; i++) values[0][i] = drawn() + 0.5f;
    target[3] = 1;
    for (int l = 0; l < LAYERS; l++) { /* values 2 l, 2 l + 1, 2 l + 2: a layer's input, its sums, what a ReLU makes */
        int in = WIDTHS[l], out = WIDTHS[l + 1];
        blobs[2 * l] = blob_of(values[2 * l], gradients[2 * l], in);
        blobs[2 * l + 1] = blob_of(values[2 * l + 1], gradients[2 * l + 1], out);
        blobs[2 * l + 2] = blob_of(values[2 * l + 2], gradients[2 * l + 2], out);
        matrices[l] = blob_of(weights + at, weight_gradients + at, in * out);
        shifts[l] = blob_of(biases + from, bias_gradients + from, out);
        struct Linear_args linear = {
            &blobs[2 * l], &matrices[l], &shifts[l], &blobs[2 * l + 1], 0, l == 0, FW, WG, IG, 1};
        linears[l] = linear;
        struct act_args relu = {&blobs[2 * l + 1], &blobs[2 * l + 2], 1, 1};
        relus[l] = relu;
        struct optim_args update = {&matrices[l], &shifts[l], 0.1f, 0, 1};
        updates[l] = update;
        at += in * out;
        from += out;
    }
    losses.output = &blobs[2 * LAYERS - 1];
    losses.target = target;
    losses.wr_loss = &loss;
    for (int s = 0; s < 5; s++) {
        uint32_t begun = moment();
        step();
        begun = instructions_since(begun);
        say("loss ");
        say_number((uint32_t)(loss * 10000.0f));
        say(" instructions ");
        say_number(begun);
        say("\n");
    }
    return 0;
}
