/* What a step works on: the decoder, what is asked of it, and the places in between. */
#ifndef FANLIGHT_WORK_H
#define FANLIGHT_WORK_H

#include "attention_tile.h"
#include "products.h"

typedef struct {
    norm input, query, key, attention_output, mlp_input, mlp_output;
    matrix projections[3]; /* queries, keys, values */
    matrix output, gate, up, down;
    float scale, soft_cap, residual_factor;
    int32_t window, activation;
    int32_t rotary;      /* which of the step's rotary tables turns queries and keys; -1 for none */
    int32_t is_adjacent; /* it turns even numbers with odd ones beside them */
    int32_t norms_whole; /* queries and keys are normalised over all heads together */
    int32_t is_parallel; /* the MLP takes what attention takes, not what it gives */
} decoder_layer;

typedef struct {
    int64_t layer_count, hidden, heads, kv_heads, head_dim, intermediate, vocabulary, embedded;
    float embedding_factor, input_factor; /* what embeddings in memory, and embeddings handed over, are scaled by */
    float logit_factor, logit_cap;
    const number *embeddings; /* [embedded, hidden] */
    const decoder_layer *layers;
    norm final;
    matrix head;
} decoder;

/* Cosines and sines as the decoder's rotary module gives them, [position rows, rows, width]. */
typedef struct {
    const number *cosines, *sines;
    const int32_t *position_rows; /* [width]: which position row a column takes; nothing where there is one */
    int64_t width, factor; /* column i of the turned numbers takes column i / factor */
} rotary_table;

typedef struct {
    int64_t rows;
    const int64_t *ids;       /* [rows]; or, without ids, */
    const number *embeddings; /* [rows, hidden] */
    const int64_t *slots;     /* [rows]: where keys and values go */
    const int32_t *page_tables;
    const int32_t *table_rows; /* [rows]: the page table of a token's sequence; nothing where row i has table i */
    const int32_t *limits;     /* [rows] */
    const int32_t *positions, *kept_from; /* [rows]; nothing where all are decode rows */
    int64_t page_table_stride, page_size;
    const rotary_table *rotary;
    int64_t rotary_count;
    number *const *keys; /* [layers]: pages of each */
    number *const *values;
    const number *const *features; /* [rows, hidden] each, added behind the first layers */
    int64_t feature_count;
    float *logits; /* [rows, logit_stride]; or, without logits, */
    number *states; /* [rows, hidden]: what the head would get */
    int64_t logit_stride;
    int64_t kind, threads;
    int64_t queries_are_alone; /* attention of each is computed in one way, whatever stands beside it */
    void *workspace;
    int64_t workspace_bytes;
} step;

typedef struct {
    const decoder *model;
    const step *now;
    float *residual, *taken, *attended, *fed, *qkv, *heads, *gate, *up, *rotary;
    packed hidden_in, heads_in, mlp_in;
    float *parts;            /* [stored parts, heads, head_dim + 2] */
    int64_t *first_part;     /* [rows + 1]: where the parts of a row are stored */
    int64_t stored_width;
    int is_split; /* each part is stored by itself, so that several members can share a row */
    int64_t *first_row; /* [block_count + 1]: rows whose attention is computed together, behind all that are alone */
    int64_t block_count;
} work;

#define MOST_PART_BYTES (64 << 20)

typedef struct {
    char *at;
    int64_t used;
} arena;

static void *taken(arena *from, int64_t bytes) {
    void *place = from->at ? from->at + from->used : NULL;
    from->used += rounded_up(bytes, LINE);
    return place;
}

static int64_t stored_parts(const step *now, int is_split) {
    if (!is_split) return now->rows;
    int64_t total = 0;
    for (int64_t row = 0; row < now->rows; row++) total += parts_of(now->limits[row]);
    return total;
}

/* Places in the workspace for everything; without one, only counts the bytes. */
static int64_t lay_out(work *all_of_it, const decoder *model, const step *now, char *memory) {
    arena from = {memory, 0};
    const int64_t rows = now->rows, hidden = model->hidden, heads = model->heads * model->head_dim;
    const int64_t projected = heads + 2 * model->kv_heads * model->head_dim;
    const int64_t kind = now->kind;
    int64_t rotary = 0;
    all_of_it->model = model, all_of_it->now = now;
    all_of_it->residual = taken(&from, rows * hidden * 4);
    all_of_it->taken = taken(&from, rows * hidden * 4);
    all_of_it->attended = taken(&from, rows * hidden * 4);
    all_of_it->fed = taken(&from, rows * hidden * 4);
    all_of_it->qkv = taken(&from, rows * projected * 4);
    all_of_it->heads = taken(&from, rows * heads * 4);
    all_of_it->gate = taken(&from, rows * model->intermediate * 4);
    all_of_it->up = taken(&from, rows * model->intermediate * 4);
    for (int64_t table = 0; table < now->rotary_count; table++) rotary += now->rotary[table].width;
    all_of_it->rotary = taken(&from, rows * rotary * 2 * 4);
    all_of_it->hidden_in = (packed){kind, rows, hidden, taken(&from, packed_bytes(kind, rows, hidden))};
    all_of_it->heads_in = (packed){kind, rows, heads, taken(&from, packed_bytes(kind, rows, heads))};
    all_of_it->mlp_in = (packed){kind, rows, model->intermediate,
                                 taken(&from, packed_bytes(kind, rows, model->intermediate))};
    all_of_it->stored_width = model->head_dim + 2;
    const int64_t row_bytes = model->heads * all_of_it->stored_width * 4;
    all_of_it->is_split = stored_parts(now, 1) * row_bytes <= MOST_PART_BYTES;
    all_of_it->parts = taken(&from, stored_parts(now, all_of_it->is_split) * row_bytes);
    all_of_it->first_part = taken(&from, (rows + 1) * 8);
    all_of_it->first_row = taken(&from, (rows + 1) * 8);
    return from.used;
}

static void find_parts(work *of) {
    int64_t stored = 0;
    for (int64_t row = 0; row < of->now->rows; row++) {
        of->first_part[row] = stored;
        stored += of->is_split ? parts_of(of->now->limits[row]) : 1;
    }
    of->first_part[of->now->rows] = stored;
}

INLINE int are_together(const step *now, int64_t row) {
    return row + 1 < now->rows && now->table_rows[row] == now->table_rows[row + 1];
}

/* Rows from the first on that has another one of its sequence behind it, in blocks that stay within a sequence. */
static void find_blocks(work *of) {
    const step *now = of->now;
    int64_t row = now->rows;
    of->block_count = 0;
#ifdef FANLIGHT_HAS_TILES
    const paged_layer layer = {.page_size = now->page_size, .head_dim = of->model->head_dim};
    const int is_tiled = now->kind == TILE && now->table_rows && !now->queries_are_alone && tiles_fit(&layer);
    if (is_tiled)
        for (row = 0; row < now->rows && !are_together(now, row);) row++;
    for (int64_t last; row < now->rows; row = last) {
        of->first_row[of->block_count++] = row;
        for (last = row + 1; last - row < BLOCK_QUERIES && are_together(now, last - 1);) last++;
    }
#endif
    of->first_row[of->block_count] = now->rows;
}

INLINE int64_t rows_alone(const work *of) { return of->first_row[0]; }

#endif
