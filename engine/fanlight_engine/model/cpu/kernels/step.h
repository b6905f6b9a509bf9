/* A step of a whole decoder: tokens of several sequences, from ids or embeddings to hidden states or logits.
 *
 * What a token sees are keys [first, limit) of its sequence, which a window of W makes
 *
 *     first = max(0, min(position - W + 1, kept_from))     without one 0
 *
 * A decode row is the last token of its sequence: its limit is the length, and position and kept_from are limit - 1.
 *
 * The members of the team walk through the phases of the step and share out what there is in each: rows where a row is
 * looked at as a whole, outputs where weights are read, parts of the keys where there is attention. */
#ifndef FANLIGHT_STEP_H
#define FANLIGHT_STEP_H

#include "work.h"

/* What the first layers get besides. */
static void add_features(const work *of, int64_t index, int64_t row) {
    const int64_t width = of->model->hidden;
    float *scratch = of->taken + row * width;
    if (index >= of->now->feature_count) return;
    widen(of->now->features[index] + row * width, width, scratch);
    add_scaled(of->residual + row * width, scratch, 1.0f, width);
}

static void embed(const work *of, int64_t row) {
    const decoder *model = of->model;
    const int64_t width = model->hidden;
    float *into = of->residual + row * width;
    number rounded[BLOCK];
    if (of->now->ids) {
        widen(model->embeddings + of->now->ids[row] * width, width, into);
        scale_and_cap(into, model->embedding_factor, 0.0f, width);
    } else {
        widen(of->now->embeddings + row * width, width, into);
        scale_and_cap(into, model->input_factor, 0.0f, width);
    }
    for (int64_t at = 0; at < width; at += BLOCK) { /* scaled embeddings are of the number type */
        narrow(into + at, least(BLOCK, width - at), rounded);
        widen(rounded, least(BLOCK, width - at), into + at);
    }
}

/* Where the cosines of a row of a table are; its sines stand behind them. */
static float *turns(const work *of, int64_t table, int64_t row) {
    float *at = of->rotary;
    for (int64_t before = 0; before < table; before++) at += of->now->rows * of->now->rotary[before].width * 2;
    return at + row * of->now->rotary[table].width * 2;
}

static void find_turns(const work *of, int64_t row) {
    for (int64_t index = 0; index < of->now->rotary_count; index++) {
        const rotary_table *table = &of->now->rotary[index];
        float *cosines = turns(of, index, row), *sines = cosines + table->width;
        for (int64_t column = 0; column < table->width; column++) {
            const int64_t source = column / table->factor;
            const int64_t position_row = table->position_rows ? table->position_rows[column] : 0;
            const int64_t at = (position_row * of->now->rows + row) * table->width + source;
            widen(table->cosines + at, 1, cosines + column);
            widen(table->sines + at, 1, sines + column);
        }
    }
}

/* x += factor * what a part of a layer gives, normalised where there is a norm behind it. */
static void add_output(const work *of, const norm *behind, float factor, float *output, int64_t row) {
    const int64_t width = of->model->hidden;
    if (behind->weight) normalise(behind, output + row * width, width, output + row * width);
    add_scaled(of->residual + row * width, output + row * width, factor, width);
}

/* The row's residual, normalised where there is a norm before it. */
static void take_input(const work *of, const norm *before, int64_t row) {
    const int64_t width = of->model->hidden;
    if (before->weight)
        normalise(before, of->residual + row * width, width, of->taken + row * width);
    else
        memcpy(of->taken + row * width, of->residual + row * width, width * 4);
}

/* What was taken by row, packed for products by column. */
static void pack_rows(member *self, const packed *into, const float *values) {
    int64_t first, last;
    while (claim_strip(self, into->columns, BLOCK, &first, &last)) pack(into, first, last, values, into->columns);
}

static void normalise_heads(const norm *by, float *heads, int64_t count, int64_t width, int are_one) {
    if (!by->weight) return;
    if (are_one)
        normalise(by, heads, count * width, heads);
    else
        for (int64_t head = 0; head < count; head++) normalise(by, heads + head * width, width, heads + head * width);
}

/* Queries and keys of a row normalised and turned; keys and values written into the pages. */
static void settle_heads(const work *of, int64_t index, int64_t row) {
    const decoder *model = of->model;
    const decoder_layer *layer = &model->layers[index];
    const int64_t width = model->head_dim, kv_width = model->kv_heads * width;
    float *queries = of->qkv + row * (model->heads * width + 2 * kv_width);
    float *keys = queries + model->heads * width, *values = keys + kv_width;
    normalise_heads(&layer->query, queries, model->heads, width, layer->norms_whole);
    normalise_heads(&layer->key, keys, model->kv_heads, width, layer->norms_whole);
    if (layer->rotary >= 0) {
        const int64_t turned = of->now->rotary[layer->rotary].width;
        const float *cosines = turns(of, layer->rotary, row);
        for (int64_t head = 0; head < model->heads + model->kv_heads; head++)
            rotate(queries + head * width, cosines, cosines + turned, turned, layer->is_adjacent);
    }
    const int64_t place = of->now->slots[row] * kv_width;
    narrow(keys, kv_width, of->now->keys[index] + place);
    narrow(values, kv_width, of->now->values[index] + place);
}

static joined stored_part(const work *of, int64_t part, int64_t head) {
    float *at = of->parts + (part * of->model->heads + head) * of->stored_width;
    return (joined){at[of->model->head_dim], at[of->model->head_dim + 1], at};
}

static void store_part(const work *of, int64_t part, int64_t head, const joined *from) {
    float *at = of->parts + (part * of->model->heads + head) * of->stored_width;
    if (at != from->values) memcpy(at, from->values, of->model->head_dim * 4);
    at[of->model->head_dim] = from->greatest;
    at[of->model->head_dim + 1] = from->sum;
}

static int64_t first_key(const step *now, int64_t row, int64_t window) {
    if (!window) return 0;
    const int64_t position = now->positions ? now->positions[row] : now->limits[row] - 1;
    const int64_t kept_from = now->kept_from ? now->kept_from[row] : position;
    return greatest(0, least(position - window + 1, kept_from));
}

/* One part of a row, or all of them joined, for the query heads of one key head. */
static void attend_item(const work *of, const paged_layer *layer, int64_t window, int64_t row, int64_t stored,
                        int64_t kv_head) {
    const decoder *model = of->model;
    const int64_t width = model->head_dim, group = model->heads / model->kv_heads;
    const int64_t begin = first_key(of->now, row, window), end = of->now->limits[row];
    const float *queries =
        of->qkv + row * (model->heads + 2 * model->kv_heads) * width + kv_head * group * width;
    const int32_t *page_table =
        of->now->page_tables + (of->now->table_rows ? of->now->table_rows[row] : row) * of->now->page_table_stride;
    const int64_t first_part = of->is_split ? stored - of->first_part[row] : begin / PART_KEYS;
    const int64_t last_part = of->is_split ? first_part + 1 : parts_of(end);
    float values[HEADS_AT_ONCE][WIDEST_HEAD];
    for (int64_t head = 0; head < group; head += HEADS_AT_ONCE) {
        const int64_t heads = least(HEADS_AT_ONCE, group - head);
        joined part[HEADS_AT_ONCE], whole[HEADS_AT_ONCE];
        for (int64_t index = 0; index < heads; index++) {
            part[index] = (joined){0, 0, values[index]};
            whole[index] = stored_part(of, stored, kv_head * group + head + index);
            whole[index].sum = 0.0f;
        }
        for (int64_t number = first_part; number < last_part; number++) {
            int64_t first, last;
            if (!visible_keys(begin, end, number, &first, &last)) continue;
            attend_part(layer, page_table, kv_head, first, last, queries + head * width, width, part, heads);
            for (int64_t index = 0; index < heads; index++) join(&whole[index], &part[index], width);
        }
        for (int64_t index = 0; index < heads; index++)
            store_part(of, stored, kv_head * group + head + index, &whole[index]);
    }
}

#ifdef FANLIGHT_HAS_TILES

static block_sight sight_of(const work *of, const paged_layer *layer, int64_t window, int64_t row, int64_t count,
                            int64_t kv_head) {
    const step *now = of->now;
    block_sight sight = {layer, now->page_tables + now->table_rows[row] * now->page_table_stride, kv_head};
    for (int64_t index = 0; index < count; index++) {
        const int64_t begin = first_key(now, row + index, window), end = now->limits[row + index];
        sight.begins[index] = (int32_t)begin, sight.ends[index] = (int32_t)end;
        sight.first = index ? least(sight.first, begin) : begin;
        sight.last = greatest(sight.last, end);
    }
    return sight;
}

/* Rows of a block, for the query heads of one key head; each row's first part takes all of it. */
static void attend_block(const work *of, const paged_layer *layer, int64_t window, int64_t block, int64_t kv_head) {
    const int64_t row = of->first_row[block], count = of->first_row[block + 1] - row;
    const int64_t width = layer->head_dim, group = layer->heads / layer->kv_heads, head = kv_head * group;
    const int64_t stride = (layer->heads + 2 * layer->kv_heads) * width;
    const block_sight sight = sight_of(of, layer, window, row, count, kv_head);
    block_places places __attribute__((aligned(LINE)));
    for (int64_t index = 0; index < count; index++)
        for (int64_t at = of->first_part[row + index]; at < of->first_part[row + index + 1]; at++)
            for (int64_t next = head; next < head + group; next++)
                store_part(of, at, next, &(joined){0, 0, stored_part(of, at, next).values});
    for (int64_t part = sight.first / PART_KEYS; part < parts_of(sight.last); part++) {
        int64_t first, last;
        if (!visible_keys(sight.first, sight.last, part, &first, &last)) continue;
        const int64_t from = part * PART_KEYS;
        pack_values(&sight, from, first, last, &places);
        for (int64_t next = head; next < head + group; next++) {
            joined whole[BLOCK_QUERIES];
            const float *queries = of->qkv + row * stride + next * width;
            for (int64_t column = 0; column < width; column += BLOCK)
                pack_tile(places.queries + column / BLOCK * TILE_WORDS, queries + column, stride, count);
            for (int64_t index = 0; index < count; index++)
                whole[index] = stored_part(of, of->first_part[row + index], next);
            attend_tiles(&sight, from, first, last, &places, whole, count);
            for (int64_t index = 0; index < count; index++)
                store_part(of, of->first_part[row + index], next, &whole[index]);
        }
    }
}

#endif

static void attend(const work *of, int64_t index, member *self) {
    const decoder *model = of->model;
    const decoder_layer *facts = &model->layers[index];
    const paged_layer layer = {of->now->keys[index], of->now->values[index], of->now->page_size,
                               model->kv_heads,      model->head_dim,        model->heads,
                               facts->scale,         facts->soft_cap};
    const int64_t blocks = of->block_count * model->kv_heads;
    const int64_t items = of->first_part[rows_alone(of)] * model->kv_heads;
    int64_t row = 0;
    for (int64_t item; (item = claim(self, blocks + items)) >= 0;) {
#ifdef FANLIGHT_HAS_TILES
        if (item < blocks) { /* the last blocks, which see most, first */
            const int64_t block = blocks - 1 - item;
            attend_block(of, &layer, facts->window, block / model->kv_heads, block % model->kv_heads);
            continue;
        }
#endif
        const int64_t stored = (item - blocks) / model->kv_heads;
        while (stored >= of->first_part[row + 1]) row++;
        attend_item(of, &layer, facts->window, row, stored, (item - blocks) % model->kv_heads);
    }
}

/* The parts of a row joined. */
static void take_heads(const work *of, int64_t row) {
    const int64_t width = of->model->head_dim, heads = of->model->heads;
    float *into = of->heads + row * heads * width;
    for (int64_t head = 0; head < heads; head++) {
        joined whole = {0, 0, into + head * width};
        for (int64_t part = of->first_part[row]; part < of->first_part[row + 1]; part++) {
            const joined next = stored_part(of, part, head);
            if (next.sum != 0.0f) join(&whole, &next, width);
        }
        scale_and_cap(whole.values, 1.0f / whole.sum, 0.0f, width);
    }
}

/* Gate and up, activated and packed for down. */
static void feed(const work *of, const decoder_layer *layer, member *self) {
    const int64_t width = of->model->intermediate;
    int64_t first, last;
    while (claim_strip(self, width, BLOCK, &first, &last)) {
        products(&layer->gate, first, last, &of->hidden_in, of->gate, width);
        products(&layer->up, first, last, &of->hidden_in, of->up, width);
        for (int64_t row = 0; row < of->now->rows; row++)
            activate(layer->activation, of->gate + row * width + first, of->up + row * width + first, last - first);
        pack(&of->mlp_in, first, last, of->gate, width);
    }
}

#define EACH_ROW(self, of)                                                       \
    for (int64_t row, last; claim_strip(self, (of)->now->rows, 1, &row, &last);) \
        for (; row < last; row++)

static void run_layer(const work *of, int64_t index, member *self) {
    const decoder *model = of->model;
    const decoder_layer *layer = &model->layers[index];
    const int64_t projected = (model->heads + 2 * model->kv_heads) * model->head_dim;
    give_way();
    shared_products(self, layer->projections, 3, &of->hidden_in, of->qkv, projected);
    EACH_ROW(self, of) settle_heads(of, index, row);
    attend(of, index, self);
    EACH_ROW(self, of) take_heads(of, row);
    pack_rows(self, &of->heads_in, of->heads);
    shared_products(self, &layer->output, 1, &of->heads_in, of->attended, model->hidden);
    if (!layer->is_parallel) {
        EACH_ROW(self, of) {
            add_output(of, &layer->attention_output, layer->residual_factor, of->attended, row);
            take_input(of, &layer->mlp_input, row);
        }
        pack_rows(self, &of->hidden_in, of->taken);
    }
    feed(of, layer, self);
    shared_products(self, &layer->down, 1, &of->mlp_in, of->fed, model->hidden);
    const norm *next = index + 1 < model->layer_count ? &model->layers[index + 1].input : &model->final;
    EACH_ROW(self, of) {
        if (layer->is_parallel) add_output(of, &layer->attention_output, layer->residual_factor, of->attended, row);
        add_output(of, &layer->mlp_output, layer->residual_factor, of->fed, row);
        add_features(of, index, row);
        take_input(of, next, row);
    }
    pack_rows(self, &of->hidden_in, of->taken);
}

static void project(const work *of, member *self) {
    const decoder *model = of->model;
    int64_t first, last;
    while (claim_strip(self, model->vocabulary, BLOCK, &first, &last)) {
        products(&model->head, first, last, &of->hidden_in, of->now->logits, of->now->logit_stride);
        for (int64_t row = 0; row < of->now->rows; row++)
            scale_and_cap(of->now->logits + row * of->now->logit_stride + first, model->logit_factor,
                          model->logit_cap, last - first);
    }
}

static void run_step(const work *of, member *self) {
    const decoder *model = of->model;
    begin_products(of->now->kind);
    EACH_ROW(self, of) {
        embed(of, row);
        find_turns(of, row);
        take_input(of, &model->layers[0].input, row);
    }
    pack_rows(self, &of->hidden_in, of->taken);
    for (int64_t index = 0; index < model->layer_count; index++) run_layer(of, index, self);
    if (of->now->logits)
        project(of, self);
    else
        EACH_ROW(self, of)
            narrow(of->taken + row * model->hidden, model->hidden, of->now->states + row * model->hidden);
    end_products(of->now->kind);
}

#endif
