/* One product of matrices by CMSIS-DSP: ROWS x SUMMED x COLUMNS. */
#include "board.h"
#include "arm_math.h"

static float a[ROWS * SUMMED], b[SUMMED * COLUMNS], c[ROWS * COLUMNS];

int main(void) {
    arm_matrix_instance_f32 left = {ROWS, SUMMED, a}, right = {SUMMED, COLUMNS, b}, made = {ROWS, COLUMNS, c};
    for (int i = 0; i < ROWS * SUMMED; i++) a[i] = (float)(i % 7);
    for (int i = 0; i < SUMMED * COLUMNS; i++) b[i] = (float)(i % 5);
    for (int s = 0; s < 5; s++) {
        uint32_t begun = moment();
        for (int i = 0; i < 16; i++) arm_mat_mult_f32(&left, &right, &made);
        begun = instructions_since(begun);
        say("instructions ");
        say_number(begun / 16);
        say("\n");
    }
    return 0;
}
