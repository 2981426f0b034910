/* A number that counts what is done with it, as in the price book run: an operation is a FLOP, a product that is
   added at once to what is there is a MACC, which is two FLOPs. */

#ifndef COUNTED_H
#define COUNTED_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>

static int counted_call;
static uint64_t counted_maccs[65536], counted_flops[65536];
static inline void counted_at(int call) { counted_call = call; }
static inline void counted_report(void) {
    for (int call = 1; call < 65536; call++)
        if (counted_flops[call])
            printf("%d %llu %llu\n", call, (unsigned long long)counted_maccs[call],
                   (unsigned long long)counted_flops[call]);
}
static inline void counted_one(void) { counted_flops[counted_call]++; }

struct counted;

struct multiplied { /* not counted before it is known what becomes of it */
    double value;
    multiplied(double x) : value(x) {}
    multiplied(const counted &x);
};

struct counted {
    double value;
    counted() = default;
    template <class T> counted(T x) : value((double)x) {}
    counted(const multiplied &x) : value(x.value) { counted_one(); }
    explicit operator int() const { return (int)value; }
    explicit operator uint32_t() const { return (uint32_t)(int64_t)value; }
    explicit operator int8_t() const { return (int8_t)value; }
    counted &operator+=(const multiplied &x) {
        value += x.value;
        counted_maccs[counted_call]++;
        counted_flops[counted_call] += 2;
        return *this;
    }
    counted &operator+=(const counted &x) { value += x.value; counted_one(); return *this; }
    counted &operator+=(int x) { value += x; counted_one(); return *this; }
};

inline multiplied::multiplied(const counted &x) : value(x.value) {}

inline multiplied operator*(const counted &a, const counted &b) { return multiplied(a.value * b.value); }
inline counted operator+(const counted &a, const counted &b) { counted_one(); return counted(a.value + b.value); }
inline counted operator-(const counted &a, const counted &b) { counted_one(); return counted(a.value - b.value); }
inline counted operator/(const counted &a, const counted &b) { counted_one(); return counted(a.value / b.value); }
inline counted operator-(const counted &a) { counted_one(); return counted(-a.value); }
inline bool operator<(const counted &a, const counted &b) { counted_one(); return a.value < b.value; }
inline bool operator>(const counted &a, const counted &b) { counted_one(); return a.value > b.value; }
inline bool operator==(const counted &a, const counted &b) { counted_one(); return a.value == b.value; }

#define COUNTED(NAME, VALUE) static inline counted NAME##_real(counted x) { counted_one(); return counted(VALUE); }
COUNTED(exp, exp(x.value))
COUNTED(log, log(x.value))
COUNTED(tanh, tanh(x.value))
COUNTED(erf, erf(x.value))
COUNTED(sqrt, sqrt(x.value))
COUNTED(sin, sin(x.value))
COUNTED(cos, cos(x.value))
COUNTED(atan, atan(x.value))
COUNTED(log1p, log1p(x.value))
COUNTED(expm1, expm1(x.value))
COUNTED(floor, floor(x.value))
COUNTED(fabs, fabs(x.value))
static inline counted atan2_real(counted x, counted z) { counted_one(); return counted(atan2(x.value, z.value)); }
static inline counted pow_real(counted x, counted z) { counted_one(); return counted(pow(x.value, z.value)); }

static inline counted shift_real(counted x, counted z) {
    counted_one();
    const double y = floor(x.value * exp2(z.value > 64 ? -64 : z.value < -64 ? 64 : -z.value) + 0.5);
    return counted(y > 1073741824.0 ? 1073741824.0 : y < -1073741824.0 ? -1073741824.0 : y);
}
static inline counted bits_real(counted x) {
    int n;
    counted_one();
    frexp(x.value, &n);
    return counted(n);
}

static inline uint32_t mixed(uint32_t h);
static inline uint32_t mixed_pair(counted x, counted z) {
    counted_one();
    return mixed((uint32_t)(int32_t)x.value * 0x9e3779b1u + (uint32_t)(int32_t)z.value);
}
static inline counted hashed_real(counted x, counted z) { return counted(mixed_pair(x, z) >> 8); }
static inline counted coin_real(counted x, counted z) { return counted(mixed_pair(x, z) >> 31 ? -1 : 1); }

#endif
