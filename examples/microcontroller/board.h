/* What a program without an operating system has here: text by semihosting, and what it took. */

#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

void say(const char *text);
void say_number(uint32_t number);  /* in decimal digits */
void say_bits(uint32_t bits);      /* in eight hexadecimal digits */

/* Instructions between two moments, of the emulator's count (-icount shift=0): of Arm's up to 671 million, in steps of
   40. They are not cycles. */
uint32_t moment(void);
uint32_t instructions_since(uint32_t moment);

/* The most bytes of stack that were in use. */
uint32_t stack_used(void);

#endif
