/* The threads of one call: torch's own pool, borrowed for the call, and a barrier between its phases.
 *
 * The pool is reached through the functions of the OpenMP runtime that torch has loaded, which whoever calls us hands
 * over; so that there is no second pool that would fight with it for the cores. */
#ifndef FANLIGHT_TEAM_H
#define FANLIGHT_TEAM_H

#include <sched.h>
#include <stdatomic.h>

#include "vectors.h"

#define SPINS_BEFORE_YIELDING 4000

typedef struct {
    _Alignas(LINE) atomic_int arrived;
    _Alignas(LINE) atomic_int phase;
    int size;
} team;

typedef struct {
    team *team;
    int number;
} member;

/* Waits until all members of the team are here. */
INLINE void meet(const member *self) {
    team *all_of_us = self->team;
    if (all_of_us->size == 1) return;
    int phase = atomic_load_explicit(&all_of_us->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&all_of_us->arrived, 1, memory_order_acq_rel) == all_of_us->size - 1) {
        atomic_store_explicit(&all_of_us->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&all_of_us->phase, phase + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&all_of_us->phase, memory_order_acquire) == phase; spins++) {
        if (spins < SPINS_BEFORE_YIELDING)
            __builtin_ia32_pause();
        else
            sched_yield();
    }
}

/* The member's share of `count` things, in whole blocks of them: [first, last). */
INLINE void share(const member *self, int64_t count, int64_t block, int64_t *first, int64_t *last) {
    int64_t blocks = (count + block - 1) / block, size = self->team->size;
    *first = least(blocks * self->number / size * block, count);
    *last = least(blocks * (self->number + 1) / size * block, count);
}

#endif
