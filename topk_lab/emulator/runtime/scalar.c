/* Scalar instructions, branches and what ends or holds up a wave. */
#include "state.h"

static inline uint32_t sign_run(uint32_t a) {
  const uint32_t differing = (int32_t)a < 0 ? ~a : a;
  return differing ? (uint32_t)__builtin_clz(differing) : ~0u;
}

static inline uint32_t sign_run64(uint64_t a) {
  const uint64_t differing = (int64_t)a < 0 ? ~a : a;
  return differing ? (uint32_t)__builtin_clzll(differing) : ~0u;
}

static inline uint64_t field_u64(uint64_t a, uint32_t offset, uint32_t width) {
  const uint64_t shifted = a >> offset;
  return width >= 64 ? shifted : shifted & ((UINT64_C(1) << width) - 1);
}

static inline uint64_t field_i64(int64_t a, uint32_t offset, uint32_t width) {
  const int64_t shifted = a >> offset;
  if (width == 0) return 0;
  if (width >= 64) return (uint64_t)shifted;
  return (uint64_t)((int64_t)((uint64_t)shifted << (64 - width)) >> (64 - width));
}

#define VALUE_S32 uint32_t
#define VALUE_K16 uint32_t
#define VALUE_KU16 uint32_t
#define VALUE_S64 uint64_t
#define VALUE_SI64 uint64_t
#define READ_S32(p) *(p)
#define READ_K16(p) *(p)
#define READ_KU16(p) *(p)
#define READ_S64(p) pair(p)
#define READ_SI64(p) pair(p)
#define WRITE_S32(p, r) *(p) = (r)
#define WRITE_S64(p, r) set_pair(p, r)

#define SOURCE(T, name, i) const VALUE_##T name = READ_##T(at(w, o->src[i]));

#define HANDLER(name) static const struct op *do_##name(struct wave *w, const struct op *o)

#define SOP_BODY(D, value, scc_after)                       \
  const uint32_t scc = w->scalar[SCC];                      \
  uint32_t *d = at(w, o->dst[0]);                           \
  const VALUE_##D old = READ_##D(d);                        \
  const VALUE_##D r = (VALUE_##D)(value);                   \
  (void)old;                                                \
  (void)scc;                                                \
  WRITE_##D(d, r);                                          \
  w->scalar[SCC] = (uint32_t)(scc_after);                   \
  return o + 1;

#define SOP1(name, D, A, value, scc_after) \
  HANDLER(name) { SOURCE(A, a, 0) SOP_BODY(D, value, scc_after) }

#define SOP2(name, D, A, B, value, scc_after) \
  HANDLER(name) { SOURCE(A, a, 0) SOURCE(B, b, 1) SOP_BODY(D, value, scc_after) }

#define SOPC(name, A, B, condition)            \
  HANDLER(name) {                              \
    SOURCE(A, a, 0) SOURCE(B, b, 1)            \
    w->scalar[SCC] = (condition) ? 1 : 0;      \
    return o + 1;                              \
  }

#define SAVEEXEC(name, value)                  \
  HANDLER(name) {                              \
    SOURCE(S64, a, 0)                          \
    const uint64_t e = exec_of(w), r = value;  \
    set_pair(at(w, o->dst[0]), e);             \
    set_pair(w->scalar + EXEC, r);             \
    w->scalar[SCC] = r != 0;                   \
    return o + 1;                              \
  }

#define WREXEC(name, value)                    \
  HANDLER(name) {                              \
    SOURCE(S64, a, 0)                          \
    const uint64_t e = exec_of(w), r = value;  \
    set_pair(at(w, o->dst[0]), r);             \
    set_pair(w->scalar + EXEC, r);             \
    w->scalar[SCC] = r != 0;                   \
    return o + 1;                              \
  }

#define BRANCH(name, condition) \
  HANDLER(name) { (void)w; return (condition) ? o->target : o + 1; }

#include "scalar.def"

/* The code is where the host can read the constants that lie beside it. */
HANDLER(s_getpc_b64) {
  set_pair(at(w, o->dst[0]), o->extra[0] | (uint64_t)o->extra[1] << 32);
  return o + 1;
}

HANDLER(s_barrier) {
  w->stopped_at = o->pc;
  w->pc = o + 1;
  w->state = WAITING;
  return NULL;
}

HANDLER(s_endpgm) {
  (void)o;
  w->state = ENDED;
  return NULL;
}

HANDLER(s_trap) { return fail(w, o, TRAP, -1, 0, 0); }

/* Stands before the first instruction of every basic block, and counts for all of it. */
HANDLER(step_enter) {
  struct worker *worker = w->worker;
  ++worker->visits[o->immediate];
  worker->steps += o->extra[0];
  worker->counters[valu_lanes] += o->extra[1] * (uint64_t)__builtin_popcountll(exec_of(w));
  return worker->steps < worker->pause_at ? o + 1 : yield_at(w, o + 1);
}

/* Stands where EXEC has changed within a basic block, before the vector instructions it counts for. */
HANDLER(step_lanes) {
  w->worker->counters[valu_lanes] += o->extra[1] * (uint64_t)__builtin_popcountll(exec_of(w));
  return o + 1;
}

#undef SOP1
#undef SOP2
#undef SOPC
#undef SAVEEXEC
#undef WREXEC
#undef BRANCH
#define ROW(name, kind, signature) {#name, kind, signature, do_##name},
#define SOP1(name, D, A, value, scc_after) ROW(name, "salu", #D " = " #A)
#define SOP2(name, D, A, B, value, scc_after) ROW(name, "salu", #D " = " #A " " #B)
#define SOPC(name, A, B, condition) ROW(name, "salu", "= " #A " " #B)
#define SAVEEXEC(name, value) ROW(name, "salu", "S64 = S64")
#define WREXEC(name, value) ROW(name, "salu", "S64 = S64")
#define BRANCH(name, condition) ROW(name, "branch", "TARGET")

const struct entry scalar_entries[] = {
#include "scalar.def"
  ROW(s_getpc_b64, "salu", "S64 =")
  ROW(s_barrier, "barrier", "")
  ROW(s_endpgm, "branch", "")
  ROW(s_trap, "branch", "IGNORED")
  ROW(step_enter, "step", "")
  ROW(step_lanes, "step", "")
  {NULL, NULL, NULL, NULL},
};
