/* What a wave, an operation and a launch are: the state that every part of the runtime works on. */
#ifndef TOPK_LAB_EMULATOR_STATE_H
#define TOPK_LAB_EMULATOR_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 64 };

#define ALL_LANES (~UINT64_C(0))

/* Scalar registers by hardware number. SCC has no number of its own; 125 is unused on gfx9. */
enum { VCC = 106, M0 = 124, SCC = 125, EXEC = 126, SCALAR_REGISTERS = 128 };

struct wave;
struct op;

/* Runs one operation and returns the next one; NULL hands control back to the scheduler. */
typedef const struct op *(*handler)(struct wave *w, const struct op *o);

/* One operation. An operand is a byte offset from the wave; a vector operand whose lowest bit is
   set names a scalar (register or constant) that is the same in every lane. */
struct op {
  handler run;
  const void *target;  /* branches: the op to go on with; lane moves: their struct lane_map */
  uint32_t pc;         /* byte offset of the instruction from the start of the kernel */
  int32_t immediate;
  uint32_t dst[2];
  uint32_t src[4];
  uint32_t extra[2];   /* further immediates */
  uint64_t reserved;   /* one op is one cache line */
};

enum { ABSENT = 0 };   /* an operand that the instruction does not have */

/* Where each lane of a cross-lane move reads; -1 is outside the row, the bank or the wave. */
struct lane_map {
  int8_t source[LANES];
  uint64_t writable;   /* lanes that row_mask and bank_mask leave on */
  uint64_t zero_fill;  /* nonzero: a lane without a source reads 0 instead of being switched off */
};

enum wave_state { READY, WAITING, ENDED };

struct wave {
  const struct op *pc;
  struct worker *worker;
  uint64_t lanes_of;    /* the value of EXEC that `lanes` spells out */
  uint64_t saved_exec;  /* EXEC outside of a cross-lane operation */
  int64_t slice;        /* memory operations until the wave is preempted */
  uint32_t index;
  uint32_t state;
  uint32_t stopped_at;  /* pc of the barrier that the wave waits at */
  uint32_t lanes[LANES] __attribute__((aligned(64)));
  uint32_t scalar[SCALAR_REGISTERS];
  /* then the constants, then the vector registers */
};

struct region {
  uint64_t begin, end;
  uint64_t writable;
};

enum fault_kind {
  NO_FAULT,
  GLOBAL_OUT_OF_BOUNDS,
  READ_ONLY,
  LDS_OUT_OF_BOUNDS,
  MISALIGNED,
  UNREACHED_BARRIER,
  STEP_LIMIT,
  TRAP,
  LDS_NEVER_WRITTEN,
  LDS_RACE
};

struct fault {
  uint64_t address;
  uint64_t block;
  uint32_t kind;
  uint32_t pc;
  uint32_t size;
  uint32_t wave;
  int32_t lane;  /* -1: the whole wave */
  uint32_t waves_ended;
  uint32_t other_pc, other_wave;  /* of a race: the earlier access */
};

/* Events that the count of executed instructions does not give; from global_lines_64_read on, only a
   full count has them. */
#define COUNTERS(X)                                                            \
  X(valu_lanes)                                                                \
  X(global_bytes_read) X(global_bytes_written) X(global_atomic_lanes)          \
  X(scalar_bytes_read) X(lds_lanes_read) X(lds_lanes_written)                  \
  X(lds_atomic_lanes) X(lds_atomic_returning_lanes)                            \
  X(lds_atomic_serialized_lanes)                                               \
  X(global_lines_64_read) X(global_lines_128_read)                             \
  X(global_lines_64_written) X(global_lines_128_written)                       \
  X(lds_bank_conflict_cycles)

enum counter {
#define COUNTER_INDEX(name) name,
  COUNTERS(COUNTER_INDEX)
#undef COUNTER_INDEX
  COUNTER_COUNT
};

/* What all host threads of a launch share. */
struct launch {
  const struct op *program;
  const uint32_t *constants;
  const struct region *regions;
  const uint64_t *block_order;  /* NULL: ascending */
  uint64_t num_constants;
  uint64_t num_vectors;
  uint64_t vectors_at;          /* byte offset of vector register 0 from the wave */
  uint64_t wave_bytes;
  uint64_t num_regions;
  uint64_t num_blocks;
  uint64_t lds_bytes;
  uint64_t step_limit;          /* wave instructions a block may execute */
  uint64_t seed;                /* 0: fixed wave order without preemption */
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t user_scalars[16];
  uint32_t num_user_scalars;
  uint32_t block_id_scalars;    /* bits 0..2: x, y, z follow the user scalars */
  uint64_t lds_read_banks;      /* 32 or 64 */
  uint64_t *block_counters;     /* (num_blocks, COUNTER_COUNT); NULL unless the count is full */
  uint64_t *block_visits;       /* (num_blocks, num_basic_blocks); NULL unless the count is full */
  uint64_t num_basic_blocks;
  uint64_t next_block;          /* shared cursor into the block order */
  uint64_t stop;                /* a worker has faulted */
};

/* Who touched a word of LDS since the last barrier. An access is named by its pc, moved by one
   instruction so that 0 is nobody, with the wave in the four bits that this leaves free. Two readers
   and two atomic accesses are enough: of two different waves one is not the next one's own. */
struct shadow {
  uint32_t written;      /* interval of the last write; older than the block: nothing wrote it */
  uint32_t interval;     /* that the accesses below belong to */
  uint32_t write, read[2], atomic[2];
  uint32_t reserved;
};

enum access { READ, WRITE, ATOMIC };

/* What one host thread owns. */
struct worker {
  struct launch *launch;
  uint8_t *lds;
  uint8_t *waves;
  uint32_t *lds_stamps;         /* per LDS word: the last instruction, or phase, that touched it */
  struct shadow *shadow;        /* per LDS word; NULL: LDS is not watched */
  uint64_t *visits;             /* executions of each basic block */
  uint64_t counters[COUNTER_COUNT];
  struct fault fault;
  struct fault never_written;   /* the first such read since the last barrier; reported there */
  uint64_t block;
  uint64_t steps, pause_at;
  uint64_t random;
  uint64_t last_region;
  uint32_t stamp;
  uint32_t lane_flip;           /* lane order of conflicting accesses: lane i ^ lane_flip */
  uint32_t interval;            /* between two barriers */
  uint32_t first_interval;      /* of the block */
};

/* A row of a handler table: the mnemonic without encoding suffix, what it counts as, its operands in
   the order of the assembly text (types, destinations before "=", or roles of a memory access;
   translation.py reads them) and the function. */
struct entry {
  const char *name;
  const char *kind;
  const char *signature;
  handler run;
};

extern const struct entry vector_entries[], scalar_entries[], memory_entries[];

static inline uint32_t *at(struct wave *w, uint32_t offset) {
  return (uint32_t *)((char *)w + offset);
}

static inline uint64_t pair(const uint32_t *p) { return p[0] | (uint64_t)p[1] << 32; }

static inline void set_pair(uint32_t *p, uint64_t value) {
  p[0] = (uint32_t)value;
  p[1] = (uint32_t)(value >> 32);
}

static inline uint64_t exec_of(const struct wave *w) { return pair(w->scalar + EXEC); }

static inline uint32_t as_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint64_t as_bits64(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline double as_double(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t reverse_bits(uint32_t a) {
  a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
  a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
  a = (a >> 4 & 0x0f0f0f0f) | (a & 0x0f0f0f0f) << 4;
  return __builtin_bswap32(a);
}

static inline const struct op *fail(struct wave *w, const struct op *o, enum fault_kind kind,
                                    int32_t lane, uint64_t address, uint32_t size) {
  struct worker *worker = w->worker;
  worker->fault = (struct fault){.address = address, .block = worker->block, .kind = kind,
                                 .pc = o->pc, .size = size, .wave = w->index, .lane = lane};
  return NULL;
}

/* Hands control back; the wave is ready to go on at `next`. */
static inline const struct op *yield_at(struct wave *w, const struct op *next) {
  w->pc = next;
  w->state = READY;
  return NULL;
}

#if defined(__clang__)
#define INDEPENDENT_LANES _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT_LANES _Pragma("GCC ivdep")
#endif

/* A lane reads and writes only its own slot of each register, so lanes are independent even where
   a destination overlaps a source. */
#define FOR_LANES INDEPENDENT_LANES for (int l = 0; l < LANES; ++l)

/* One word a lane: all ones where the mask has the lane's bit. */
static inline void spell_out(uint64_t mask, uint32_t *words) {
  const uint32_t low = (uint32_t)mask, high = (uint32_t)(mask >> 32);
  for (int l = 0; l < 32; ++l) words[l] = -(low >> l & 1u);
  for (int l = 0; l < 32; ++l) words[32 + l] = -(high >> l & 1u);
}

static inline const uint32_t *active_lanes(struct wave *w) {
  const uint64_t exec = exec_of(w);
  if (exec != w->lanes_of) {
    spell_out(exec, w->lanes);
    w->lanes_of = exec;
  }
  return w->lanes;
}

#endif
