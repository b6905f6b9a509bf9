/* Rows of activations, laid out as the products want them.
 *
 *   VECTOR   floats; beside weights of bfloat16 each block of 2 x LANES holds its even columns, then its odd ones, since
 *            a word of such weights is an even and an odd column
 *   TILE     bfloat16; 16 rows beside each other, each block of 32 columns being one tile of 16 pairs x 16 rows
 *
 * Columns are filled up with zeros to whole blocks. Beside weights of bfloat16, activations are rounded to it. */
#ifndef FANLIGHT_PACKED_H
#define FANLIGHT_PACKED_H

#include "vectors.h"

#define BLOCK 32        /* columns that weights and activations are filled up to, and outputs are shared out by */
#define TILE_ROWS 16
#define TILE_WORDS 256  /* 16 pairs x 16 rows */

enum { VECTOR = 0, TILE = 1 };

typedef struct {
    int64_t kind, rows, columns;
    void *data;
} packed;

INLINE int64_t packed_columns(int64_t columns) { return rounded_up(columns, BLOCK); }

INLINE int64_t packed_bytes(int64_t kind, int64_t rows, int64_t columns) {
    if (kind == TILE) return rounded_up(rows, TILE_ROWS) * packed_columns(columns) * 2;
    return rows * packed_columns(columns) * 4;
}

INLINE const float *vector_row(const packed *of, int64_t row) {
    return (const float *)of->data + row * packed_columns(of->columns);
}

INLINE const uint32_t *tile_group(const packed *of, int64_t group) {
    return (const uint32_t *)of->data + group * packed_columns(of->columns) / BLOCK * TILE_WORDS;
}

INLINE floats evens_of(floats first, floats second) {
#if LANES == 16
    return __builtin_shufflevector(first, second, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#else
    return __builtin_shufflevector(first, second, 0, 2, 4, 6, 8, 10, 12, 14);
#endif
}

INLINE floats odds_of(floats first, floats second) {
#if LANES == 16
    return __builtin_shufflevector(first, second, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#else
    return __builtin_shufflevector(first, second, 1, 3, 5, 7, 9, 11, 13, 15);
#endif
}

INLINE void pack_vector_block(float *place, const float *values) {
    for (int part = 0; part < BLOCK; part += 2 * LANES) {
        floats first = load(values + part), second = load(values + part + LANES);
#if FANLIGHT_HALF
        const floats evens = evens_of(first, second), odds = odds_of(first, second);
        first = rounded_to_halves(evens), second = rounded_to_halves(odds);
#endif
        store(place + part, first);
        store(place + part + LANES, second);
    }
}

#ifdef FANLIGHT_HAS_TILES

INLINE void transpose(__m512 rows[16]) {
    __m512 pairs[16], fours[16];
#pragma GCC unroll 8
    for (int row = 0; row < 16; row += 2) {
        pairs[row] = _mm512_unpacklo_ps(rows[row], rows[row + 1]);
        pairs[row + 1] = _mm512_unpackhi_ps(rows[row], rows[row + 1]);
    }
#pragma GCC unroll 4
    for (int row = 0; row < 16; row += 4) {
        const __m512d first = (__m512d)pairs[row], second = (__m512d)pairs[row + 1];
        const __m512d third = (__m512d)pairs[row + 2], fourth = (__m512d)pairs[row + 3];
        fours[row] = (__m512)_mm512_unpacklo_pd(first, third);
        fours[row + 1] = (__m512)_mm512_unpackhi_pd(first, third);
        fours[row + 2] = (__m512)_mm512_unpacklo_pd(second, fourth);
        fours[row + 3] = (__m512)_mm512_unpackhi_pd(second, fourth);
    }
#pragma GCC unroll 4
    for (int column = 0; column < 4; column++) {
        const __m512 even = _mm512_shuffle_f32x4(fours[column], fours[column + 4], 0x88);
        const __m512 odd = _mm512_shuffle_f32x4(fours[column], fours[column + 4], 0xdd);
        const __m512 evens_below = _mm512_shuffle_f32x4(fours[column + 8], fours[column + 12], 0x88);
        const __m512 odds_below = _mm512_shuffle_f32x4(fours[column + 8], fours[column + 12], 0xdd);
        rows[column] = _mm512_shuffle_f32x4(even, evens_below, 0x88);
        rows[column + 4] = _mm512_shuffle_f32x4(odd, odds_below, 0x88);
        rows[column + 8] = _mm512_shuffle_f32x4(even, evens_below, 0xdd);
        rows[column + 12] = _mm512_shuffle_f32x4(odd, odds_below, 0xdd);
    }
}

INLINE void store_transposed(uint32_t *tile, __m512 pairs[16]) {
    transpose(pairs);
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; pair++) store((float *)(tile + pair * TILE_ROWS), (floats)pairs[pair]);
}

INLINE void pack_tile(uint32_t *tile, const float *values, int64_t stride, int64_t rows) {
    __m512 pairs[16];
#pragma GCC unroll 16
    for (int row = 0; row < 16; row++) {
        const float *from = values + (row < rows ? row : 0) * stride;
        const floats first = load(from), second = load(from + LANES);
        pairs[row] = (__m512)(rounded_words(evens_of(first, second)) >> 16 |
                              (rounded_words(odds_of(first, second)) & 0xffff0000u));
    }
    store_transposed(tile, pairs);
}

/* The same from rows of bfloat16, whose words are pairs already. */
INLINE void pack_tile_of_halves(uint32_t *tile, const uint16_t *values, int64_t stride, int64_t rows) {
    __m512 pairs[16];
#pragma GCC unroll 16
    for (int row = 0; row < 16; row++) pairs[row] = _mm512_loadu_ps(values + (row < rows ? row : 0) * stride);
    store_transposed(tile, pairs);
}

/* Rows of bfloat16 [rows, stride] of one tile group, all columns. */
static void pack_group_of_halves(const packed *into, int64_t group, const uint16_t *values, int64_t stride) {
    uint32_t *tile = (uint32_t *)tile_group(into, group);
    const int64_t rows = least(TILE_ROWS, into->rows - group * TILE_ROWS);
    const uint16_t *from = values + group * TILE_ROWS * stride;
    int64_t column = 0;
    for (; column + BLOCK <= into->columns; column += BLOCK, tile += TILE_WORDS)
        pack_tile_of_halves(tile, from + column, stride, rows);
    if (column == into->columns) return;
    uint16_t rest[TILE_ROWS][BLOCK] = {{0}};
    for (int64_t row = 0; row < rows; row++)
        memcpy(rest[row], from + row * stride + column, (into->columns - column) * 2);
    pack_tile_of_halves(tile, rest[0], BLOCK, rows);
}

#endif

/* One block of columns of all rows, from rows of floats that lie `stride` apart. */
INLINE void pack_block(const packed *into, int64_t block, const float *values, int64_t stride) {
#ifdef FANLIGHT_HAS_TILES
    if (into->kind == TILE) {
        for (int64_t row = 0; row < into->rows; row += TILE_ROWS)
            pack_tile((uint32_t *)tile_group(into, row / TILE_ROWS) + block * TILE_WORDS, values + row * stride, stride,
                      into->rows - row);
        return;
    }
#endif
    for (int64_t row = 0; row < into->rows; row++)
        pack_vector_block((float *)vector_row(into, row) + block * BLOCK, values + row * stride);
}

/* Columns [first, last) of all rows; `first` begins a block, and `last` ends one or is the last column. `values` is the
 * first row's first column, of all columns. */
INLINE void pack(const packed *into, int64_t first, int64_t last, const float *values, int64_t stride) {
    int64_t column = first;
    for (; column + BLOCK <= last; column += BLOCK) pack_block(into, column / BLOCK, values + column, stride);
    if (column >= last) return;
    for (int64_t row = 0; row < into->rows; row += TILE_ROWS) { /* the last block, filled up with zeros */
        float rest[TILE_ROWS][BLOCK] = {{0}};
        packed some = *into;
        some.rows = least(TILE_ROWS, into->rows - row);
        some.data = into->kind == TILE ? (void *)tile_group(into, row / TILE_ROWS) : (void *)vector_row(into, row);
        for (int64_t index = 0; index < some.rows; index++)
            memcpy(rest[index], values + (row + index) * stride + column, (last - column) * 4);
        pack_block(&some, column / BLOCK, rest[0], BLOCK);
    }
}

#endif
