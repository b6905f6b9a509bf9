/* What the engine calls: a linear, attention of decode rows, a whole decode step. Knows nothing of Python or torch. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

#include "step.h"

#define EXPORT __attribute__((visibility("default")))
#define REQUEST_TILES 0x1023 /* arch_prctl: ask the kernel for a state component */
#define TILE_DATA 18

enum { DONE = 0, NEEDS_WORKSPACE = -1, UNKNOWN_ID = 1 };

typedef void (*region)(void *);
static void (*run_in_parallel)(region, void *, unsigned, unsigned);

/* The function GOMP_parallel of the runtime that torch computes with; without it everything runs in the calling
 * thread. */
EXPORT void fanlight_borrow_threads(void *parallel) {
    run_in_parallel = (void (*)(region, void *, unsigned, unsigned))parallel;
}

/* Whether this process may use tiles; asks the kernel for them. */
EXPORT int fanlight_may_use_tiles(void) {
#ifdef FANLIGHT_HAS_TILES
    return syscall(SYS_arch_prctl, REQUEST_TILES, TILE_DATA) == 0;
#else
    return 0;
#endif
}

typedef struct {
    void (*run)(const void *, member *);
    const void *what;
    team everyone;
} call;

static void run_member(void *argument) {
    call *now = argument;
    member self = {&now->everyone};
    now->run(now->what, &self);
}

/* The runtime may give fewer threads than are asked for. */
static void run_together(void (*run)(const void *, member *), const void *what, int64_t threads) {
    call now = {.run = run, .what = what, .everyone.members = run_in_parallel ? greatest(threads, 1) : 1};
    if (now.everyone.members > 1)
        run_in_parallel(run_member, &now, (unsigned)threads, 0);
    else
        run_member(&now);
}

static void run_step_of(const void *what, member *self) { run_step(what, self); }

/* DONE; NEEDS_WORKSPACE with now->workspace_bytes set to what is needed; or UNKNOWN_ID + the row whose id has no
 * embedding, with nothing computed. */
EXPORT int64_t fanlight_step(const decoder *model, step *now) {
    work all_of_it;
    const int64_t needed = lay_out(&all_of_it, model, now, now->workspace);
    if (!now->workspace || needed > now->workspace_bytes) {
        now->workspace_bytes = needed;
        return NEEDS_WORKSPACE;
    }
    for (int64_t row = 0; now->ids && row < now->rows; row++)
        if (now->ids[row] < 0 || now->ids[row] >= model->embedded) return UNKNOWN_ID + row;
    find_parts(&all_of_it);
    find_blocks(&all_of_it);
    run_together(run_step_of, &all_of_it, now->threads);
    return DONE;
}

typedef struct {
    matrix weights;
    int64_t rows, x_stride, y_stride, kind, threads;
    const number *x; /* [rows, x_stride] */
    number *y;       /* [rows, y_stride]; or, without y, */
    float *wide_y;   /* the same as floats, scaled and capped */
    float factor, cap;
    void *workspace;
    int64_t workspace_bytes;
} linear_call;

typedef struct {
    const linear_call *now;
    packed x;
    float *sums, *wide;
} linear_work;

/* From halves to halves by tiles: neither inputs nor sums are ever floats in memory. */
static void run_tile_linear(const linear_work *of, member *self) {
#ifdef FANLIGHT_HAS_TILES
    const linear_call *now = of->now;
    const int64_t groups = (now->rows + TILE_ROWS - 1) / TILE_ROWS;
    int64_t first, last;
    for (int64_t group; (group = claim(self, groups)) >= 0;)
        pack_group_of_halves(&of->x, group, now->x, now->x_stride);
    configure_tiles();
    while (claim_strip(self, now->weights.outputs, BLOCK, &first, &last))
        tile_products(&now->weights, first, last, &of->x, &(product_rows){NULL, now->y, now->y_stride});
    _tile_release();
#else
    (void)of, (void)self;
#endif
}

static void run_linear(const void *what, member *self) {
    const linear_work *of = what;
    const linear_call *now = of->now;
    if (now->kind == TILE && now->y) {
        run_tile_linear(of, self);
        return;
    }
    const int64_t inputs = now->weights.inputs, outputs = now->weights.outputs;
    int64_t first, last;
    while (claim_strip(self, now->rows, 1, &first, &last))
        for (int64_t row = first; row < last; row++)
            widen(now->x + row * now->x_stride, inputs, of->wide + row * inputs);
    pack_rows(self, &of->x, of->wide);
    begin_products(now->kind);
    while (claim_strip(self, outputs, BLOCK, &first, &last)) {
        if (now->y)
            products(&now->weights, first, last, &of->x, of->sums, outputs);
        else
            products(&now->weights, first, last, &of->x, now->wide_y, now->y_stride);
        for (int64_t row = 0; row < now->rows; row++)
            if (now->y)
                narrow(of->sums + row * outputs + first, last - first, now->y + row * now->y_stride + first);
            else
                scale_and_cap(now->wide_y + row * now->y_stride + first, now->factor, now->cap, last - first);
    }
    end_products(now->kind);
}

/* x W' + bias; DONE or NEEDS_WORKSPACE, as above. */
EXPORT int64_t fanlight_linear(linear_call *now) {
    linear_work of = {.now = now};
    arena from = {now->workspace, 0};
    const int64_t bytes = packed_bytes(now->kind, now->rows, now->weights.inputs);
    const int has_floats = now->kind != TILE || !now->y;
    of.x = (packed){now->kind, now->rows, now->weights.inputs, taken(&from, bytes)};
    of.sums = taken(&from, now->y && has_floats ? now->rows * now->weights.outputs * 4 : 0);
    of.wide = taken(&from, has_floats ? now->rows * now->weights.inputs * 4 : 0);
    if (!now->workspace || from.used > now->workspace_bytes) {
        now->workspace_bytes = from.used;
        return NEEDS_WORKSPACE;
    }
    run_together(run_linear, &of, now->threads);
    return DONE;
}

typedef struct {
    paged_layer layer;
    int64_t count, threads, page_table_stride;
    const int32_t *page_tables;
    const int32_t *table_rows; /* [count]: whose pages a query sees; nothing where each has a row of its own */
    const int32_t *first_keys; /* [count]: the first key that it sees; nothing where that is the first of all */
    const int32_t *limits;     /* [count]: one behind the last */
    const number *queries;     /* [count, heads, head_dim] */
    number *outputs;           /* the same */
} attention_call;

/* Up to HEADS_AT_ONCE heads of a query, from `head` on. */
static void attend_query(const attention_call *now, int64_t query, int64_t head, int64_t heads) {
    const paged_layer *layer = &now->layer;
    const int64_t width = layer->head_dim, place = (query * layer->heads + head) * width;
    const int64_t begin = now->first_keys ? now->first_keys[query] : 0, end = now->limits[query];
    const int32_t *page_table =
        now->page_tables + (now->table_rows ? now->table_rows[query] : query) * now->page_table_stride;
    float queries[HEADS_AT_ONCE * WIDEST_HEAD], values[2][HEADS_AT_ONCE][WIDEST_HEAD];
    joined part[HEADS_AT_ONCE], whole[HEADS_AT_ONCE];
    for (int64_t index = 0; index < heads; index++) {
        part[index] = (joined){0, 0, values[0][index]};
        whole[index] = (joined){0, 0, values[1][index]};
    }
    widen(now->queries + place, heads * width, queries);
    for (int64_t number = begin / PART_KEYS; number < parts_of(end); number++) {
        int64_t first, last;
        if (!visible_keys(begin, end, number, &first, &last)) continue;
        attend_part(layer, page_table, head / (layer->heads / layer->kv_heads), first, last, queries, width, part,
                    heads);
        for (int64_t index = 0; index < heads; index++) join(&whole[index], &part[index], width);
    }
    for (int64_t index = 0; index < heads; index++) {
        scale_and_cap(whole[index].values, 1.0f / whole[index].sum, 0.0f, width);
        narrow(whole[index].values, width, now->outputs + place + index * width);
    }
}

static void run_attention(const void *what, member *self) {
    const attention_call *now = what;
    const int64_t group = now->layer.heads / now->layer.kv_heads;
    for (int64_t item; (item = claim(self, now->count * now->layer.kv_heads)) >= 0;) {
        const int64_t query = item / now->layer.kv_heads, head = item % now->layer.kv_heads * group;
        for (int64_t at = 0; at < group; at += HEADS_AT_ONCE)
            attend_query(now, query, head + at, least(HEADS_AT_ONCE, group - at));
    }
}

/* Attention of several queries, each over keys of its own. */
EXPORT void fanlight_attend(const attention_call *now) { run_together(run_attention, now, now->threads); }

/* Sizes of what is handed over, so that both sides can agree before anything is. */
EXPORT void fanlight_sizes(int64_t sizes[6]) {
    sizes[0] = sizeof(decoder_layer), sizes[1] = sizeof(decoder), sizes[2] = sizeof(step);
    sizes[3] = sizeof(rotary_table), sizes[4] = sizeof(linear_call), sizes[5] = sizeof(attention_call);
}
