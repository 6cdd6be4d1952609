/* Memory instructions: address, check, move, count.

   Every access of an active lane is checked before any lane moves data. Operands: src[0] address,
   src[1] scalar base, src[2] and src[3] data. A wave may be preempted before any of them. */
#include "watch.h"

#define HANDLER(name) static const struct op *do_##name(struct wave *w, const struct op *o)

#define PREEMPTIBLE if (--w->slice < 0) return yield_at(w, o);

/* Conflicting accesses of one instruction happen in an order that a seed changes. */
#define FOR_EACH_IN_ORDER(l, bits)                                            \
  for (uint32_t i_ = 0, flip_ = w->worker->lane_flip; i_ < LANES; ++i_)       \
    for (uint32_t l = i_ ^ flip_, once_ = (uint32_t)((bits) >> l & 1); once_; once_ = 0)

#define SIGNED(value) _Generic((value), uint32_t: (int32_t)(value), uint64_t: (int64_t)(value))

static inline bool covers(const struct region *region, uint64_t address, uint64_t size) {
  return address >= region->begin && address <= region->end && size <= region->end - address;
}

/* The region that holds all of an access, or NULL; remembered, because the next is likely there. */
static const struct region *region_of(struct worker *worker, uint64_t address, uint64_t size) {
  const struct region *regions = worker->launch->regions;
  if (covers(regions + worker->last_region, address, size)) return regions + worker->last_region;
  for (uint64_t i = 0; i < worker->launch->num_regions; ++i)
    if (covers(regions + i, address, size)) {
      worker->last_region = i;
      return regions + i;
    }
  return NULL;
}

enum reach { FAULTED, SCATTERED, LINEAR };

/* Finds the first lane that may not do its access. */
static enum reach check_lanes(struct wave *w, const struct op *o, const uint64_t *address,
                              uint32_t size, uint32_t alignment, bool write) {
  FOR_EACH_SET(l, exec_of(w)) {
    const struct region *region = region_of(w->worker, address[l], size);
    enum fault_kind kind = NO_FAULT;
    if (!region) kind = GLOBAL_OUT_OF_BOUNDS;
    else if (write && !region->writable) kind = READ_ONLY;
    else if (address[l] & (alignment - 1)) kind = MISALIGNED;
    if (kind != NO_FAULT) {
      fail(w, o, kind, l, address[l], size);
      return FAULTED;
    }
  }
  if (w->worker->launch->block_counters) count_scattered_lines(w, address, size, write);
  return SCATTERED;
}

/* Computes and checks the addresses of all lanes. LINEAR: all lanes are active and lie one behind
   the other. */
static enum reach reach_global(struct wave *w, const struct op *o, uint64_t *address,
                               uint32_t size, uint32_t alignment, bool write) {
  struct worker *worker = w->worker;
  const uint32_t *low = at(w, o->src[0]);
  const uint64_t displacement = (uint64_t)(int64_t)o->immediate;
  if (o->src[1] != ABSENT) {
    const uint64_t base = pair(at(w, o->src[1])) + displacement;
    for (int l = 0; l < LANES; ++l) address[l] = base + low[l];
  } else {
    const uint32_t *high = low + LANES;
    for (int l = 0; l < LANES; ++l)
      address[l] = (low[l] | (uint64_t)high[l] << 32) + displacement;
  }
  const uint64_t exec = exec_of(w);
  if (!exec) return SCATTERED;
  if (exec == ALL_LANES && !(address[0] & (alignment - 1))) {
    uint64_t difference = 0;
    for (int l = 0; l < LANES; ++l)
      difference |= address[l] ^ (address[0] + (uint64_t)l * size);
    if (!difference) {
      const struct region *region = region_of(worker, address[0], (uint64_t)LANES * size);
      if (region && (region->writable || !write)) {
        if (worker->launch->block_counters) count_linear_lines(w, address[0], LANES * size, write);
        return LINEAR;
      }
    }
  }
  /* Mostly one region serves all lanes. */
  const struct region *region = region_of(worker, address[__builtin_ctzll(exec)], size);
  if (!region || (write && !region->writable))
    return check_lanes(w, o, address, size, alignment, write);
  const uint32_t *active = active_lanes(w);
  const uint64_t begin = region->begin, limit = region->end - region->begin - size;
  uint64_t outside = 0, misaligned = 0;
  for (int l = 0; l < LANES; ++l) {
    outside |= (address[l] - begin > limit) & active[l];
    misaligned |= address[l] & active[l];
  }
  if (outside || (misaligned & (alignment - 1)))
    return check_lanes(w, o, address, size, alignment, write);
  if (worker->launch->block_counters) count_scattered_lines(w, address, size, write);
  return SCATTERED;
}

/* Computes and checks LDS addresses, which wrap at 32 bits; false after a fault. */
static bool reach_lds(struct wave *w, const struct op *o, uint32_t offset, uint32_t *address,
                      uint32_t size, uint32_t alignment, enum access access) {
  const uint64_t lds_bytes = w->worker->launch->lds_bytes;
  const uint32_t *base = at(w, o->src[0]), *active = active_lanes(w);
  uint32_t highest = 0, bits = 0;
  for (int l = 0; l < LANES; ++l) {
    address[l] = base[l] + offset;
    const uint32_t seen = address[l] & active[l];
    highest = seen > highest ? seen : highest;
    bits |= seen;
  }
  if ((uint64_t)highest + size <= lds_bytes && !(bits & (alignment - 1))) {
    if (w->worker->launch->block_counters) count_bank_conflicts(w, address, size, access);
    return !w->worker->shadow || watch_lds(w, o, address, size, access);
  }
  FOR_EACH_SET(l, exec_of(w)) {
    if ((uint64_t)address[l] + size > lds_bytes)
      return fail(w, o, LDS_OUT_OF_BOUNDS, l, address[l], size);
    if (address[l] & (alignment - 1)) return fail(w, o, MISALIGNED, l, address[l], size);
  }
  return true;
}

/* Dword accesses may be aligned to a dword only, whatever their length. */
#define ALIGNMENT(T) (sizeof(T) < 4 ? (uint32_t)sizeof(T) : 4)

#define ALIGNED_ADDRESSES(T) T address[LANES] __attribute__((aligned(64)))

/* Moves n words a lane between registers and memory that is contiguous over the lanes. */
static inline void gather_linear(uint32_t *d, const void *memory, int n) {
  if (n == 1) {
    memcpy(d, memory, 4 * LANES);
    return;
  }
  const uint32_t *p = memory;
  for (int l = 0; l < LANES; ++l)
    for (int word = 0; word < n; ++word) d[word * LANES + l] = p[l * n + word];
}

static inline void scatter_linear(void *memory, const uint32_t *s, int n) {
  if (n == 1) {
    memcpy(memory, s, 4 * LANES);
    return;
  }
  uint32_t *p = memory;
  for (int l = 0; l < LANES; ++l)
    for (int word = 0; word < n; ++word) p[l * n + word] = s[word * LANES + l];
}

#define SCALAR_LOAD(name, words)                                                        \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    const uint64_t variable = o->src[2] != ABSENT ? *at(w, o->src[2]) : 0;              \
    const uint64_t address =                                                            \
        (pair(at(w, o->src[1])) + (uint64_t)(int64_t)o->immediate + variable) & ~UINT64_C(3); \
    if (!region_of(w->worker, address, 4 * (words)))                                    \
      return fail(w, o, GLOBAL_OUT_OF_BOUNDS, -1, address, 4 * (words));                \
    memcpy(at(w, o->dst[0]), (const void *)address, 4 * (words));                       \
    count(w, scalar_bytes_read, 4 * (words));                                           \
    return o + 1;                                                                       \
  }

#define GLOBAL_LOAD(name, T, value)                                                     \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    ALIGNED_ADDRESSES(uint64_t);                                                        \
    if (reach_global(w, o, address, sizeof(T), ALIGNMENT(T), false) == FAULTED) return NULL; \
    uint32_t *d = at(w, o->dst[0]);                                                     \
    FOR_EACH_SET(l, exec_of(w)) {                                                       \
      const T x = *(const T *)address[l];                                               \
      const uint32_t old = d[l];                                                        \
      (void)old;                                                                        \
      d[l] = (value);                                                                   \
    }                                                                                   \
    count(w, global_bytes_read, sizeof(T) * (uint64_t)__builtin_popcountll(exec_of(w))); \
    return o + 1;                                                                       \
  }

#define GLOBAL_LOAD_WORDS(name, n)                                                      \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    ALIGNED_ADDRESSES(uint64_t);                                                        \
    uint32_t *d = at(w, o->dst[0]);                                                     \
    switch (reach_global(w, o, address, 4 * (n), 4, false)) {                           \
      case FAULTED: return NULL;                                                        \
      case LINEAR: gather_linear(d, (const void *)address[0], n); break;                \
      case SCATTERED:                                                                   \
        FOR_EACH_SET(l, exec_of(w)) {                                                   \
          const uint32_t *p = (const uint32_t *)address[l];                             \
          for (int word = 0; word < (n); ++word) d[word * LANES + l] = p[word];         \
        }                                                                               \
    }                                                                                   \
    count(w, global_bytes_read, 4 * (n) * (uint64_t)__builtin_popcountll(exec_of(w)));  \
    return o + 1;                                                                       \
  }

#define GLOBAL_STORE(name, T, value)                                                    \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    ALIGNED_ADDRESSES(uint64_t);                                                        \
    if (reach_global(w, o, address, sizeof(T), ALIGNMENT(T), true) == FAULTED) return NULL; \
    const uint32_t *s = at(w, o->src[2]);                                               \
    FOR_EACH_IN_ORDER(l, exec_of(w)) {                                                  \
      const uint32_t x = s[l];                                                          \
      *(T *)address[l] = (T)(value);                                                    \
    }                                                                                   \
    count(w, global_bytes_written, sizeof(T) * (uint64_t)__builtin_popcountll(exec_of(w))); \
    return o + 1;                                                                       \
  }

#define GLOBAL_STORE_WORDS(name, n)                                                     \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    ALIGNED_ADDRESSES(uint64_t);                                                        \
    const uint32_t *s = at(w, o->src[2]);                                               \
    switch (reach_global(w, o, address, 4 * (n), 4, true)) {                            \
      case FAULTED: return NULL;                                                        \
      case LINEAR: scatter_linear((void *)address[0], s, n); break;                     \
      case SCATTERED:                                                                   \
        FOR_EACH_IN_ORDER(l, exec_of(w)) {                                              \
          uint32_t *p = (uint32_t *)address[l];                                         \
          for (int word = 0; word < (n); ++word) p[word] = s[word * LANES + l];         \
        }                                                                               \
    }                                                                                   \
    count(w, global_bytes_written, 4 * (n) * (uint64_t)__builtin_popcountll(exec_of(w))); \
    return o + 1;                                                                       \
  }

static inline uint32_t register_uint32_t(const uint32_t *s, int l) { return s[l]; }

static inline uint64_t register_uint64_t(const uint32_t *s, int l) {
  return s[l] | (uint64_t)s[l + LANES] << 32;
}

static inline void set_register_uint32_t(uint32_t *d, int l, uint32_t value) { d[l] = value; }

static inline void set_register_uint64_t(uint32_t *d, int l, uint64_t value) {
  d[l] = (uint32_t)value;
  d[l + LANES] = (uint32_t)(value >> 32);
}

/* Other blocks run on other host threads, so these are atomic on the host too. */
#define GLOBAL_ATOMIC_OF(name, T, value)                                                \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    ALIGNED_ADDRESSES(uint64_t);                                                        \
    if (reach_global(w, o, address, sizeof(T), sizeof(T), true) == FAULTED) return NULL; \
    const uint32_t *s = at(w, o->src[2]);                                               \
    T before[LANES];                                                                    \
    FOR_EACH_IN_ORDER(l, exec_of(w)) {                                                  \
      T *const p = (T *)address[l];                                                     \
      const T x = register_##T(s, l), y = register_##T(s + sizeof(T) / 4 * LANES, l);   \
      (void)x, (void)y;                                                                 \
      T old = __atomic_load_n(p, __ATOMIC_RELAXED);                                     \
      while (!__atomic_compare_exchange_n(p, &old, (T)(value), true, __ATOMIC_SEQ_CST,  \
                                          __ATOMIC_RELAXED)) {                          \
      }                                                                                 \
      before[l] = old;                                                                  \
    }                                                                                   \
    if (o->dst[0] != ABSENT)                                                            \
      FOR_EACH_SET(l, exec_of(w)) set_register_##T(at(w, o->dst[0]), l, before[l]);     \
    count(w, global_atomic_lanes, (uint64_t)__builtin_popcountll(exec_of(w)));          \
    return o + 1;                                                                       \
  }

#define GLOBAL_ATOMIC(name, wide_name, value)   \
  GLOBAL_ATOMIC_OF(name, uint32_t, value)       \
  GLOBAL_ATOMIC_OF(wide_name, uint64_t, value)

#define LDS_READ(name, T, value)                                                        \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    ALIGNED_ADDRESSES(uint32_t);                                                        \
    if (!reach_lds(w, o, (uint32_t)o->immediate, address, sizeof(T), ALIGNMENT(T),      \
                   READ)) return NULL;                                                  \
    uint32_t *d = at(w, o->dst[0]);                                                     \
    FOR_EACH_SET(l, exec_of(w)) {                                                       \
      const T x = *(const T *)(w->worker->lds + address[l]);                            \
      const uint32_t old = d[l];                                                        \
      (void)old;                                                                        \
      d[l] = (value);                                                                   \
    }                                                                                   \
    count(w, lds_lanes_read, (uint64_t)__builtin_popcountll(exec_of(w)));               \
    return o + 1;                                                                       \
  }

static inline void read_words(struct wave *w, const uint32_t *address, uint32_t *d, int n) {
  const uint8_t *lds = w->worker->lds;
  const uint64_t exec = exec_of(w);
  if (exec == ALL_LANES) {
    FOR_LANES {
      const uint32_t *p = (const uint32_t *)(lds + address[l]);
      for (int word = 0; word < n; ++word) d[word * LANES + l] = p[word];
    }
  } else {
    FOR_EACH_SET(l, exec) {
      const uint32_t *p = (const uint32_t *)(lds + address[l]);
      for (int word = 0; word < n; ++word) d[word * LANES + l] = p[word];
    }
  }
  count(w, lds_lanes_read, (uint64_t)__builtin_popcountll(exec));
}

static inline void write_words(struct wave *w, const uint32_t *address, const uint32_t *s, int n) {
  uint8_t *lds = w->worker->lds;
  const uint64_t exec = exec_of(w);
  if (exec == ALL_LANES && !w->worker->lane_flip) {
    for (int l = 0; l < LANES; ++l) {
      uint32_t *p = (uint32_t *)(lds + address[l]);
      for (int word = 0; word < n; ++word) p[word] = s[word * LANES + l];
    }
  } else {
    FOR_EACH_IN_ORDER(l, exec) {
      uint32_t *p = (uint32_t *)(lds + address[l]);
      for (int word = 0; word < n; ++word) p[word] = s[word * LANES + l];
    }
  }
  count(w, lds_lanes_written, (uint64_t)__builtin_popcountll(exec));
}

#define LDS_READ_WORDS(name, n)                                                         \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    ALIGNED_ADDRESSES(uint32_t);                                                        \
    if (!reach_lds(w, o, (uint32_t)o->immediate, address, 4 * (n), 4,                   \
                   READ)) return NULL;                                                  \
    read_words(w, address, at(w, o->dst[0]), n);                                        \
    return o + 1;                                                                       \
  }

/* The two address forms: both are checked before the destination, which may hold the address, is
   written. */
#define LDS_READ2(name, n, offsets)                                                     \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    uint32_t first[LANES], second[LANES];                                               \
    if (!reach_lds(w, o, o->extra[0], first, 4 * (n), 4, READ)) return NULL;            \
    if (!reach_lds(w, o, o->extra[1], second, 4 * (n), 4, READ)) return NULL;           \
    uint32_t *d = at(w, o->dst[0]);                                                     \
    read_words(w, first, d, n);                                                         \
    read_words(w, second, d + (n) * LANES, n);                                          \
    return o + 1;                                                                       \
  }

#define LDS_WRITE(name, T, value)                                                       \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    ALIGNED_ADDRESSES(uint32_t);                                                        \
    if (!reach_lds(w, o, (uint32_t)o->immediate, address, sizeof(T), ALIGNMENT(T),      \
                   WRITE)) return NULL;                                                 \
    const uint32_t *s = at(w, o->src[2]);                                               \
    FOR_EACH_IN_ORDER(l, exec_of(w)) {                                                  \
      const uint32_t x = s[l];                                                          \
      *(T *)(w->worker->lds + address[l]) = (T)(value);                                 \
    }                                                                                   \
    count(w, lds_lanes_written, (uint64_t)__builtin_popcountll(exec_of(w)));            \
    return o + 1;                                                                       \
  }

#define LDS_WRITE_WORDS(name, n)                                                        \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    ALIGNED_ADDRESSES(uint32_t);                                                        \
    if (!reach_lds(w, o, (uint32_t)o->immediate, address, 4 * (n), 4,                   \
                   WRITE)) return NULL;                                                 \
    write_words(w, address, at(w, o->src[2]), n);                                       \
    return o + 1;                                                                       \
  }

#define LDS_WRITE2(name, n, offsets)                                                    \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    uint32_t first[LANES], second[LANES];                                               \
    if (!reach_lds(w, o, o->extra[0], first, 4 * (n), 4, WRITE)) return NULL;           \
    if (!reach_lds(w, o, o->extra[1], second, 4 * (n), 4, WRITE)) return NULL;          \
    write_words(w, first, at(w, o->src[2]), n);                                         \
    write_words(w, second, at(w, o->src[3]), n);                                        \
    return o + 1;                                                                       \
  }

/* Counts the lanes that wait for an earlier lane of the instruction at the same address. */
#define LDS_ATOMIC_LANES(T, SECOND, value, REMEMBER)                                    \
  uint8_t *const lds = w->worker->lds;                                                  \
  uint32_t *const stamps = w->worker->lds_stamps;                                       \
  const uint32_t stamp = ++w->worker->stamp;                                            \
  const uint32_t *s = at(w, o->src[2]);                                                 \
  const uint64_t exec = exec_of(w);                                                     \
  uint64_t serialized = 0;                                                              \
  FOR_EACH_IN_ORDER(l, exec) {                                                          \
    T *const p = (T *)(lds + address[l]);                                               \
    const T x = register_##T(s, l), old = *p;                                           \
    SECOND                                                                              \
    serialized += stamps[address[l] >> 2] == stamp;                                     \
    stamps[address[l] >> 2] = stamp;                                                    \
    *p = (T)(value);                                                                    \
    REMEMBER                                                                            \
  }                                                                                     \
  count(w, lds_atomic_lanes, (uint64_t)__builtin_popcountll(exec));                     \
  count(w, lds_atomic_serialized_lanes, serialized);

#define LDS_ATOMIC(name, returning_name, T, value)                                      \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    ALIGNED_ADDRESSES(uint32_t);                                                        \
    if (!reach_lds(w, o, (uint32_t)o->immediate, address, sizeof(T), sizeof(T),         \
                   ATOMIC)) return NULL;                                                \
    LDS_ATOMIC_LANES(T, , value, )                                                      \
    return o + 1;                                                                       \
  }                                                                                     \
  LDS_EXCHANGE(returning_name, T, "", value)

#define LDS_EXCHANGE(name, T, signature, value)                                         \
  HANDLER(name) {                                                                       \
    PREEMPTIBLE                                                                         \
    ALIGNED_ADDRESSES(uint32_t);                                                        \
    if (!reach_lds(w, o, (uint32_t)o->immediate, address, sizeof(T), sizeof(T),         \
                   ATOMIC)) return NULL;                                                \
    const uint32_t *second = at(w, o->src[3] != ABSENT ? o->src[3] : o->src[2]);        \
    T before[LANES];                                                                    \
    LDS_ATOMIC_LANES(T, const T y = register_##T(second, l); (void)y;, value, before[l] = old;) \
    if (o->dst[0] != ABSENT) {                                                          \
      FOR_EACH_SET(l, exec) set_register_##T(at(w, o->dst[0]), l, before[l]);           \
      count(w, lds_atomic_returning_lanes, (uint64_t)__builtin_popcountll(exec));       \
    }                                                                                   \
    return o + 1;                                                                       \
  }

#include "memory.def"

/* These move lanes through the LDS crossbar and touch no memory. An inactive source lane gives 0. */
HANDLER(ds_bpermute_b32) {
  const uint32_t *address = at(w, o->src[0]), *s = at(w, o->src[2]);
  const uint64_t exec = exec_of(w);
  uint32_t moved[LANES];
  for (int l = 0; l < LANES; ++l) {
    const uint32_t from = (address[l] + (uint32_t)o->immediate) >> 2 & (LANES - 1);
    moved[l] = s[from] & -(uint32_t)(exec >> from & 1);
  }
  uint32_t *d = at(w, o->dst[0]);
  FOR_EACH_SET(l, exec) d[l] = moved[l];
  return o + 1;
}

/* Where several lanes write to one, the highest lane wins. */
HANDLER(ds_permute_b32) {
  const uint32_t *address = at(w, o->src[0]), *s = at(w, o->src[2]);
  const uint64_t exec = exec_of(w);
  uint32_t moved[LANES] = {0};
  FOR_EACH_SET(l, exec) {
    moved[(address[l] + (uint32_t)o->immediate) >> 2 & (LANES - 1)] = s[l];
  }
  uint32_t *d = at(w, o->dst[0]);
  FOR_EACH_SET(l, exec) d[l] = moved[l];
  return o + 1;
}

HANDLER(ds_swizzle_b32) {
  const struct lane_map *map = o->target;
  const uint32_t *s = at(w, o->src[0]);
  const uint64_t exec = exec_of(w);
  uint32_t moved[LANES];
  for (int l = 0; l < LANES; ++l)
    moved[l] = exec >> map->source[l] & 1 ? s[map->source[l]] : 0;
  uint32_t *d = at(w, o->dst[0]);
  FOR_EACH_SET(l, exec) d[l] = moved[l];
  return o + 1;
}

#undef SCALAR_LOAD
#undef GLOBAL_LOAD
#undef GLOBAL_LOAD_WORDS
#undef GLOBAL_STORE
#undef GLOBAL_STORE_WORDS
#undef GLOBAL_ATOMIC
#undef LDS_READ
#undef LDS_READ_WORDS
#undef LDS_READ2
#undef LDS_WRITE
#undef LDS_WRITE_WORDS
#undef LDS_WRITE2
#undef LDS_ATOMIC
#undef LDS_EXCHANGE
#define ROW(name, kind, signature) {#name, kind, signature, do_##name},
#define SCALAR_LOAD(name, words) ROW(name, "smem", "dst base variable")
#define GLOBAL_LOAD(name, T, value) ROW(name, "global", "dst address base")
#define GLOBAL_LOAD_WORDS(name, n) ROW(name, "global", "dst address base")
#define GLOBAL_STORE(name, T, value) ROW(name, "global", "address data base")
#define GLOBAL_STORE_WORDS(name, n) ROW(name, "global", "address data base")
#define GLOBAL_ATOMIC(name, wide_name, value) \
  ROW(name, "global", "old address data base") ROW(wide_name, "global", "old address data base")
#define LDS_READ(name, T, value) ROW(name, "lds", "dst address")
#define LDS_READ_WORDS(name, n) ROW(name, "lds", "dst address")
#define LDS_READ2(name, n, offsets) ROW(name, "lds", "dst address " offsets)
#define LDS_WRITE(name, T, value) ROW(name, "lds", "address data")
#define LDS_WRITE_WORDS(name, n) ROW(name, "lds", "address data")
#define LDS_WRITE2(name, n, offsets) ROW(name, "lds", "address data data " offsets)
#define LDS_ATOMIC(name, returning_name, T, value) \
  ROW(name, "lds", "address data") ROW(returning_name, "lds", "dst address data")
#define LDS_EXCHANGE(name, T, signature, value) ROW(name, "lds", signature)

const struct entry memory_entries[] = {
#include "memory.def"
  ROW(ds_bpermute_b32, "lds", "dst address data")
  ROW(ds_permute_b32, "lds", "dst address data")
  ROW(ds_swizzle_b32, "lds", "dst address swizzle")
  {NULL, NULL, NULL, NULL},
};
