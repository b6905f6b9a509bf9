/* Products of a few rows with a matrix, by fused multiply-adds in single precision.
 *
 * A sum over the inputs is made in one way only (each lane in the order of the columns, then over the lanes), so that a
 * row's result depends neither on the rows beside it nor on which thread computes it. */
#ifndef FANLIGHT_PRODUCTS_VECTOR_H
#define FANLIGHT_PRODUCTS_VECTOR_H

#include "packed.h"

#define PREFETCH_BYTES 2048
#define MOST_OUTPUTS 4
#define MOST_ROWS 6 /* as many sums as registers hold */

typedef struct {
    const number *weights; /* [outputs, inputs], row after row */
    const float *bias;     /* [outputs], or nothing */
    int64_t outputs, inputs;
} matrix;

/* Sums of some outputs for some rows, over one block of columns. */
INLINE void add_block(floats sums[MOST_OUTPUTS][MOST_ROWS], const number *const *weights, int64_t offset,
                      const float *const *x, int64_t column, const int outs, const int rows) {
    const int in_a_word = sizeof(float) / sizeof(number);
#pragma GCC unroll 4
    for (int part = 0; part < BLOCK; part += in_a_word * LANES) {
#pragma GCC unroll 4
        for (int out = 0; out < outs; out++) {
            const words weight = (words)*(const loose_words *)(weights[out] + offset + part);
#if FANLIGHT_HALF
            const floats even = (floats)(weight << 16), odd = (floats)(weight & 0xffff0000u);
#pragma GCC unroll 8
            for (int row = 0; row < rows; row++) {
                sums[out][row] += even * load(x[row] + column + part);
                sums[out][row] += odd * load(x[row] + column + part + LANES);
            }
#else
#pragma GCC unroll 8
            for (int row = 0; row < rows; row++) sums[out][row] += (floats)weight * load(x[row] + column + part);
#endif
        }
    }
}

INLINE void vector_sums(const matrix *of, const int64_t *outputs, const packed *x, int64_t first_row, float *y,
                        int64_t y_stride, int prefetches, const int outs, const int rows) {
    const int64_t whole = of->inputs / BLOCK * BLOCK;
    const number *weights[MOST_OUTPUTS];
    const float *inputs[MOST_ROWS];
    floats sums[MOST_OUTPUTS][MOST_ROWS];
#pragma GCC unroll 4
    for (int out = 0; out < outs; out++) weights[out] = of->weights + outputs[out] * of->inputs;
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++) inputs[row] = vector_row(x, first_row + row);
#pragma GCC unroll 4
    for (int out = 0; out < outs; out++)
#pragma GCC unroll 8
        for (int row = 0; row < rows; row++) sums[out][row] = (floats){0};
    int64_t column = 0;
    for (; column < whole; column += BLOCK) {
        if (prefetches) {
#pragma GCC unroll 4
            for (int out = 0; out < outs; out++)
#pragma GCC unroll 2
                for (int at = 0; at < BLOCK * NUMBER_BYTES; at += LINE)
                    __builtin_prefetch((const char *)(weights[out] + column) + PREFETCH_BYTES + at);
        }
        add_block(sums, weights, column, inputs, column, outs, rows);
    }
    if (column < of->inputs) { /* what is behind the last row belongs to somebody else */
        number rest[MOST_OUTPUTS][BLOCK] = {{0}};
        const number *rests[MOST_OUTPUTS] = {rest[0], rest[1], rest[2], rest[3]};
        for (int out = 0; out < outs; out++)
            memcpy(rest[out], weights[out] + column, (of->inputs - column) * NUMBER_BYTES);
        add_block(sums, rests, 0, inputs, column, outs, rows);
    }
#pragma GCC unroll 4
    for (int out = 0; out < outs; out++) {
        const float bias = of->bias ? of->bias[outputs[out]] : 0.0f;
#pragma GCC unroll 8
        for (int row = 0; row < rows; row++)
            y[(first_row + row) * y_stride + outputs[out]] = sum_of(sums[out][row]) + bias;
    }
}

static void four_outputs(const matrix *of, const int64_t *outputs, const packed *x, int64_t row, int64_t rows, float *y,
                         int64_t y_stride) {
    switch (rows) {
    case 1: vector_sums(of, outputs, x, row, y, y_stride, row == 0, 4, 1); break;
    case 2: vector_sums(of, outputs, x, row, y, y_stride, row == 0, 4, 2); break;
    case 3: vector_sums(of, outputs, x, row, y, y_stride, row == 0, 4, 3); break;
    case 4: vector_sums(of, outputs, x, row, y, y_stride, row == 0, 4, 4); break;
    case 5: vector_sums(of, outputs, x, row, y, y_stride, row == 0, 4, 5); break;
    default: vector_sums(of, outputs, x, row, y, y_stride, row == 0, 4, 6);
    }
}

/* Outputs [first, last) of all rows of x. Four weight rows far apart are walked at a time: each walk is one line through
 * memory, and what is prefetched at the end of a row is where the next one begins. */
static void vector_products(const matrix *of, int64_t first, int64_t last, const packed *x, float *y,
                            int64_t y_stride) {
    const int64_t step = (last - first) / 4, groups = (x->rows + MOST_ROWS - 1) / MOST_ROWS;
    const int64_t at_once = (x->rows + groups - 1) / groups;
    for (int64_t index = first; index < first + step; index++) {
        const int64_t outputs[4] = {index, index + step, index + 2 * step, index + 3 * step};
        for (int64_t row = 0; row < x->rows; row += at_once)
            four_outputs(of, outputs, x, row, least(at_once, x->rows - row), y, y_stride);
    }
    for (int64_t output = first + step * 4; output < last; output++)
        for (int64_t row = 0; row < x->rows; row++) vector_sums(of, &output, x, row, y, y_stride, 0, 1, 1);
}

#endif
