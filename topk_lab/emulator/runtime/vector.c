/* Vector instructions: one pass over the 64 lanes of a wave each. */
#include "state.h"

#include <math.h>

#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define MAX(x, y) ((x) > (y) ? (x) : (y))

/* Exact; a signalling NaN stays one. */
static inline float half_to_float(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000) << 16, magnitude = bits & 0x7fff;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t special = magnitude << 13 | 0x7f800000;
  const uint32_t subnormal = as_bits((float)(int32_t)magnitude * 0x1p-24f);
  return as_float(sign | (magnitude >= 0x7c00 ? special : magnitude < 0x400 ? subnormal : normal));
}

/* Rounds to nearest even; a NaN becomes quiet. Adding 0.5 makes the float adder round at the last bit that a subnormal
   half has. */
static inline uint32_t float_to_half(float value) {
  const uint32_t bits = as_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  const uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
  const uint32_t rounded = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
  const uint32_t subnormal = as_bits(as_float(magnitude) + 0.5f) - as_bits(0.5f);
  const uint32_t finite = magnitude < 0x38800000 ? subnormal : rounded;
  const uint32_t infinite = magnitude > 0x7f800000 ? nan : 0x7c00;
  return sign | (magnitude >= 0x477ff000 ? infinite : finite);
}

/* An invalid operation gives the positive quiet NaN; the host's would be negative. */
static inline float result(float r, float a, float b) {
  return r != r && a == a && b == b ? as_float(0x7fc00000) : r;
}

static inline float quieted(float a) { return as_float(as_bits(a) | 0x400000); }

static inline float canonical(float a) { return a != a ? quieted(a) : a; }

static inline bool signals(float a) { return a != a && !(as_bits(a) & 0x400000); }

/* IEEE mode: a signalling NaN wins, a quiet one loses, and -0 is below +0. */
static inline float least(float a, float b) {
  const bool zeros = a == 0 && b == 0;
  const float smaller = zeros ? as_float(as_bits(a) | as_bits(b)) : a < b ? a : b;
  return signals(a) ? quieted(a) : signals(b) ? quieted(b) : a != a ? b : b != b ? a : smaller;
}

static inline float greatest(float a, float b) {
  const bool zeros = a == 0 && b == 0;
  const float larger = zeros ? as_float(as_bits(a) & as_bits(b)) : a > b ? a : b;
  return signals(a) ? quieted(a) : signals(b) ? quieted(b) : a != a ? b : b != b ? a : larger;
}

static inline float median(float a, float b, float c) {
  if (a != a || b != b || c != c) return least(least(a, b), c);
  return greatest(least(a, b), least(greatest(a, b), c));
}

static inline int32_t truncate_i32(float a) {
  return a != a ? 0 : a >= 0x1p31f ? INT32_MAX : a < -0x1p31f ? INT32_MIN : (int32_t)a;
}

static inline uint32_t truncate_u32(float a) {
  return !(a > 0) ? 0 : a >= 0x1p32f ? UINT32_MAX : (uint32_t)a;
}

static inline uint32_t low24(uint32_t a) { return a & 0xffffff; }

static inline int32_t signed24(uint32_t a) { return (int32_t)(a << 8) >> 8; }

static inline uint32_t saturate_i16(int32_t a) {
  return (uint16_t)(a < -32768 ? -32768 : a > 32767 ? 32767 : a);
}

static inline uint32_t lanes_below_low(int l) { return l < 32 ? (1u << (l & 31)) - 1 : ~0u; }

static inline uint32_t lanes_below_high(int l) { return l < 32 ? 0 : (1u << (l & 31)) - 1; }

static inline uint32_t field_i32(int32_t a, uint32_t offset, uint32_t width) {
  const uint32_t unused = (32 - width) & 31;
  const uint32_t shifted = (uint32_t)(a >> offset);
  return width ? (uint32_t)((int32_t)(shifted << unused) >> unused) : 0;
}

static inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selectors) {
  const uint64_t bytes = (uint64_t)a << 32 | b;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = selectors >> 8 * i & 255;
    uint32_t byte = selector == 12 ? 0 : 255;
    if (selector < 8) byte = bytes >> 8 * selector & 255;
    else if (selector < 12) byte = bytes >> (16 * (selector - 8) + 15) & 1 ? 255 : 0;
    r |= byte << 8 * i;
  }
  return r;
}

/* One bit a class: signalling NaN, quiet NaN, then -inf, -normal, -subnormal, -0 and, mirrored,
   +0 ... +inf. */
static inline uint32_t class_bit(bool nan, bool quiet, bool negative, int rank) {
  return nan ? (quiet ? 2 : 1) : 1u << (negative ? 2 + rank : 9 - rank);
}

static inline uint32_t classes_f32(uint32_t bits) {
  const uint32_t m = bits & 0x7fffffff;
  const int rank = m == 0x7f800000 ? 0 : m >= 0x800000 ? 1 : m ? 2 : 3;
  return class_bit(m > 0x7f800000, bits & 0x400000, bits >> 31, rank);
}

static inline uint32_t classes_f16(uint32_t bits) {
  const uint32_t m = bits & 0x7fff;
  const int rank = m == 0x7c00 ? 0 : m >= 0x400 ? 1 : m ? 2 : 3;
  return class_bit(m > 0x7c00, bits & 0x200, bits >> 15 & 1, rank);
}

/* Operand types: value type, words, reading, writing. A write takes the lane's mask word. */
#define VALUE_U32 uint32_t
#define VALUE_I32 int32_t
#define VALUE_U16 uint16_t
#define VALUE_I16 int16_t
#define VALUE_LOW16 uint16_t
#define VALUE_F32 float
#define VALUE_F16 float
#define VALUE_U64 uint64_t
#define VALUE_I64 int64_t
#define VALUE_F64 double

#define WORDS_U32 1
#define WORDS_I32 1
#define WORDS_U16 1
#define WORDS_I16 1
#define WORDS_F32 1
#define WORDS_F16 1
#define WORDS_U64 2
#define WORDS_I64 2
#define WORDS_F64 2

#define TWO_WORDS(p, l) ((p)[l] | (uint64_t)(p)[(l) + LANES] << 32)
#define READ_U32(p, l) (p)[l]
#define READ_I32(p, l) (int32_t)(p)[l]
#define READ_U16(p, l) (uint16_t)(p)[l]
#define READ_I16(p, l) (int16_t)(p)[l]
#define READ_F32(p, l) as_float((p)[l])
#define READ_F16(p, l) half_to_float((p)[l] & 0xffff)
#define READ_U64(p, l) TWO_WORDS(p, l)
#define READ_I64(p, l) (int64_t)TWO_WORDS(p, l)
#define READ_F64(p, l) as_double(TWO_WORDS(p, l))

#define BLEND(word, bits, mask) (word) = ((bits) & (mask)) | ((word) & ~(mask))
#define BLEND2(d, l, bits, mask)                 \
  do {                                           \
    const uint64_t two_ = (bits);                \
    BLEND((d)[l], (uint32_t)two_, mask);         \
    BLEND((d)[(l) + LANES], (uint32_t)(two_ >> 32), mask); \
  } while (0)
#define WRITE_U32(d, l, r, mask) BLEND((d)[l], r, mask)
#define WRITE_I32(d, l, r, mask) BLEND((d)[l], (uint32_t)(r), mask)
#define WRITE_U16(d, l, r, mask) BLEND((d)[l], (uint32_t)(r), mask)
#define WRITE_LOW16(d, l, r, mask) BLEND((d)[l], (uint32_t)(r), (mask) & 0xffff)
#define WRITE_F32(d, l, r, mask) BLEND((d)[l], as_bits(r), mask)
#define WRITE_F16(d, l, r, mask) BLEND((d)[l], float_to_half(r), mask)
#define WRITE_U64(d, l, r, mask) BLEND2(d, l, r, mask)
#define WRITE_I64(d, l, r, mask) BLEND2(d, l, (uint64_t)(r), mask)
#define WRITE_F64(d, l, r, mask) BLEND2(d, l, as_bits64(r), mask)

enum { SCALAR_OPERAND = 1 };

/* The lanes of a source: the register itself, or the scalar repeated in `room`. */
static inline const uint32_t *lanes_of(struct wave *w, uint32_t operand, uint32_t *room,
                                       int words) {
  if (!(operand & SCALAR_OPERAND)) return at(w, operand);
  const uint32_t *scalar = at(w, operand & ~(uint32_t)SCALAR_OPERAND);
  for (int word = 0; word < words; ++word) {
    const uint32_t value = scalar[word];
    for (int l = 0; l < LANES; ++l) room[word * LANES + l] = value;
  }
  return room;
}

#define SOURCE(T, name, operand)                                            \
  uint32_t name##_room[WORDS_##T * LANES] __attribute__((aligned(64)));     \
  const uint32_t *name##_lanes = lanes_of(w, operand, name##_room, WORDS_##T);

#define VALUE(T, name) const VALUE_##T name = READ_##T(name##_lanes, l);

/* Runs `body` on every lane with `mask` all ones, or the lane's mask word where some are off. */
#define ON_ACTIVE_LANES(...)                         \
  if (exec_of(w) == ALL_LANES) {                     \
    const uint32_t mask = ~0u;                       \
    FOR_LANES { __VA_ARGS__ }                        \
  } else {                                           \
    const uint32_t *active = active_lanes(w);        \
    FOR_LANES {                                      \
      const uint32_t mask = active[l];               \
      __VA_ARGS__                                    \
    }                                                \
  }

#define HANDLER(name) static const struct op *do_##name(struct wave *w, const struct op *o)

#define OP1(name, D, A, value)                                              \
  HANDLER(name) {                                                           \
    SOURCE(A, a, o->src[0])                                                 \
    uint32_t *d = at(w, o->dst[0]);                                         \
    ON_ACTIVE_LANES(VALUE(A, a) const VALUE_##D r = (value); WRITE_##D(d, l, r, mask);) \
    return o + 1;                                                           \
  }

#define OP2(name, D, A, B, value)                                           \
  HANDLER(name) {                                                           \
    SOURCE(A, a, o->src[0])                                                 \
    SOURCE(B, b, o->src[1])                                                 \
    uint32_t *d = at(w, o->dst[0]);                                         \
    ON_ACTIVE_LANES(VALUE(A, a) VALUE(B, b) const VALUE_##D r = (VALUE_##D)(value); \
                    WRITE_##D(d, l, r, mask);)                              \
    return o + 1;                                                           \
  }

#define OP3(name, D, A, B, C, value)                                        \
  HANDLER(name) {                                                           \
    SOURCE(A, a, o->src[0])                                                 \
    SOURCE(B, b, o->src[1])                                                 \
    SOURCE(C, c, o->src[2])                                                 \
    uint32_t *d = at(w, o->dst[0]);                                         \
    ON_ACTIVE_LANES(VALUE(A, a) VALUE(B, b) VALUE(C, c)                     \
                    const VALUE_##D r = (VALUE_##D)(value);                 \
                    WRITE_##D(d, l, r, mask);)                              \
    return o + 1;                                                           \
  }

#define ACCUMULATE(name, T, value)                                          \
  HANDLER(name) {                                                           \
    SOURCE(T, a, o->src[0])                                                 \
    SOURCE(T, b, o->src[1])                                                 \
    uint32_t *d = at(w, o->dst[0]);                                         \
    ON_ACTIVE_LANES(VALUE(T, a) VALUE(T, b) const VALUE_##T c = READ_##T(d, l); \
                    const VALUE_##T r = (value); WRITE_##T(d, l, r, mask);) \
    return o + 1;                                                           \
  }

#define PACKED_VALUE_U16 uint16_t
#define PACKED_VALUE_I16 int16_t
#define PACKED_VALUE_F16 float
#define PACKED_READ_U16(h) (h)
#define PACKED_READ_I16(h) (int16_t)(h)
#define PACKED_READ_F16(h) half_to_float(h)
#define PACKED_BITS_U16(r) (uint16_t)(r)
#define PACKED_BITS_I16(r) (uint16_t)(r)
#define PACKED_BITS_F16(r) (uint16_t)float_to_half(r)

#define HALVES(name) const uint16_t *name##_halves = (const uint16_t *)name##_lanes;
#define HALF(T, name, i) const PACKED_VALUE_##T name = PACKED_READ_##T(name##_halves[i]);

/* A mask word is all ones or zero, so its halves mask the halves of the register. */
#define PACKED_LOOP(T, values, value)                                       \
  const uint16_t *active = (const uint16_t *)active_lanes(w);               \
  uint16_t *d = (uint16_t *)at(w, o->dst[0]);                               \
  INDEPENDENT_LANES for (int i = 0; i < 2 * LANES; ++i) {                   \
    values const PACKED_VALUE_##T r = (PACKED_VALUE_##T)(value);            \
    d[i] = (uint16_t)((PACKED_BITS_##T(r) & active[i]) | (d[i] & ~active[i])); \
  }

#define PACKED2(name, T, value)                                             \
  HANDLER(name) {                                                           \
    SOURCE(U32, a, o->src[0])                                               \
    SOURCE(U32, b, o->src[1])                                               \
    HALVES(a) HALVES(b)                                                     \
    PACKED_LOOP(T, HALF(T, a, i) HALF(T, b, i), value)                      \
    return o + 1;                                                           \
  }

#define PACKED3(name, T, value)                                             \
  HANDLER(name) {                                                           \
    SOURCE(U32, a, o->src[0])                                               \
    SOURCE(U32, b, o->src[1])                                               \
    SOURCE(U32, c, o->src[2])                                               \
    HALVES(a) HALVES(b) HALVES(c)                                           \
    PACKED_LOOP(T, HALF(T, a, i) HALF(T, b, i) HALF(T, c, i), value)        \
    return o + 1;                                                           \
  }

/* The low result is held back until the high sources are read: they may be the same register. */
#define PACKED_WORDS_BODY(low_values, high_values, value)                   \
  uint32_t *d = at(w, o->dst[0]);                                           \
  ON_ACTIVE_LANES(float low, high; { low_values low = (value); }            \
                  { high_values high = (value); }                           \
                  WRITE_F32(d, l, low, mask); WRITE_F32(d + LANES, l, high, mask);)

#define WORD(name, at) const float name = as_float(name##_lanes[l + (at) * LANES]);

#define PACKED_WORDS2(name, value)                                          \
  HANDLER(name) {                                                           \
    SOURCE(U64, a, o->src[0])                                               \
    SOURCE(U64, b, o->src[1])                                               \
    PACKED_WORDS_BODY(WORD(a, 0) WORD(b, 0), WORD(a, 1) WORD(b, 1), value)  \
    return o + 1;                                                           \
  }

#define PACKED_WORDS3(name, value)                                          \
  HANDLER(name) {                                                           \
    SOURCE(U64, a, o->src[0])                                               \
    SOURCE(U64, b, o->src[1])                                               \
    SOURCE(U64, c, o->src[2])                                               \
    PACKED_WORDS_BODY(WORD(a, 0) WORD(b, 0) WORD(c, 0), WORD(a, 1) WORD(b, 1) WORD(c, 1), value) \
    return o + 1;                                                           \
  }

/* Bit l is flags[l]; the multiplication gathers the lowest bits of eight bytes. */
static inline uint64_t pack_flags(const uint8_t *flags) {
  uint64_t r = 0;
  for (int i = 0; i < LANES / 8; ++i) {
    uint64_t bytes;
    memcpy(&bytes, flags + 8 * i, sizeof bytes);
    r |= (bytes * UINT64_C(0x0102040810204080) >> 56) << 8 * i;
  }
  return r;
}

#define COMPARE(name, A, B, condition)                                      \
  HANDLER(name) {                                                           \
    SOURCE(A, a, o->src[0])                                                 \
    SOURCE(B, b, o->src[1])                                                 \
    uint8_t flags[LANES] __attribute__((aligned(64)));                      \
    FOR_LANES {                                                             \
      VALUE(A, a) VALUE(B, b)                                               \
      flags[l] = (condition) ? 1 : 0;                                       \
    }                                                                       \
    set_pair(at(w, o->dst[0]), pack_flags(flags) & exec_of(w));             \
    return o + 1;                                                           \
  }

#define INTEGER_COMPARES(T, suffix)                    \
  COMPARE(v_cmp_eq_##suffix, T, T, a == b)             \
  COMPARE(v_cmp_ne_##suffix, T, T, a != b)             \
  COMPARE(v_cmp_lt_##suffix, T, T, a < b)              \
  COMPARE(v_cmp_le_##suffix, T, T, a <= b)             \
  COMPARE(v_cmp_gt_##suffix, T, T, a > b)              \
  COMPARE(v_cmp_ge_##suffix, T, T, a >= b)

#define FLOAT_COMPARES(T, suffix)                      \
  COMPARE(v_cmp_eq_##suffix, T, T, a == b)             \
  COMPARE(v_cmp_lg_##suffix, T, T, a < b || a > b)     \
  COMPARE(v_cmp_lt_##suffix, T, T, a < b)              \
  COMPARE(v_cmp_le_##suffix, T, T, a <= b)             \
  COMPARE(v_cmp_gt_##suffix, T, T, a > b)              \
  COMPARE(v_cmp_ge_##suffix, T, T, a >= b)             \
  COMPARE(v_cmp_o_##suffix, T, T, a == a && b == b)    \
  COMPARE(v_cmp_u_##suffix, T, T, a != a || b != b)    \
  COMPARE(v_cmp_neq_##suffix, T, T, !(a == b))         \
  COMPARE(v_cmp_nlg_##suffix, T, T, !(a < b || a > b)) \
  COMPARE(v_cmp_nlt_##suffix, T, T, !(a < b))          \
  COMPARE(v_cmp_nle_##suffix, T, T, !(a <= b))         \
  COMPARE(v_cmp_ngt_##suffix, T, T, !(a > b))          \
  COMPARE(v_cmp_nge_##suffix, T, T, !(a >= b))

#define CARRY_BODY(carry_in, sum, carry_out)                                \
  SOURCE(U32, a, o->src[0])                                                 \
  SOURCE(U32, b, o->src[1])                                                 \
  uint32_t *d = at(w, o->dst[0]);                                           \
  uint8_t flags[LANES] __attribute__((aligned(64)));                        \
  ON_ACTIVE_LANES(VALUE(U32, a) VALUE(U32, b) const uint32_t c = (carry_in); \
                  const uint32_t r = (sum); flags[l] = (carry_out) ? 1 : 0; \
                  (void)c; WRITE_U32(d, l, r, mask);)                       \
  set_pair(at(w, o->dst[1]), pack_flags(flags) & exec_of(w));               \
  return o + 1;

#define CARRY(name, sum, carry_out) HANDLER(name) { CARRY_BODY(0, sum, carry_out) }

#define CARRY_IN(name, sum, carry_out)                                      \
  HANDLER(name) {                                                           \
    uint32_t carries[LANES] __attribute__((aligned(64)));                   \
    spell_out(pair(at(w, o->src[2])), carries);                             \
    CARRY_BODY(carries[l] & 1, sum, carry_out)                              \
  }

#include "vector.def"

HANDLER(v_nop) {
  (void)w;
  return o + 1;
}

HANDLER(v_cndmask_b32) {
  SOURCE(U32, a, o->src[0])
  SOURCE(U32, b, o->src[1])
  uint32_t chosen[LANES] __attribute__((aligned(64)));
  spell_out(pair(at(w, o->src[2])), chosen);
  uint32_t *d = at(w, o->dst[0]);
  ON_ACTIVE_LANES(const uint32_t r = (b_lanes[l] & chosen[l]) | (a_lanes[l] & ~chosen[l]);
                  WRITE_U32(d, l, r, mask);)
  return o + 1;
}

HANDLER(v_mad_u64_u32) {
  SOURCE(U32, a, o->src[0])
  SOURCE(U32, b, o->src[1])
  SOURCE(U64, c, o->src[2])
  uint32_t *d = at(w, o->dst[0]);
  uint8_t flags[LANES] __attribute__((aligned(64)));
  ON_ACTIVE_LANES(VALUE(U32, a) VALUE(U32, b) VALUE(U64, c)
                  const uint64_t product = (uint64_t)a * b; const uint64_t r = product + c;
                  flags[l] = r < product; WRITE_U64(d, l, r, mask);)
  set_pair(at(w, o->dst[1]), pack_flags(flags) & exec_of(w));
  return o + 1;
}

/* The carry out is the overflow of the signed sum. */
HANDLER(v_mad_i64_i32) {
  SOURCE(I32, a, o->src[0])
  SOURCE(I32, b, o->src[1])
  SOURCE(U64, c, o->src[2])
  uint32_t *d = at(w, o->dst[0]);
  uint8_t flags[LANES] __attribute__((aligned(64)));
  ON_ACTIVE_LANES(VALUE(I32, a) VALUE(I32, b) VALUE(U64, c)
                  const uint64_t product = (uint64_t)((int64_t)a * b);
                  const uint64_t r = product + c;
                  flags[l] = (~(product ^ c) & (product ^ r)) >> 63;
                  WRITE_U64(d, l, r, mask);)
  set_pair(at(w, o->dst[1]), pack_flags(flags) & exec_of(w));
  return o + 1;
}

/* The immediate is the truth table; a, b, c are bits 2, 1, 0 of its index. */
#define BITOP3(name, bits)                                                                        \
  HANDLER(name) {                                                                                 \
    SOURCE(U32, a, o->src[0])                                                                     \
    SOURCE(U32, b, o->src[1])                                                                     \
    SOURCE(U32, c, o->src[2])                                                                     \
    uint32_t *d = at(w, o->dst[0]);                                                               \
    uint32_t terms[8];                                                                            \
    for (int i = 0; i < 8; ++i) terms[i] = -((uint32_t)o->immediate >> i & 1u);                   \
    ON_ACTIVE_LANES(VALUE(U32, a) VALUE(U32, b) VALUE(U32, c)                                     \
                    const uint32_t low = (~b & ((~c & terms[0]) | (c & terms[1]))) |              \
                                         (b & ((~c & terms[2]) | (c & terms[3])));                \
                    const uint32_t high = (~b & ((~c & terms[4]) | (c & terms[5]))) |             \
                                          (b & ((~c & terms[6]) | (c & terms[7])));               \
                    const uint32_t r = ((~a & low) | (a & high)) & (bits);                        \
                    WRITE_U32(d, l, r, mask);)                                                    \
    return o + 1;                                                                                 \
  }
BITOP3(v_bitop3_b32, ~0u)
BITOP3(v_bitop3_b16, 0xffffu)

/* One word of each source pair: word `immediate & 1` of the first, `immediate >> 8` of the second. */
HANDLER(v_pk_mov_b32) {
  SOURCE(U64, a, o->src[0])
  SOURCE(U64, b, o->src[1])
  uint32_t *d = at(w, o->dst[0]);
  const uint32_t *low = a_lanes + (o->immediate & 1) * LANES;
  const uint32_t *high = b_lanes + (o->immediate >> 8 & 1) * LANES;
  ON_ACTIVE_LANES(const uint64_t r = low[l] | (uint64_t)high[l] << 32; WRITE_U64(d, l, r, mask);)
  return o + 1;
}

HANDLER(v_swap_b32) {
  uint32_t *d = at(w, o->dst[0]), *s = at(w, o->src[0]);
  const uint32_t *active = active_lanes(w);
  for (int l = 0; l < LANES; ++l) {
    const uint32_t difference = (d[l] ^ s[l]) & active[l];
    d[l] ^= difference;
    s[l] ^= difference;
  }
  return o + 1;
}

/* Swaps the odd groups of `width` lanes of the first register with the even ones of the second. */
static void swap_groups(struct wave *w, const struct op *o, int width) {
  uint32_t *d = at(w, o->dst[0]), *s = at(w, o->src[0]);
  const uint32_t *active = active_lanes(w);
  for (int l = 0; l < LANES; ++l) {
    if (l & width) continue;
    const uint32_t even = s[l], odd = d[l + width];
    if (active[l]) s[l] = odd;
    if (active[l + width]) d[l + width] = even;
  }
}

HANDLER(v_permlane32_swap_b32) {
  swap_groups(w, o, 32);
  return o + 1;
}

HANDLER(v_permlane16_swap_b32) {
  swap_groups(w, o, 16);
  return o + 1;
}

HANDLER(v_readfirstlane_b32) {
  const uint64_t exec = exec_of(w);
  *at(w, o->dst[0]) = at(w, o->src[0])[exec ? __builtin_ctzll(exec) : 0];
  return o + 1;
}

HANDLER(v_readlane_b32) {
  *at(w, o->dst[0]) = at(w, o->src[0])[*at(w, o->src[1]) & (LANES - 1)];
  return o + 1;
}

HANDLER(v_writelane_b32) {
  at(w, o->dst[0])[*at(w, o->src[1]) & (LANES - 1)] = *at(w, o->src[0]);
  return o + 1;
}

/* Steps that an instruction with operand modifiers is split into. */

/* Sign modifiers of floats: |x| clears a bit, -x flips it. */
HANDLER(step_sign) {
  SOURCE(U32, a, o->src[0])
  uint32_t *d = at(w, o->dst[0]);
  const uint32_t keep = o->extra[0], flip = o->extra[1];
  FOR_LANES d[l] = (a_lanes[l] & keep) ^ flip;
  return o + 1;
}

/* The same for a double, whose sign is in the second word. */
HANDLER(step_sign64) {
  SOURCE(U64, a, o->src[0])
  uint32_t *d = at(w, o->dst[0]);
  const uint32_t keep = o->extra[0], flip = o->extra[1];
  FOR_LANES {
    d[l] = a_lanes[l];
    d[l + LANES] = (a_lanes[l + LANES] & keep) ^ flip;
  }
  return o + 1;
}

/* SDWA source: `extra[1]` bits from bit `extra[0]`, sign-extended if the immediate says so. */
HANDLER(step_extract) {
  SOURCE(U32, a, o->src[0])
  uint32_t *d = at(w, o->dst[0]);
  const uint32_t shift = o->extra[0], unused = 32 - o->extra[1];
  if (o->immediate) {
    FOR_LANES d[l] = (uint32_t)((int32_t)(a_lanes[l] >> shift << unused) >> unused);
  } else {
    FOR_LANES d[l] = a_lanes[l] >> shift << unused >> unused;
  }
  return o + 1;
}

/* SDWA destination: the low `extra[1]` bits go to bit `extra[0]`; the other bits become zero (0),
   copies of the sign above (1), or stay (2). */
HANDLER(step_insert) {
  const uint32_t *a_lanes = at(w, o->src[0]);
  uint32_t *d = at(w, o->dst[0]);
  const uint32_t shift = o->extra[0], unused = 32 - o->extra[1];
  const uint32_t field = ~0u << unused >> unused << shift;
  const bool extend = o->immediate == 1;
  const uint32_t kept = o->immediate == 2 ? ~field : 0;
  ON_ACTIVE_LANES(const uint32_t value = a_lanes[l] << unused;
                  const uint32_t wide = extend ? (uint32_t)((int32_t)value >> unused)
                                               : value >> unused;
                  const uint32_t r = (wide << shift) | (d[l] & kept);
                  WRITE_U32(d, l, r, mask);)
  return o + 1;
}

/* Halves of a packed source: the low one from bit `immediate & 16`, the high one from bit
   `immediate >> 8 & 16`, signs flipped by `extra[0]`. */
HANDLER(step_halves) {
  SOURCE(U32, a, o->src[0])
  uint32_t *d = at(w, o->dst[0]);
  const uint32_t low = o->immediate & 16, high = o->immediate >> 8 & 16, flip = o->extra[0];
  FOR_LANES d[l] = ((a_lanes[l] >> low & 0xffff) | a_lanes[l] >> high << 16) ^ flip;
  return o + 1;
}

/* Words of a packed source: the low one is word `immediate & 1`, the high one `immediate >> 8`. */
HANDLER(step_words) {
  SOURCE(U64, a, o->src[0])
  uint32_t *d = at(w, o->dst[0]);
  const int low = o->immediate & 1, high = o->immediate >> 8 & 1;
  const uint32_t flip_low = o->extra[0], flip_high = o->extra[1];
  FOR_LANES {
    d[l] = a_lanes[l + low * LANES] ^ flip_low;
    d[l + LANES] = a_lanes[l + high * LANES] ^ flip_high;
  }
  return o + 1;
}

/* DPP source: moves the lanes and leaves EXEC with the lanes that the instruction writes. A lane
   reads only from lanes that are switched on. */
HANDLER(step_move_lanes) {
  const struct lane_map *map = o->target;
  const uint32_t *a_lanes = at(w, o->src[0]);
  uint32_t *d = at(w, o->dst[0]);
  const uint64_t exec = exec_of(w);
  uint64_t sourced = 0;
  for (int l = 0; l < LANES; ++l) {
    const int from = map->source[l];
    const bool valid = from >= 0 && exec >> (from & (LANES - 1)) & 1;
    d[l] = valid ? a_lanes[from & (LANES - 1)] : 0;
    sourced |= (uint64_t)valid << l;
  }
  w->saved_exec = exec;
  set_pair(w->scalar + EXEC, exec & map->writable & (map->zero_fill ? ALL_LANES : sourced));
  return o + 1;
}

HANDLER(step_restore_exec) {
  set_pair(w->scalar + EXEC, w->saved_exec);
  return o + 1;
}

/* v_cmpx: EXEC becomes the result of the compare before it. */
HANDLER(step_set_exec) {
  set_pair(w->scalar + EXEC, pair(at(w, o->src[0])));
  return o + 1;
}

/* The table: the same lines again, as rows. */
#undef OP1
#undef OP2
#undef OP3
#undef ACCUMULATE
#undef PACKED2
#undef PACKED3
#undef PACKED_WORDS2
#undef PACKED_WORDS3
#undef COMPARE
#undef CARRY
#undef CARRY_IN
#define ROW(name, signature) {#name, "valu", signature, do_##name},
#define STEP(name) {#name, "step", "", do_##name},
#define OP1(name, D, A, value) ROW(name, #D " = " #A)
#define OP2(name, D, A, B, value) ROW(name, #D " = " #A " " #B)
#define OP3(name, D, A, B, C, value) ROW(name, #D " = " #A " " #B " " #C)
#define ACCUMULATE(name, T, value) ROW(name, #T " = " #T " " #T)
#define PACKED2(name, T, value) ROW(name, "P" #T " = P" #T " P" #T)
#define PACKED3(name, T, value) ROW(name, "P" #T " = P" #T " P" #T " P" #T)
#define PACKED_WORDS2(name, value) ROW(name, "PF32 = PF32 PF32")
#define PACKED_WORDS3(name, value) ROW(name, "PF32 = PF32 PF32 PF32")
#define COMPARE(name, A, B, condition) ROW(name, "MASK = " #A " " #B)
#define CARRY(name, sum, carry_out) ROW(name, "U32 MASK = U32 U32")
#define CARRY_IN(name, sum, carry_out) ROW(name, "U32 MASK = U32 U32 MASK")

const struct entry vector_entries[] = {
#include "vector.def"
  ROW(v_nop, "")
  ROW(v_cndmask_b32, "U32 = F32 F32 MASK")
  ROW(v_mad_u64_u32, "U64 MASK = U32 U32 U64")
  ROW(v_mad_i64_i32, "I64 MASK = I32 I32 I64")
  ROW(v_bitop3_b32, "U32 = U32 U32 U32")
  ROW(v_bitop3_b16, "U16 = U16 U16 U16")
  ROW(v_pk_mov_b32, "U64 = U64 U64")
  ROW(v_swap_b32, "VGPR = VGPR")
  ROW(v_permlane32_swap_b32, "VGPR = VGPR")
  ROW(v_permlane16_swap_b32, "VGPR = VGPR")
  ROW(v_readfirstlane_b32, "S32 = VGPR")
  ROW(v_readlane_b32, "S32 = VGPR S32")
  ROW(v_writelane_b32, "VGPR = S32 S32")
  STEP(step_sign)
  STEP(step_sign64)
  STEP(step_extract)
  STEP(step_insert)
  STEP(step_halves)
  STEP(step_words)
  STEP(step_move_lanes)
  STEP(step_restore_exec)
  STEP(step_set_exec)
  {NULL, NULL, NULL, NULL},
};
