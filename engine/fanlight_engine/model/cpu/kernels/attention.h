/* Attention of one query over the pages of its sequence, without gathering them.
 *
 * The keys are taken in parts of PART_KEYS positions, counted from the beginning of the sequence, and the parts are
 * joined one after the other. So a query's result depends on nothing but its sequence, whoever computes which part. */
#ifndef FANLIGHT_ATTENTION_H
#define FANLIGHT_ATTENTION_H

#include "rows.h"

#define PART_KEYS 256
#define HEADS_AT_ONCE 4
#define COLUMNS_AT_ONCE 4 /* vectors */
#define WIDEST_HEAD 512
#define KEYS_AT_ONCE 4
#define KEYS_AHEAD 16

typedef struct {
    const number *keys, *values; /* [pages, page_size, kv_heads, head_dim] */
    int64_t page_size, kv_heads, head_dim;
    int64_t heads;
    float scale, soft_cap; /* a soft cap of 0 is none */
} paged_layer;

/* What some keys give one query head: the greatest score, the sum of the weights, the weighted sum of the values. */
typedef struct {
    float greatest, sum;
    float *values; /* [head_dim] */
} joined;

/* A key or value; one whose width is no multiple of LANES is copied, zeros behind it. */
INLINE const number *filled_up(const number *row, int64_t width, number *copy) {
    if (width % LANES == 0) return row;
    memcpy(copy, row, width * NUMBER_BYTES);
    return copy;
}

INLINE void prefetch_row(const number *row, int64_t width) {
    for (int64_t at = 0; at < width * NUMBER_BYTES; at += LINE) __builtin_prefetch((const char *)row + at);
}

/* Scores of all keys, KEYS_AT_ONCE at a time; the last of them stand again for those that would follow. */
INLINE void score_keys(const paged_layer *layer, const int64_t *offsets, int64_t count, const float *queries,
                       int64_t stride, float scores[HEADS_AT_ONCE][PART_KEYS], const int heads) {
    number copies[KEYS_AT_ONCE][WIDEST_HEAD + LANES];
    if (layer->head_dim % LANES) memset(copies, 0, sizeof copies);
    for (int64_t key = 0; key < count; key += KEYS_AT_ONCE) {
        const number *rows[KEYS_AT_ONCE];
        floats sums[HEADS_AT_ONCE][KEYS_AT_ONCE];
#pragma GCC unroll 4
        for (int next = 0; next < KEYS_AT_ONCE; next++) {
            const int64_t offset = offsets[least(key + next, count - 1)];
            rows[next] = filled_up(layer->keys + offset, layer->head_dim, copies[next]);
            prefetch_row(layer->keys + offsets[least(key + next + KEYS_AHEAD, count - 1)], layer->head_dim);
#pragma GCC unroll 4
            for (int head = 0; head < heads; head++) sums[head][next] = (floats){0};
        }
        for (int64_t at = 0; at < layer->head_dim; at += LANES) {
            floats parts[KEYS_AT_ONCE];
#pragma GCC unroll 4
            for (int next = 0; next < KEYS_AT_ONCE; next++) parts[next] = load_numbers(rows[next] + at);
#pragma GCC unroll 4
            for (int head = 0; head < heads; head++) {
                const floats query = load(queries + head * stride + at);
#pragma GCC unroll 4
                for (int next = 0; next < KEYS_AT_ONCE; next++) sums[head][next] += parts[next] * query;
            }
        }
#pragma GCC unroll 4
        for (int head = 0; head < heads; head++)
            store_four_sums(&scores[head][key], sums[head][0], sums[head][1], sums[head][2], sums[head][3]);
    }
}

INLINE void add_values(const paged_layer *layer, const int64_t *offsets, int64_t count,
                       float weights[HEADS_AT_ONCE][PART_KEYS], float *into, int64_t stride, int64_t column,
                       const int heads, const int parts) {
    number copy[WIDEST_HEAD + LANES];
    if (layer->head_dim % LANES) memset(copy, 0, sizeof copy);
    floats sums[HEADS_AT_ONCE][COLUMNS_AT_ONCE];
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 4
        for (int part = 0; part < parts; part++) sums[head][part] = (floats){0};
    for (int64_t key = 0; key < count; key++) {
        const number *row = filled_up(layer->values + offsets[key], layer->head_dim, copy) + column;
        if (key + KEYS_AHEAD < count) prefetch_row(layer->values + offsets[key + KEYS_AHEAD] + column, parts * LANES);
#pragma GCC unroll 4
        for (int part = 0; part < parts; part++) {
            floats value = load_numbers(row + part * LANES);
#pragma GCC unroll 4
            for (int head = 0; head < heads; head++) sums[head][part] += value * weights[head][key];
        }
    }
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 4
        for (int part = 0; part < parts; part++) store(into + head * stride + column + part * LANES, sums[head][part]);
}

/* Scores to weights, in place; what it gives is the greatest score and the sum of the weights. */
static void weigh(const paged_layer *layer, float *scores, int64_t count, float *greatest, float *sum) {
    const int64_t filled = rounded_up(count, LANES);
    for (int64_t key = count; key < filled; key++) scores[key] = -3e38f;
    scale_and_cap(scores, layer->scale, layer->soft_cap, count);
    floats greatest_of = load(scores), total = {0};
    for (int64_t key = LANES; key < filled; key += LANES) {
        const floats next = load(scores + key);
        greatest_of = chosen(next > greatest_of, next, greatest_of);
    }
    float most = greatest_of[0];
    for (int lane = 1; lane < LANES; lane++) most = greatest_of[lane] > most ? greatest_of[lane] : most;
    for (int64_t key = 0; key < filled; key += LANES) {
        floats weight = exponential(load(scores + key) - most);
        if (key + LANES > count) weight = load_first((const float *)&weight, count - key);
        store(scores + key, weight);
        total += weight;
    }
    *greatest = most;
    *sum = sum_of(total);
}

INLINE void attend_heads(const paged_layer *layer, const int64_t *offsets, int64_t count, const float *queries,
                         int64_t stride, joined *into, const int heads) {
    float scores[HEADS_AT_ONCE][PART_KEYS] __attribute__((aligned(LINE)));
    float sums[HEADS_AT_ONCE][WIDEST_HEAD] __attribute__((aligned(LINE)));
    score_keys(layer, offsets, count, queries, stride, scores, heads);
    for (int head = 0; head < heads; head++)
        weigh(layer, scores[head], count, &into[head].greatest, &into[head].sum);
    const int64_t width = rounded_up(layer->head_dim, LANES);
    int64_t column = 0;
    for (; column + 4 * LANES <= width; column += 4 * LANES)
        add_values(layer, offsets, count, scores, sums[0], WIDEST_HEAD, column, heads, 4);
    for (; column < width; column += LANES)
        add_values(layer, offsets, count, scores, sums[0], WIDEST_HEAD, column, heads, 1);
    for (int head = 0; head < heads; head++) memcpy(into[head].values, sums[head], layer->head_dim * 4);
}

static void attend_some(const paged_layer *layer, const int64_t *offsets, int64_t count, const float *queries,
                        int64_t stride, joined *into, int64_t heads) {
    float copy[HEADS_AT_ONCE * (WIDEST_HEAD + LANES)];
    if (layer->head_dim % LANES) {
        memset(copy, 0, sizeof copy);
        for (int64_t head = 0; head < heads; head++)
            memcpy(copy + head * (WIDEST_HEAD + LANES), queries + head * stride, layer->head_dim * 4);
        queries = copy;
        stride = WIDEST_HEAD + LANES;
    }
    switch (heads) {
    case 1: attend_heads(layer, offsets, count, queries, stride, into, 1); break;
    case 2: attend_heads(layer, offsets, count, queries, stride, into, 2); break;
    case 3: attend_heads(layer, offsets, count, queries, stride, into, 3); break;
    default: attend_heads(layer, offsets, count, queries, stride, into, 4);
    }
}

/* Up to HEADS_AT_ONCE query heads of one key head, `queries` [heads][stride], over keys [first, last) of one part. */
static void attend_part(const paged_layer *layer, const int32_t *page_table, int64_t kv_head, int64_t first,
                        int64_t last, const float *queries, int64_t stride, joined *into, int64_t heads) {
    int64_t offsets[PART_KEYS];
    const int64_t row = layer->kv_heads * layer->head_dim;
    for (int64_t key = first; key < last;) { /* page by page: a division for each key would take as long as its score */
        const int64_t page = key / layer->page_size, begin = page * layer->page_size;
        const int64_t end = least(begin + layer->page_size, last);
        int64_t offset = (page_table[page] * layer->page_size + key - begin) * row + kv_head * layer->head_dim;
        for (; key < end; key++, offset += row) offsets[key - first] = offset;
    }
    attend_some(layer, offsets, last - first, queries, stride, into, heads);
}

/* Joins a later part to what the earlier ones gave; at first `whole` has a sum of 0. */
static void join(joined *whole, const joined *part, int64_t width) {
    float ours = 1.0f, theirs = 1.0f;
    if (whole->sum == 0.0f) {
        ours = 0.0f;
        whole->greatest = part->greatest;
    } else if (part->greatest > whole->greatest) {
        ours = exponential(all(whole->greatest - part->greatest))[0];
        whole->greatest = part->greatest;
    } else {
        theirs = exponential(all(part->greatest - whole->greatest))[0];
    }
    whole->sum = whole->sum * ours + part->sum * theirs;
    for (int64_t at = 0; at < width; at += LANES) {
        floats before = ours == 0.0f ? (floats){0} : load_first(whole->values + at, width - at) * ours;
        store_first(whole->values + at, before + load_first(part->values + at, width - at) * theirs, width - at);
    }
}

/* Keys [first, last) of a part, where [begin, end) is what the query sees; false where there are none. */
INLINE int visible_keys(int64_t begin, int64_t end, int64_t part, int64_t *first, int64_t *last) {
    *first = greatest(begin, part * PART_KEYS);
    *last = least(end, (part + 1) * PART_KEYS);
    return *first < *last;
}

INLINE int64_t parts_of(int64_t length) { return (length + PART_KEYS - 1) / PART_KEYS; }

#endif
