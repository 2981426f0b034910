/* From reset to main on an emulated Cortex-M or RISC-V board: memory, the unit for floating point, a painted stack. */

#include "board.h"

extern uint32_t stack_begin, stack_end;
extern const struct copied { const uint32_t *from; uint32_t *to; uint32_t words; } __copy_table_start__, __copy_table_end__;
extern const struct zeroed { uint32_t *to; uint32_t words; } __zero_table_start__, __zero_table_end__;
int main(void);

#define PAINT 0xc5a5c5a5u

/* All that gcc may ask for of a library, but for arithmetic. */
void *memcpy(void *to, const void *from, __SIZE_TYPE__ bytes) {
    unsigned char *t = to;
    const unsigned char *f = from;
    while (bytes--) *t++ = *f++;
    return to;
}

void *memset(void *to, int value, __SIZE_TYPE__ bytes) {
    unsigned char *t = to;
    while (bytes--) *t++ = (unsigned char)value;
    return to;
}

static void ready(void) {
    uint32_t *here = (uint32_t *)__builtin_frame_address(0);
    for (uint32_t *word = &stack_begin; word < here - 64; word++) *word = PAINT;
    for (const struct copied *row = &__copy_table_start__; row < &__copy_table_end__; row++)
        for (uint32_t i = 0; i < row->words; i++) row->to[i] = row->from[i];
    for (const struct zeroed *row = &__zero_table_start__; row < &__zero_table_end__; row++)
        for (uint32_t i = 0; i < row->words; i++) row->to[i] = 0;
}

uint32_t stack_used(void) {
    uint32_t *word = &stack_begin;
    while (*word == PAINT && word < &stack_end) word++;
    return (uint32_t)((char *)&stack_end - (char *)word);
}

#ifdef __arm__

static int call(int what, const void *with) { /* Arm, Semihosting for AArch32 and AArch64 */
    register int operation __asm("r0") = what;
    register const void *block __asm("r1") = with;
    __asm volatile("bkpt 0xab" : "+r"(operation) : "r"(block) : "memory");
    return operation;
}

static volatile uint32_t *const tick = (volatile uint32_t *)0xe000e010; /* SysTick: control, reload, value */

uint32_t moment(void) { return 0xffffffu - tick[2]; }

uint32_t instructions_since(uint32_t begun) { /* at 25 MHz, where an instruction takes a nanosecond */
    return ((moment() - begun) & 0xffffffu) * 40u;
}

void reset(void) {
    ready();
#ifdef __ARM_FP
    *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20; /* coprocessors 10 and 11 */
    __asm volatile("dsb\n isb");
#endif
    tick[1] = 0xffffffu;
    tick[2] = 0;
    tick[0] = 5;
    while (!tick[2]) {} /* it is loaded at the first tick */
    call(0x18, (void *)(main() ? 0x20023 : 0x20026));
    for (;;) {}
}

static void fault(void) {
    say("fault\n");
    call(0x18, (void *)0x20023);
    for (;;) {}
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    &stack_end, (const void *)reset, (const void *)fault, (const void *)fault, (const void *)fault,
    (const void *)fault, (const void *)fault, 0, 0, 0, 0, (const void *)fault, 0, 0, (const void *)fault,
    (const void *)fault,
};

#else

static long call(long what, const void *with) { /* RISC-V Semihosting */
    register long operation __asm("a0") = what;
    register const void *block __asm("a1") = with;
    __asm volatile(".option push\n .option norvc\n .balign 16\n slli x0, x0, 0x1f\n ebreak\n srai x0, x0, 7\n .option pop"
                   : "+r"(operation) : "r"(block) : "memory");
    return operation;
}

uint32_t moment(void) {
    uint32_t count;
    __asm volatile("csrr %0, minstret" : "=r"(count));
    return count;
}

uint32_t instructions_since(uint32_t begun) { return moment() - begun; }

static void go(void) __attribute__((used, noreturn));
static void go(void) {
    ready();
#ifdef __riscv_flen
    __asm volatile("csrs mstatus, %0" : : "r"(1u << 13));
#endif
    call(0x18, (void *)(main() ? 0x20023 : 0x20026));
    for (;;) {}
}

__attribute__((section(".vectors"), used, naked)) void reset(void) {
    __asm volatile(".option push\n .option norelax\n la gp, __global_pointer$\n .option pop\n"
                   "la sp, stack_end\n j %0" : : "i"(go));
}

#endif

void say(const char *text) { call(4, text); }

void say_number(uint32_t number) {
    char text[11];
    int at = 10;
    text[10] = 0;
    do {
        text[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    say(text + at);
}

void say_bits(uint32_t bits) {
    char text[9];
    for (int i = 0; i < 8; i++) text[i] = "0123456789abcdef"[bits >> (28 - 4 * i) & 15];
    text[8] = 0;
    say(text);
}
