/* Learns the digits in flash and says how well: a loop around the emitted step, of which nothing else is needed. */

#include "board.h"
#include "digits.h"
#include "task.h"

#ifndef RATE
#define RATE 0.01f
#endif
#ifndef EPOCHS
#define EPOCHS 2
#endif
#ifndef SEED
#define SEED 1
#endif
/* Learned from: images 0 to LEARNED; a rate is chosen by those up to CHOSEN; the rest is what is reported. */
#define LEARNED 1100
#define CHOSEN 1300

static void show(int32_t place, int32_t image) {
    for (int32_t i = 0; i < 64; i++) INPUT[64 * place + i] = (float)digits[image][i] / 16.0f;
    ANSWERS[place] = classes[image];
}

/* Of the images from first to last how many of ten thousand are classified as they should be. */
static uint32_t right(int32_t first, int32_t last) {
    uint32_t good = 0;
    for (int32_t begin = first; begin < last; begin += BATCH) {
        const net_real *scores;
        for (int32_t i = 0; i < BATCH; i++) show(i, begin + i < last ? begin + i : first);
        scores = net_predict();
        for (int32_t i = 0; i < BATCH && begin + i < last; i++) {
            int32_t best = 0;
            for (int32_t c = 1; c < 10; c++)
                if (scores[10 * i + c] > scores[10 * i + best]) best = c;
            good += best == classes[begin + i];
        }
    }
    return good * 10000u / (uint32_t)(last - first);
}

static void say_pair(const char *name, uint32_t number) {
    say(name);
    say_number(number);
}

#ifdef DUMP
static void dump(const char *name, const net_real *weights, int32_t points) {
    say("weights ");
    say(name);
    for (int32_t i = 0; i < points; i++) {
        union { float value; uint32_t bits; } u;
        u.value = weights[i];
        say(" ");
        say_bits(u.bits);
    }
    say("\n");
}
#define DUMPED(NAME) dump(#NAME, net_##NAME, (int32_t)(sizeof net_##NAME / sizeof *net_##NAME));
#endif

int main(void) {
    /* Images in another order in every epoch, without memory: strides that have no divisor of LEARNED. */
    static const uint16_t strides[8] = {1, 577, 223, 421, 809, 97, 643, 349};
    uint32_t taken = 0;
    net_seed = SEED;
    net_begin();
#ifdef BEGIN
    BEGIN;
#endif
    net_learning_rate = RATE;
    for (int32_t epoch = 0; epoch < EPOCHS; epoch++) {
        net_real loss = 0;
        const uint32_t stride = strides[epoch % 8];
        for (int32_t first = 0; first < LEARNED; first += BATCH) {
            uint32_t begun;
            for (int32_t i = 0; i < BATCH; i++)
                show(i, (int32_t)(((uint32_t)(first + i) * stride + 37u * (uint32_t)epoch) % LEARNED));
            begun = moment();
            net_step();
            taken = instructions_since(begun);
            loss += net_loss();
        }
        say_pair("epoch ", (uint32_t)epoch + 1);
        say_pair(" loss/1000 ", (uint32_t)(loss * 1000.0f * BATCH / LEARNED));
        say_pair(" chosen by/10000 ", right(LEARNED, CHOSEN));
        say_pair(" right/10000 ", right(CHOSEN, IMAGES));
        say("\n");
    }
    say_pair("instructions a step ", taken);
    say_pair("\nstack ", stack_used());
    say("\n");
#ifdef DUMP
    WEIGHTS(DUMPED)
#endif
    return 0;
}
