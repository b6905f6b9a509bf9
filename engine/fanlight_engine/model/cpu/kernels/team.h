/* The threads of one call: torch's own pool, borrowed for the call, and how they share out its work.
 *
 * A call is a row of phases, each of which needs all of the one before, and a phase is a number of items. Every member
 * walks through all phases and claims items, one by one, until there are none left. So nobody waits for a member that
 * has claimed nothing: when the system gives its core to another thread meanwhile, the others do its work, and it finds
 * the phases over that it missed. What stands between the phases must therefore change nothing.
 *
 * The pool is reached through a function of the OpenMP runtime that torch has loaded, which whoever calls us hands over;
 * so that there is no second pool that would fight with it for the cores. */
#ifndef FANLIGHT_TEAM_H
#define FANLIGHT_TEAM_H

#include <sched.h>
#include <stdatomic.h>

#include "packed.h"

#define SPINS_BEFORE_YIELDING 400
#define PHASE_BITS 32 /* above them the number of the phase, below the next item */
#define STRIPS_EACH 2 /* items for each member where there is a choice: few cost less, many leave nobody waiting */

typedef struct {
    _Alignas(LINE) atomic_llong next; /* the phase and its first item that nobody has claimed */
    atomic_llong done;                /* items of the phase */
    int64_t members;
} team;

typedef struct {
    team *team;
    int64_t phase;
    int has_claimed;
} member;

/* Whoever does the last item of a phase opens the next one. */
INLINE void finish_item(member *self, int64_t count) {
    team *of = self->team;
    self->has_claimed = 0;
    if (atomic_fetch_add_explicit(&of->done, 1, memory_order_acq_rel) + 1 < count) return;
    atomic_store_explicit(&of->done, 0, memory_order_relaxed);
    atomic_store_explicit(&of->next, (self->phase + 1) << PHASE_BITS, memory_order_release);
}

/* The next item of a phase of `count`, when the last one that was claimed is done; -1 when all of all members are. */
INLINE int64_t claim(member *self, int64_t count) {
    if (!count) return -1;
    if (self->has_claimed) finish_item(self, count);
    for (int spins = 0;; spins++) {
        long long next = atomic_load_explicit(&self->team->next, memory_order_acquire);
        if (next >> PHASE_BITS != self->phase) {
            self->phase++;
            return -1;
        }
        const int64_t item = next - (self->phase << PHASE_BITS);
        if (item < count) {
            self->has_claimed = atomic_compare_exchange_weak_explicit(&self->team->next, &next, next + 1,
                                                                      memory_order_acq_rel, memory_order_relaxed);
            if (self->has_claimed) return item;
        } else if (spins < SPINS_BEFORE_YIELDING) {
            __builtin_ia32_pause();
        } else {
            sched_yield();
        }
    }
}

/* The same for strips of whole blocks of `total` things: [first, last). False when all are done. */
INLINE int claim_strip(member *self, int64_t total, int64_t block, int64_t *first, int64_t *last) {
    const int64_t blocks = (total + block - 1) / block, strips = least(blocks, self->team->members * STRIPS_EACH);
    const int64_t strip = claim(self, strips);
    if (strip < 0) return 0;
    *first = blocks * strip / strips * block;
    *last = least(blocks * (strip + 1) / strips * block, total);
    return 1;
}

/* Lets threads that wait for this core have it now, while nothing of ours waits for this member. */
INLINE void give_way(void) { sched_yield(); }

#endif
