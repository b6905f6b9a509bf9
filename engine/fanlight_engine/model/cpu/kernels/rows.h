/* What is done to one row at a time: normalising, rotating, activating, adding. */
#ifndef FANLIGHT_ROWS_H
#define FANLIGHT_ROWS_H

#include <math.h>

#include "vectors.h"

typedef struct {
    const float *weight; /* [width]; nothing where there is no such norm */
    float epsilon;
    int32_t is_centred; /* the mean is taken away first */
} norm;

enum { SILU = 0, GELU_TANH = 1 };

/* The first `count` of LANES floats, zeros behind them; and what stores them. */
INLINE floats load_first(const float *from, int64_t count) {
    if (count >= LANES) return load(from);
    floats value = {0};
    memcpy(&value, from, count * 4);
    return value;
}

INLINE void store_first(float *to, floats value, int64_t count) {
    if (count >= LANES)
        store(to, value);
    else
        memcpy(to, &value, count * 4);
}

/* Numbers to floats, and floats to numbers. */
INLINE void widen(const number *from, int64_t width, float *into) {
#if FANLIGHT_HALF
    int64_t column = 0;
    for (; column + LANES <= width; column += LANES) store(into + column, load_halves(from + column));
    for (; column < width; column++) into[column] = widened(from[column]);
#else
    memcpy(into, from, width * 4);
#endif
}

INLINE void narrow(const float *from, int64_t width, number *into) {
#if FANLIGHT_HALF
    int64_t column = 0;
    for (; column + LANES <= width; column += LANES) store_halves(into + column, load(from + column));
    for (; column < width; column++) into[column] = narrowed(from[column]);
#else
    memcpy(into, from, width * 4);
#endif
}

static float mean_of(const float *x, int64_t width) {
    floats sum = {0};
    for (int64_t at = 0; at < width; at += LANES) sum += load_first(x + at, width - at);
    return sum_of(sum) / (float)width;
}

static float mean_square_of(const float *x, int64_t width, float mean) {
    floats sum = {0};
    int64_t at = 0;
    for (; at + LANES <= width; at += LANES) {
        floats value = load(x + at) - mean;
        sum += value * value;
    }
    float total = sum_of(sum);
    for (; at < width; at++) total += (x[at] - mean) * (x[at] - mean);
    return total / (float)width;
}

/* A row without its scale; it may be written over itself. */
static void normalise(const norm *by, const float *x, int64_t width, float *into) {
    const float mean = by->is_centred ? mean_of(x, width) : 0.0f;
    const float scale = 1.0f / sqrtf(mean_square_of(x, width, mean) + by->epsilon);
    for (int64_t at = 0; at < width; at += LANES) {
        floats value = (load_first(x + at, width - at) - mean) * scale * load_first(by->weight + at, width - at);
        store_first(into + at, value, width - at);
    }
}

/* x += factor * y */
static void add_scaled(float *x, const float *y, float factor, int64_t width) {
    for (int64_t at = 0; at < width; at += LANES)
        store_first(x + at, load_first(x + at, width - at) + load_first(y + at, width - at) * factor, width - at);
}

/* gate = activation(gate) * up */
static void activate(int kind, float *gate, const float *up, int64_t width) {
    for (int64_t at = 0; at < width; at += LANES) {
        floats x = load_first(gate + at, width - at), y;
        if (kind == SILU)
            y = x / (exponential(-x) + 1.0f);
        else
            y = x * 0.5f * (hyperbolic_tangent((x + x * x * x * 0.044715f) * 0.7978845608028654f) + 1.0f);
        store_first(gate + at, y * load_first(up + at, width - at), width - at);
    }
}

/* x = factor * x, and bent below the cap where there is one */
static void scale_and_cap(float *x, float factor, float cap, int64_t width) {
    if (factor == 1.0f && cap == 0.0f) return;
    for (int64_t at = 0; at < width; at += LANES) {
        floats value = load_first(x + at, width - at) * factor;
        if (cap != 0.0f) value = hyperbolic_tangent(value / cap) * cap;
        store_first(x + at, value, width - at);
    }
}

/* Rotates the first `width` numbers of a head: each with the one half a width behind it, or each even one with the odd
 * one beside it. */
static void rotate(float *head, const float *cosines, const float *sines, int64_t width, int is_adjacent) {
    const int64_t half = width / 2;
    if (is_adjacent) {
        for (int64_t at = 0; at < width; at += 2) {
            const float even = head[at], odd = head[at + 1];
            head[at] = even * cosines[at] - odd * sines[at];
            head[at + 1] = odd * cosines[at + 1] + even * sines[at + 1];
        }
        return;
    }
    for (int64_t at = 0; at < half; at += LANES) {
        const int64_t count = half - at;
        floats first = load_first(head + at, count), second = load_first(head + half + at, count);
        floats turned = first * load_first(cosines + at, count) - second * load_first(sines + at, count);
        floats other = second * load_first(cosines + half + at, count) + first * load_first(sines + half + at, count);
        store_first(head + at, turned, count);
        store_first(head + half + at, other, count);
    }
}

#endif
