/* A step of the network 64-64-32-10 by AIfES: four samples, cross-entropy, SGD, its default implementation. */
#include "board.h"
#include "aifes.h"

static float X[4 * 64], T[4 * 10];
static char parameters[40000] __attribute__((aligned(8))), memory[80000] __attribute__((aligned(8)));

static uint32_t seed = 1;
static float drawn(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / 16777216.0f - 0.5f;
}

static void draw(aitensor_t *weights, int points) {
    for (int i = 0; i < points; i++) ((float *)weights->data)[i] = drawn() * 0.3f;
}

int main(void) {
    uint16_t in[2] = {1, 64}, of_inputs[2] = {4, 64}, of_answers[2] = {4, 10};
    ailayer_input_f32_t input = AILAYER_INPUT_F32_A(2, in);
    ailayer_dense_f32_t first = AILAYER_DENSE_F32_A(64), second = AILAYER_DENSE_F32_A(32), third = AILAYER_DENSE_F32_A(10);
    ailayer_relu_f32_t relu = AILAYER_RELU_F32_A(), relu_again = AILAYER_RELU_F32_A();
    ailayer_softmax_f32_t softmax = AILAYER_SOFTMAX_F32_A();
    ailoss_crossentropy_f32_t loss;
    aiopti_sgd_f32_t sgd = AIOPTI_SGD_F32(0.1f);
    aiopti_t *optimizer = aiopti_sgd_f32_default(&sgd);
    aimodel_t model;
    ailayer_t *x = model.input_layer = ailayer_input_f32_default(&input);
    for (int i = 0; i < 256; i++) X[i] = drawn() + 0.5f;
    for (int i = 0; i < 4; i++) T[i * 10 + i] = 1;
    x = ailayer_relu_f32_default(&relu, ailayer_dense_f32_default(&first, x));
    x = ailayer_relu_f32_default(&relu_again, ailayer_dense_f32_default(&second, x));
    model.output_layer = ailayer_softmax_f32_default(&softmax, ailayer_dense_f32_default(&third, x));
    model.loss = ailoss_crossentropy_f32_default(&loss, model.output_layer);
    aialgo_compile_model(&model);
    uint32_t held = aialgo_sizeof_parameter_memory(&model), needed = aialgo_sizeof_training_memory(&model, optimizer);
    aialgo_distribute_parameter_memory(&model, parameters, held);
    draw(&first.weights, 4096);
    draw(&second.weights, 2048);
    draw(&third.weights, 320);
    aialgo_schedule_training_memory(&model, optimizer, memory, needed);
    aialgo_init_model_for_training(&model, optimizer);
    say("bytes ");
    say_number(held + needed);
    say("\n");
    aitensor_t inputs = AITENSOR_2D_F32(of_inputs, X), answers = AITENSOR_2D_F32(of_answers, T);
    for (int s = 0; s < 5; s++) {
        float now = 0;
        aialgo_calc_loss_model_f32(&model, &inputs, &answers, &now);
        uint32_t begun = moment();
        aialgo_train_model(&model, &inputs, &answers, optimizer, 4);
        begun = instructions_since(begun);
        say("loss ");
        say_number((uint32_t)(now * 10000.0f));
        say(" instructions ");
        say_number(begun);
        say("\n");
    }
    return 0;
}
