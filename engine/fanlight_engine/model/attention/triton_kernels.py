"""The device code of paged attention: one kernel for decode rows and prefill chunks, one that joins splits, one that
writes pages. Knows pointers and tiles; what is launched with which sizes is in `triton_backend`.

A program computes a tile: some queries of one sequence, times the query heads that share one K/V head, so that keys and
values are read once for all of them. It walks over the keys BLOCK_N at a time with an online softmax in base 2.

    pages       [pages, PAGE_SIZE, KV_HEADS, HEAD_DIM], contiguous: a key is one contiguous run of HEAD_DIM numbers
    intervals   each query sees the keys [first, limit), see `segments`
    splits      the keys of a tile are cut into runs for several programs where there are fewer tiles than the device
                can run; each leaves its sums, its maximum and its total, and `join_splits` makes outputs of them

Speed on a chip is unmeasured so far; results are compared with the reference in Triton's interpreter.
"""

# A kernel is not Python: literals are constants to it.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

NO_SCORE = tl.constexpr(float("-inf"))


@triton.jit
def _fold_keys(
    sums,  # [BLOCK_M, BLOCK_D] of weighted values
    maxima,  # [BLOCK_M] of scores
    totals,  # [BLOCK_M] of weights
    query_tile,
    keys,
    values,
    page_table,  # of the sequence
    kv_head,
    begin,  # a multiple of BLOCK_N
    end,
    first_keys,  # [BLOCK_M]
    limits,  # [BLOCK_M]
    score_scale,
    cap_scale,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_MASKED: tl.constexpr,  # whether some query does not see all keys of [begin, end)
    HAS_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Take the keys [begin, end) into the online softmax."""
    columns = tl.arange(0, BLOCK_D)
    in_columns = columns[None, :] < HEAD_DIM
    for start in range(begin, end, BLOCK_N):
        places = start + tl.arange(0, BLOCK_N)
        inside = places < end
        if PAGE_SIZE % BLOCK_N == 0:  # the whole tile is in one page: one look-up
            page = tl.load(page_table + start // PAGE_SIZE).to(tl.int64)
            slots = page * PAGE_SIZE + start % PAGE_SIZE + tl.arange(0, BLOCK_N)
        else:  # a look-up per key, served by the cache; they are independent of the tile before, so they are prefetched
            pages = tl.load(page_table + places // PAGE_SIZE, mask=inside, other=0).to(tl.int64)
            slots = pages * PAGE_SIZE + places % PAGE_SIZE
        offsets = (slots[:, None] * KV_HEADS + kv_head) * HEAD_DIM + columns[None, :]
        # What is behind the last key is not read: it may be anything, and 0 x NaN is NaN.
        is_read = (inside[:, None] & in_columns) if IS_MASKED else in_columns
        key_tile = tl.load(keys + offsets, mask=is_read, other=0.0)
        scores = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION) * score_scale
        if HAS_CAP:  # cap * tanh(score / cap); score_scale has made 2 * score / cap in base 2 of it
            scores = cap_scale * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
        if IS_MASKED:
            is_seen = (places[None, :] >= first_keys[:, None]) & (places[None, :] < limits[:, None]) & inside[None, :]
            scores = tl.where(is_seen, scores, NO_SCORE)
        new_maxima = tl.maximum(maxima, tl.max(scores, 1))
        # A query that has seen nothing yet has no maximum: -inf less -inf would be NaN.
        base = tl.where(new_maxima == NO_SCORE, 0.0, new_maxima) if IS_MASKED else new_maxima
        weights = tl.exp2(scores - base[:, None])
        decay = tl.exp2(maxima - base)
        value_tile = tl.load(values + offsets, mask=is_read, other=0.0)
        totals = totals * decay + tl.sum(weights, 1)
        sums = tl.dot(weights.to(value_tile.dtype), value_tile, sums * decay[:, None], input_precision=PRECISION)
        maxima = new_maxima
    return sums, maxima, totals


@triton.jit
def _segment_of(tile, starts, segments, BLOCK_Q: tl.constexpr):
    """The segment of a tile. Segment s has the tiles from starts[s] // BLOCK_Q + s on: at least as many as it needs."""
    low, high = tile * 0, segments
    while high - low > 1:
        middle = (low + high) // 2
        is_behind = tl.load(starts + middle) // BLOCK_Q + middle <= tile
        low = tl.where(is_behind, middle, low)
        high = tl.where(is_behind, high, middle)
    return low


@triton.jit(
    do_not_specialize=[
        "table_stride", "decode_rows", "prefill_queries", "segments", "shortest_split", "window", "splits",
    ]
)  # fmt: skip
def attend_pages(
    queries,  # [T, HEADS, HEAD_DIM]
    keys,
    values,
    outputs,  # as queries
    partial_sums,  # [splits, queries of the launch, HEADS, HEAD_DIM] float32
    partial_scalars,  # [2, splits, queries of the launch, HEADS] float32: maxima and totals
    page_tables,  # [S, columns] int32
    context_lengths,  # [S] int32
    starts,  # of PrefillQueries
    intervals,  # of PrefillQueries
    score_scale,
    cap_scale,
    table_stride,
    decode_rows,
    prefill_queries,
    segments,
    splits,
    shortest_split,  # keys; a multiple of BLOCK_N
    window,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_DECODE: tl.constexpr,  # a tile is the one query of a sequence, or else some of a segment
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: (tiles x KV_HEADS, splits). Heads are side by side in a page, so programs that run together share rows."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    kv_head = tl.program_id(0) % KV_HEADS
    tile = tl.program_id(0) // KV_HEADS
    split = tl.program_id(1)
    rows = tl.arange(0, BLOCK_M)
    heads = kv_head * GROUP + rows % GROUP

    if IS_DECODE:
        sequence = tile
        tokens = tile + rows * 0
        is_query = rows < GROUP
        stop = tl.load(context_lengths + sequence)
        limits = rows * 0 + stop
        lowest_limit = stop
        lowest_first = tl.maximum(stop - window, 0) if HAS_WINDOW else 0
        first_keys = rows * 0 + lowest_first
        highest_first = lowest_first
    else:
        # The last tiles of a causal chunk have the most keys: they start first.
        tile = tl.num_programs(0) // KV_HEADS - 1 - tile
        segment = _segment_of(tile, starts, segments, BLOCK_Q)
        start = tl.load(starts + segment)
        length = tl.load(starts + segment + 1) - start
        first_query = (tile - (start // BLOCK_Q + segment)) * BLOCK_Q
        if first_query >= length:
            return
        sequence = decode_rows + segment
        in_tile = rows // GROUP
        is_query = (in_tile < BLOCK_Q) & (first_query + in_tile < length)
        tokens = start + first_query + in_tile
        limits = tl.load(intervals + 2 * prefill_queries + tokens, mask=is_query, other=0)
        stop = tl.max(limits, 0)
        lowest_limit = tl.min(tl.where(is_query, limits, stop), 0)
        if HAS_WINDOW:
            positions = tl.load(intervals + tokens, mask=is_query, other=0)
            kept_from = tl.load(intervals + prefill_queries + tokens, mask=is_query, other=0)
            first_keys = tl.maximum(tl.minimum(positions - window + 1, kept_from), 0)
            lowest_first = tl.min(tl.where(is_query, first_keys, stop), 0)
            highest_first = tl.max(first_keys, 0)
        else:
            first_keys = rows * 0
            lowest_first = 0
            highest_first = 0

    # Tiles of keys stand on multiples of BLOCK_N whatever the interval, so that a query's sums come about in the same
    # order beside any neighbours: keys that only these see weigh nothing, bit for bit.
    begin = lowest_first // BLOCK_N * BLOCK_N
    end = stop
    launched = prefill_queries
    if IS_DECODE:
        launched = decode_rows
    scalars = (split * launched + tokens.to(tl.int64)) * HEADS + heads
    if IS_SPLIT:
        share = tl.cdiv(tl.cdiv(stop - begin, splits), BLOCK_N) * BLOCK_N
        share = tl.maximum(share, shortest_split)
        begin += split * share
        end = tl.minimum(begin + share, stop)
        if begin >= stop:
            tl.store(partial_scalars + scalars, rows * 0.0 + NO_SCORE, mask=is_query)
            return

    columns = tl.arange(0, BLOCK_D)
    is_number = is_query[:, None] & (columns[None, :] < HEAD_DIM)
    numbers = (tokens.to(tl.int64)[:, None] * HEADS + heads[:, None]) * HEAD_DIM + columns[None, :]
    query_base = queries
    output_base = outputs
    if not IS_DECODE:
        query_base += decode_rows * HEADS * HEAD_DIM
        output_base += decode_rows * HEADS * HEAD_DIM
    query_tile = tl.load(query_base + numbers, mask=is_number, other=0.0)
    page_table = page_tables + sequence.to(tl.int64) * table_stride
    sums = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    maxima = tl.full([BLOCK_M], NO_SCORE, dtype=tl.float32)
    totals = tl.zeros([BLOCK_M], dtype=tl.float32)

    if IS_DECODE:
        # One loop, masked throughout: the memory is the limit, and a second loop would start with nothing prefetched.
        sums, maxima, totals = _fold_keys(
            sums, maxima, totals, query_tile, keys, values, page_table, kv_head, begin, end, first_keys, limits,
            score_scale, cap_scale, KV_HEADS, HEAD_DIM, PAGE_SIZE, BLOCK_N, BLOCK_D, True, HAS_CAP, PRECISION,
        )  # fmt: skip
    else:
        # Here arithmetic is the limit: only the borders, where some query does not see all keys, pay for masks.
        plain_begin = begin
        if HAS_WINDOW:
            plain_begin = tl.minimum(tl.maximum(tl.cdiv(highest_first, BLOCK_N) * BLOCK_N, begin), end)
            sums, maxima, totals = _fold_keys(
                sums, maxima, totals, query_tile, keys, values, page_table, kv_head, begin, plain_begin, first_keys,
                limits, score_scale, cap_scale, KV_HEADS, HEAD_DIM, PAGE_SIZE, BLOCK_N, BLOCK_D, True, HAS_CAP,
                PRECISION,
            )  # fmt: skip
        plain_end = tl.maximum(tl.minimum(lowest_limit // BLOCK_N * BLOCK_N, end), plain_begin)
        sums, maxima, totals = _fold_keys(
            sums, maxima, totals, query_tile, keys, values, page_table, kv_head, plain_begin, plain_end, first_keys,
            limits, score_scale, cap_scale, KV_HEADS, HEAD_DIM, PAGE_SIZE, BLOCK_N, BLOCK_D, False, HAS_CAP, PRECISION,
        )  # fmt: skip
        sums, maxima, totals = _fold_keys(
            sums, maxima, totals, query_tile, keys, values, page_table, kv_head, plain_end, end, first_keys, limits,
            score_scale, cap_scale, KV_HEADS, HEAD_DIM, PAGE_SIZE, BLOCK_N, BLOCK_D, True, HAS_CAP, PRECISION,
        )  # fmt: skip

    if IS_SPLIT:
        of_totals = splits.to(tl.int64) * launched * HEADS
        tl.store(partial_scalars + scalars, maxima, mask=is_query)
        tl.store(partial_scalars + of_totals + scalars, totals, mask=is_query)
        tl.store(partial_sums + scalars[:, None] * HEAD_DIM + columns[None, :], sums, mask=is_number)
    else:
        found = sums / tl.where(is_query, totals, 1.0)[:, None]
        tl.store(output_base + numbers, found.to(outputs.dtype.element_ty), mask=is_number)


@triton.jit(do_not_specialize=["rows", "first_row", "splits"])
def join_splits(
    partial_sums,
    partial_scalars,
    outputs,
    rows,  # queries of the launch x heads
    first_row,  # of the outputs
    splits,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Grid: (rows,). Splits are joined BLOCK_S at a time from the first on, so that empty ones behind change no bit."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_D)
    in_columns = columns < HEAD_DIM
    of_totals = splits.to(tl.int64) * rows
    maximum = tl.max(tl.full([BLOCK_S], NO_SCORE, dtype=tl.float32), 0)
    total = tl.sum(tl.zeros([BLOCK_S], dtype=tl.float32), 0)
    sums = tl.zeros([BLOCK_D], dtype=tl.float32)
    for first in range(0, splits, BLOCK_S):
        numbers = first + tl.arange(0, BLOCK_S)
        places = numbers * rows + row
        maxima = tl.load(partial_scalars + places, mask=numbers < splits, other=NO_SCORE)
        has_sums = maxima > NO_SCORE  # the others were never written
        new_maximum = tl.maximum(maximum, tl.max(maxima, 0))
        base = tl.where(new_maximum == NO_SCORE, 0.0, new_maximum)
        weights = tl.exp2(maxima - base)
        decay = tl.exp2(maximum - base)
        totals = tl.load(partial_scalars + of_totals + places, mask=has_sums, other=0.0)
        is_number = has_sums[:, None] & in_columns[None, :]
        of_splits = tl.load(partial_sums + places[:, None] * HEAD_DIM + columns[None, :], mask=is_number, other=0.0)
        total = total * decay + tl.sum(totals * weights, 0)
        sums = sums * decay + tl.sum(of_splits * weights[:, None], 0)
        maximum = new_maximum
    found = sums / total
    place = (first_row + row) * HEAD_DIM + columns
    tl.store(outputs + place, found.to(outputs.dtype.element_ty), mask=in_columns)


@triton.jit
def write_pages(
    keys,  # [T, KV_HEADS, HEAD_DIM], numbers of a head contiguous
    values,
    key_pages,
    value_pages,
    slots,  # [T] int64
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: (T,). One launch for both sides, where index_copy_ would be two."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    numbers = tl.arange(0, BLOCK)
    is_number = numbers < KV_HEADS * HEAD_DIM
    head, column = numbers // HEAD_DIM, numbers % HEAD_DIM
    place = slot * KV_HEADS * HEAD_DIM + numbers
    key = tl.load(keys + token * key_token_stride + head * key_head_stride + column, mask=is_number)
    tl.store(key_pages + place, key.to(key_pages.dtype.element_ty), mask=is_number)
    value = tl.load(values + token * value_token_stride + head * value_head_stride + column, mask=is_number)
    tl.store(value_pages + place, value.to(value_pages.dtype.element_ty), mask=is_number)
