/* Attention of up to 16 queries of one sequence at once, by AMX: for chunks of prompts, whose queries see mostly the
 * same keys. Scores are tiles of 16 keys x 16 queries, so that a vector is one key's scores and a softmax needs no sum
 * over lanes; a query that does not see a key has no weight there. Queries and weights are rounded to bfloat16. */
#ifndef FANLIGHT_ATTENTION_TILE_H
#define FANLIGHT_ATTENTION_TILE_H

#include "attention.h"
#include "packed.h"

#ifdef FANLIGHT_HAS_TILES

#define BLOCK_QUERIES 16
#define WIDEST_TILED_HEAD 256
#define NO_SCORE -3e38f

typedef struct {
    const paged_layer *layer;
    const int32_t *page_table;
    int64_t kv_head;
    int32_t begins[BLOCK_QUERIES], ends[BLOCK_QUERIES]; /* keys that each query sees: [begin, end) */
    int64_t first, last;                                /* keys that any of them sees */
} block_sight;

/* Of one part of the keys; each kind of tile lies one behind the other. */
typedef struct {
    uint32_t queries[WIDEST_TILED_HEAD / BLOCK * TILE_WORDS];                   /* [pairs of columns][queries] */
    float scores[PART_KEYS][BLOCK_QUERIES];
    uint32_t weights[PART_KEYS / BLOCK * TILE_WORDS];                           /* [queries][pairs of keys] */
    uint32_t values[PART_KEYS / BLOCK * (WIDEST_TILED_HEAD / 16) * TILE_WORDS]; /* [pairs of keys][columns] */
    float sums[BLOCK_QUERIES][WIDEST_TILED_HEAD];
} block_places;

INLINE int tiles_fit(const paged_layer *layer) {
    return layer->page_size % TILE_ROWS == 0 && layer->head_dim % BLOCK == 0 && layer->head_dim <= WIDEST_TILED_HEAD;
}

/* Where a key or value lies in its pages. */
INLINE int64_t key_offset(const block_sight *of, int64_t key) {
    const paged_layer *layer = of->layer;
    const int64_t slot = of->page_table[key / layer->page_size] * layer->page_size + key % layer->page_size;
    return (slot * layer->kv_heads + of->kv_head) * layer->head_dim;
}

/* Values of keys [first, last) as tiles, counted from key `from`; zeros where nobody looks. */
static void pack_values(const block_sight *of, int64_t from, int64_t first, int64_t last, block_places *places) {
    const int64_t columns = of->layer->head_dim / 16, blocks = (last - from + BLOCK - 1) / BLOCK;
    for (int64_t pair = 0; pair < blocks * 16; pair++) {
        const int64_t key = from + pair * 2;
        const uint16_t *even = key >= first && key < last ? of->layer->values + key_offset(of, key) : NULL;
        const uint16_t *odd = key + 1 >= first && key + 1 < last ? of->layer->values + key_offset(of, key + 1) : NULL;
        uint32_t *tile = places->values + pair / 16 * columns * TILE_WORDS + pair % 16 * 16;
        for (int64_t column = 0; column < columns; column++) {
            words both = {0};
            if (even) both |= (words)load_halves(even + column * 16) >> 16;
            if (odd) both |= (words)load_halves(odd + column * 16);
            store((float *)(tile + column * TILE_WORDS), (floats)both);
        }
    }
}

/* Scores of keys [first, last), counted from key `from`, which begins a tile. */
static void score_tiles(const block_sight *of, int64_t from, int64_t first, int64_t last, block_places *places) {
    const int64_t blocks = of->layer->head_dim / BLOCK, stride = of->layer->kv_heads * of->layer->head_dim * 2;
    for (int64_t key = first / TILE_ROWS * TILE_ROWS; key < last; key += TILE_ROWS) {
        const uint16_t *keys = of->layer->keys + key_offset(of, key);
        _tile_zero(0);
        for (int64_t block = 0; block < blocks; block++) {
            _tile_loadd(4, keys + block * BLOCK, stride);
            _tile_loadd(6, places->queries + block * TILE_WORDS, LINE);
            _tile_dpbf16ps(0, 4, 6);
        }
        _tile_stored(0, places->scores[key - from], LINE);
    }
}

INLINE __mmask16 who_sees(const block_sight *of, int64_t key) {
    const __m512i number = _mm512_set1_epi32((int)key);
    return _mm512_cmple_epi32_mask(_mm512_loadu_si512(of->begins), number) &
           _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(of->ends), number);
}

/* Scores scaled and capped, those of unseen keys NO_SCORE; what it gives is the greatest of each query. */
static floats greatest_scores(const block_sight *of, int64_t from, int64_t blocks, block_places *places) {
    const float scale = of->layer->scale, cap = of->layer->soft_cap;
    floats most = all(NO_SCORE);
    for (int64_t index = 0; index < blocks * BLOCK; index++) {
        floats score = load(places->scores[index]) * scale;
        if (cap != 0.0f) score = hyperbolic_tangent(score / cap) * cap;
        score = (floats)_mm512_mask_mov_ps((__m512)all(NO_SCORE), who_sees(of, from + index), (__m512)score);
        store(places->scores[index], score);
        most = (floats)_mm512_max_ps((__m512)most, (__m512)score);
    }
    return most;
}

INLINE floats weight_of(const float *score, floats most) {
    const floats value = load(score);
    const __mmask16 seen = _mm512_cmp_ps_mask((__m512)value, (__m512)all(NO_SCORE), _CMP_GT_OQ);
    return (floats)_mm512_maskz_mov_ps(seen, (__m512)exponential(value - most));
}

/* Weights as tiles; what it gives is their sum for each query. */
static floats weigh_tiles(floats most, int64_t blocks, block_places *places) {
    floats total = {0};
    for (int64_t block = 0; block < blocks; block++) {
        __m512 pairs[16];
        for (int64_t pair = 0; pair < 16; pair++) {
            const float *scores = places->scores[block * BLOCK + pair * 2];
            const floats even = weight_of(scores, most), odd = weight_of(scores + BLOCK_QUERIES, most);
            total += even + odd;
            pairs[pair] = (__m512)(rounded_words(even) >> 16 | (rounded_words(odd) & 0xffff0000u));
        }
        store_transposed(places->weights + block * TILE_WORDS, pairs);
    }
    return total;
}

static void add_value_tiles(const paged_layer *layer, int64_t blocks, block_places *places) {
    const int64_t columns = layer->head_dim / 16;
    for (int64_t column = 0; column < columns; column += 2) {
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t block = 0; block < blocks; block++) {
            const uint32_t *values = places->values + (block * columns + column) * TILE_WORDS;
            _tile_loadd(4, places->weights + block * TILE_WORDS, LINE);
            _tile_loadd(6, values, LINE);
            _tile_loadd(7, values + TILE_WORDS, LINE);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
        _tile_stored(0, &places->sums[0][column * 16], WIDEST_TILED_HEAD * 4);
        _tile_stored(1, &places->sums[0][column * 16 + 16], WIDEST_TILED_HEAD * 4);
    }
}

/* One query head over keys [first, last) of one part, joined to what the earlier parts gave: whole[query]. */
static void attend_tiles(const block_sight *of, int64_t from, int64_t first, int64_t last, block_places *places,
                         joined *whole, int64_t count) {
    const int64_t blocks = (last - from + BLOCK - 1) / BLOCK;
    score_tiles(of, from, first, last, places);
    const floats most = greatest_scores(of, from, blocks, places);
    const floats total = weigh_tiles(most, blocks, places);
    add_value_tiles(of->layer, blocks, places);
    for (int64_t query = 0; query < count; query++) {
        const joined part = {most[query], total[query], places->sums[query]};
        if (part.sum != 0.0f) join(&whole[query], &part, of->layer->head_dim);
    }
}

#endif
#endif
