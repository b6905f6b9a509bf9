/* Vectors of floats, written once for every width, AVX-512 or AVX2; and the number type that a library is made for.
 *
 * FANLIGHT_HALF says which: 1 for weights and pages of bfloat16, 0 for floats. Sums are made in floats always. */
#ifndef FANLIGHT_VECTORS_H
#define FANLIGHT_VECTORS_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif

#define INLINE static inline __attribute__((always_inline))
#define LINE 64 /* bytes of a cache line */

#if FANLIGHT_HALF
typedef uint16_t number;
#else
typedef float number;
#endif
#define NUMBER_BYTES ((int64_t)sizeof(number))

typedef float floats __attribute__((vector_size(LANES * 4)));
typedef uint32_t words __attribute__((vector_size(LANES * 4)));
typedef int32_t signed_words __attribute__((vector_size(LANES * 4)));
typedef uint16_t halves __attribute__((vector_size(LANES * 2)));
typedef float loose_floats __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t loose_words __attribute__((vector_size(LANES * 4), aligned(2), may_alias));
typedef uint16_t loose_halves __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

INLINE int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }
INLINE int64_t greatest(int64_t one, int64_t other) { return one > other ? one : other; }
INLINE int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

INLINE floats all(float value) { return value - (floats){0}; }
INLINE floats load(const float *from) { return (floats)*(const loose_floats *)from; }
INLINE void store(float *to, floats value) { *(loose_floats *)to = (loose_floats)value; }

/* A number of bfloat16, and the nearest such number to a float, ties to even. */
INLINE float widened(uint16_t half) {
    uint32_t word = (uint32_t)half << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

INLINE uint16_t narrowed(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    return (uint16_t)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

/* The same of vectors. */
INLINE floats load_halves(const uint16_t *from) {
    return (floats)(__builtin_convertvector((halves)*(const loose_halves *)from, words) << 16);
}

INLINE words rounded_words(floats value) {
    words word = (words)value;
    return word + 0x7fff + ((word >> 16) & 1);
}

INLINE floats rounded_to_halves(floats value) { return (floats)(rounded_words(value) & 0xffff0000u); }

INLINE void store_halves(uint16_t *to, floats value) {
    *(loose_halves *)to = (loose_halves)__builtin_convertvector(rounded_words(value) >> 16, halves);
}

/* LANES weights or elements of pages as floats. */
INLINE floats load_numbers(const number *from) {
#if FANLIGHT_HALF
    return load_halves(from);
#else
    return load(from);
#endif
}

INLINE __m256 folded(floats value) {
#if LANES == 16
    return _mm256_add_ps(_mm512_castps512_ps256((__m512)value), _mm512_extractf32x8_ps((__m512)value, 1));
#else
    return (__m256)value;
#endif
}

/* The sums of all lanes of one vector, or of four; always in the same order. */
INLINE void store_four_sums(float *to, floats first, floats second, floats third, floats fourth) {
    const __m256 halves = _mm256_hadd_ps(folded(first), folded(second));
    const __m256 others = _mm256_hadd_ps(folded(third), folded(fourth));
    const __m256 both = _mm256_hadd_ps(halves, others);
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
}

INLINE float sum_of(floats value) {
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(folded(value)), _mm256_extractf128_ps(folded(value), 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

/* Lane by lane: where the mask is all ones the first, else the second. */
INLINE floats chosen(signed_words mask, floats first, floats second) {
    return (floats)((mask & (signed_words)first) | (~mask & (signed_words)second));
}

INLINE floats bounded(floats x, float lower, float upper) {
    x = chosen(x > all(upper), all(upper), x);
    return chosen(x < all(lower), all(lower), x);
}

/* e to the power of x, to about one unit in the last place; never infinite, zero nor subnormal. */
INLINE floats exponential(floats x) {
    const floats magic = all(12582912.0f);
    x = bounded(x, -87.0f, 88.0f);
    floats whole = x * 1.44269504088896341f + magic; /* the magic number leaves the nearest integer in the low bits */
    signed_words power = (signed_words)whole - (signed_words)magic;
    whole -= magic;
    floats rest = x - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    floats sum = all(1.0f / 5040.0f);
    sum = sum * rest + 1.0f / 720.0f;
    sum = sum * rest + 1.0f / 120.0f;
    sum = sum * rest + 1.0f / 24.0f;
    sum = sum * rest + 1.0f / 6.0f;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1.0f;
    sum = sum * rest + 1.0f;
    return (floats)((signed_words)sum + (power << 23));
}

INLINE floats hyperbolic_tangent(floats x) {
    x = bounded(x, -10.0f, 10.0f);
    floats grown = exponential(x + x);
    return (grown - 1.0f) / (grown + 1.0f);
}

#endif
