/* Products of rows with a matrix, by whichever unit the activations are packed for. */
#ifndef FANLIGHT_PRODUCTS_H
#define FANLIGHT_PRODUCTS_H

#include "products_tile.h"
#include "team.h"

/* Outputs [first, last) of all rows. */
INLINE void products(const matrix *of, int64_t first, int64_t last, const packed *x, float *y, int64_t y_stride) {
    if (first >= last) return;
#ifdef FANLIGHT_HAS_TILES
    if (x->kind == TILE) {
        tile_products(of, first, last, x, &(product_rows){y, NULL, y_stride});
        return;
    }
#endif
    vector_products(of, first, last, x, y, y_stride);
}

/* What a thread needs before its first tile, and gives back after its last. */
INLINE void begin_products(int64_t kind) {
#ifdef FANLIGHT_HAS_TILES
    if (kind == TILE) configure_tiles();
#else
    (void)kind;
#endif
}

INLINE void end_products(int64_t kind) {
#ifdef FANLIGHT_HAS_TILES
    if (kind == TILE) _tile_release();
#else
    (void)kind;
#endif
}

/* Of several matrices with the same inputs, whose outputs stand side by side in y. */
INLINE void shared_products(member *self, const matrix *matrices, int count, const packed *x, float *y,
                            int64_t y_stride) {
    int64_t first, last, total = 0;
    for (int index = 0; index < count; index++) total += matrices[index].outputs;
    while (claim_strip(self, total, BLOCK, &first, &last))
        for (int64_t index = 0, begin = 0; index < count; begin += matrices[index++].outputs)
            products(&matrices[index], greatest(first, begin) - begin,
                     least(last - begin, matrices[index].outputs), x, y + begin, y_stride);
}

#endif
