/* Products by AMX: a tile of 16 outputs x 32 inputs, as the weights lie in memory, with a tile of 32 inputs x 16 rows.
 *
 * A sum over the inputs is made pair by pair in the order of the columns, whatever rows are beside. */
#ifndef FANLIGHT_PRODUCTS_TILE_H
#define FANLIGHT_PRODUCTS_TILE_H

#include "products_vector.h"

#ifdef FANLIGHT_HAS_TILES

#define PREFETCH_BLOCKS 16

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_configuration;

static void configure_tiles(void) {
    tile_configuration configuration = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) configuration.row_bytes[tile] = LINE, configuration.rows[tile] = 16;
    _tile_loadconfig(&configuration);
}

/* Where products go: rows of floats, or of bfloat16 where there are no floats. */
typedef struct {
    float *wide;
    uint16_t *halves;
    int64_t stride;
} product_rows;

INLINE void store_row(const product_rows *y, int64_t row, int64_t output, __mmask16 mask, __m512 sums) {
    const int64_t place = row * y->stride + output;
    if (y->wide)
        _mm512_mask_storeu_ps(y->wide + place, mask, sums);
    else
        _mm256_mask_storeu_epi16(y->halves + place, mask,
                                 _mm512_cvtepi32_epi16((__m512i)(rounded_words((floats)sums) >> 16)));
}

/* A tile of sums [16 outputs][16 rows], to rows of y. */
INLINE void store_tile(const float *sums, const matrix *of, int64_t output, int64_t outputs, int64_t row, int64_t rows,
                       const product_rows *y) {
    __m512 columns[16];
    const __mmask16 mask = (__mmask16)((1u << outputs) - 1);
    const __m512 bias = of->bias ? _mm512_maskz_loadu_ps(mask, of->bias + output) : _mm512_setzero_ps();
#pragma GCC unroll 16
    for (int index = 0; index < 16; index++) columns[index] = _mm512_load_ps(sums + index * 16);
    transpose(columns);
#pragma GCC unroll 16
    for (int index = 0; index < 16; index++)
        if (index < rows) store_row(y, row + index, output, mask, _mm512_add_ps(columns[index], bias));
}

/* The part of the matrix that has no whole tile, in one that is filled up with zeros. */
static void copy_edge(uint16_t *edge, const matrix *of, int64_t output, int64_t outputs, int64_t column) {
    const int64_t columns = least(BLOCK, of->inputs - column);
    memset(edge, 0, 16 * LINE);
    for (int64_t index = 0; index < outputs; index++)
        memcpy(edge + index * BLOCK, of->weights + (output + index) * of->inputs + column,
               columns * 2);
}

INLINE void prefetch_tile(const char *from, int64_t stride) {
#pragma GCC unroll 16
    for (int row = 0; row < 16; row++) __builtin_prefetch(from + row * stride, 0, 2);
}

/* 32 outputs of up to 32 rows. */
INLINE void tile_block(const matrix *of, int64_t output, int64_t outputs, const packed *x, int64_t group,
                       const product_rows *y, const int two_groups, const int prefetches, int has_next) {
    const int64_t blocks = packed_columns(of->inputs) / BLOCK, whole = of->inputs / BLOCK, stride = of->inputs * 2;
    const char *upper = (const char *)of->weights + output * stride, *lower = upper + 16 * stride;
    const uint32_t *left = tile_group(x, group), *right = two_groups ? tile_group(x, group + 1) : left;
    uint16_t edge[16 * BLOCK] __attribute__((aligned(LINE)));
    float sums[TILE_WORDS] __attribute__((aligned(LINE)));
    const int is_edge = outputs < 32;
    _tile_zero(0);
    _tile_zero(1);
    if (two_groups) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t block = 0; block < blocks; block++) {
        _tile_loadd(6, left + block * TILE_WORDS, LINE);
        if (two_groups) _tile_loadd(7, right + block * TILE_WORDS, LINE);
        if (is_edge || block >= whole) {
            copy_edge(edge, of, output, least(16, outputs), block * BLOCK);
            _tile_loadd(4, edge, LINE);
            copy_edge(edge, of, output + 16, greatest(0, least(16, outputs - 16)), block * BLOCK);
            _tile_loadd(5, edge, LINE);
        } else {
            int64_t ahead = block + PREFETCH_BLOCKS;
            if (prefetches && (ahead < blocks || has_next)) {
                ahead = ahead < blocks ? ahead * LINE : (ahead - blocks) * LINE + 32 * stride;
                prefetch_tile(upper + ahead, stride);
                prefetch_tile(lower + ahead, stride);
            }
            _tile_loadd(4, upper + block * LINE, stride);
            _tile_loadd(5, lower + block * LINE, stride);
        }
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        if (two_groups) {
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    const int64_t row = group * TILE_ROWS, rows = least(TILE_ROWS, x->rows - row);
    const int64_t first = least(16, outputs), second = greatest(0, outputs - 16);
    _tile_stored(0, sums, LINE);
    store_tile(sums, of, output, first, row, rows, y);
    _tile_stored(1, sums, LINE);
    store_tile(sums, of, output + 16, second, row, rows, y);
    if (two_groups) {
        const int64_t more = least(TILE_ROWS, x->rows - row - TILE_ROWS);
        _tile_stored(2, sums, LINE);
        store_tile(sums, of, output, first, row + TILE_ROWS, more, y);
        _tile_stored(3, sums, LINE);
        store_tile(sums, of, output + 16, second, row + TILE_ROWS, more, y);
    }
}

/* Outputs [first, last) of all rows of x; tiles must be configured. */
static void tile_products(const matrix *of, int64_t first, int64_t last, const packed *x, const product_rows *y) {
    const int64_t groups = (x->rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t output = first; output < last; output += 32) {
        const int64_t outputs = least(32, last - output);
        for (int64_t group = 0; group < groups; group += 2) {
            if (group + 1 < groups)
                tile_block(of, output, outputs, x, group, y, 1, group == 0, output + 32 < last);
            else
                tile_block(of, output, outputs, x, group, y, 0, group == 0, output + 32 < last);
        }
    }
}

#endif
#endif
