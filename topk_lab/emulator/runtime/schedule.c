/* Blocks and waves: how they start, who runs next, when a block has gone wrong. */
#include "state.h"

#include <fenv.h>
#include <stddef.h>

_Static_assert(offsetof(struct wave, scalar) + 4 * SCALAR_REGISTERS == sizeof(struct wave),
               "constants follow the scalar registers");

enum { STEPS_PER_TURN = 1 << 20 };  /* a spinning wave cannot keep the others out */

static uint64_t next_random(struct worker *worker) {
  uint64_t x = worker->random;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  worker->random = x;
  return x * UINT64_C(0x2545f4914f6cdd1d) >> 32;
}

/* Registers and LDS start with values that no program can want. */
static void fill_with_garbage(uint32_t *words, uint64_t count, uint32_t salt) {
  for (uint64_t i = 0; i < count; ++i)
    words[i] = ((uint32_t)i + salt) * 0x9e3779b1u ^ 0x7fa50000u;
}

static struct wave *wave_at(const struct worker *worker, uint32_t index) {
  return (struct wave *)(worker->waves + index * worker->launch->wave_bytes);
}

static void start_wave(struct worker *worker, uint32_t index, const uint32_t *block_id) {
  const struct launch *launch = worker->launch;
  const uint32_t *size = launch->block;
  struct wave *w = wave_at(worker, index);
  uint32_t *vectors = at(w, (uint32_t)launch->vectors_at);
  const uint32_t salt = (uint32_t)next_random(worker);
  w->pc = launch->program;
  w->worker = worker;
  w->index = index;
  w->state = READY;
  fill_with_garbage(w->scalar, SCALAR_REGISTERS, salt);
  w->scalar[SCC] &= 1;
  memcpy(w->scalar + SCALAR_REGISTERS, launch->constants, 4 * launch->num_constants);
  fill_with_garbage(vectors, launch->num_vectors * LANES, salt + 1);

  uint32_t next = launch->num_user_scalars;
  memcpy(w->scalar, launch->user_scalars, 4 * next);
  for (int axis = 0; axis < 3; ++axis)
    if (launch->block_id_scalars >> axis & 1) w->scalar[next++] = block_id[axis];

  /* v0 holds the packed thread index: 10 bits an axis. */
  const uint32_t threads = size[0] * size[1] * size[2], first = index * LANES;
  for (uint32_t l = 0; l < LANES; ++l) {
    const uint32_t thread = first + l;
    vectors[l] = thread % size[0] | thread / size[0] % size[1] << 10 |
                 thread / (size[0] * size[1]) << 20;
  }
  const uint64_t exec =
      threads - first >= LANES ? ALL_LANES : (UINT64_C(1) << (threads - first)) - 1;
  set_pair(w->scalar + EXEC, exec);
  spell_out(exec, w->lanes);
  w->lanes_of = exec;
}

/* The wave to run: with a seed any that is ready, else the next one round. */
static struct wave *choose(struct worker *worker, uint32_t num_waves, uint32_t last) {
  uint32_t start = last;
  if (worker->launch->seed) start = (uint32_t)next_random(worker) % num_waves;
  for (uint32_t i = 0; i < num_waves; ++i) {
    struct wave *w = wave_at(worker, (start + i) % num_waves);
    if (w->state == READY) return w;
  }
  return NULL;
}

/* A read of what nothing wrote is reported at the barrier behind it: until then another wave may write
   the word, which is a race and says more. It explains every other fault that it leads to. */
static bool report_never_written(struct worker *worker) {
  if (worker->never_written.kind == NO_FAULT || worker->fault.kind == LDS_RACE) return false;
  worker->fault = worker->never_written;
  return true;
}

static void fail_block(struct worker *worker, const struct wave *w, enum fault_kind kind,
                       uint32_t pc, uint32_t waves_ended) {
  worker->fault = (struct fault){.block = worker->block, .kind = kind, .pc = pc,
                                 .wave = w->index, .lane = -1, .waves_ended = waves_ended};
}

/* All live waves wait at a barrier. It opens only if no wave has ended without it. */
static bool open_barrier(struct worker *worker, uint32_t num_waves, uint32_t live) {
  if (report_never_written(worker)) return false;
  ++worker->interval;
  for (uint32_t i = 0; i < num_waves; ++i) {
    struct wave *w = wave_at(worker, i);
    if (w->state != WAITING) continue;
    if (live < num_waves) {
      fail_block(worker, w, UNREACHED_BARRIER, w->stopped_at, num_waves - live);
      return false;
    }
    w->state = READY;
  }
  return true;
}

static bool run_block(struct worker *worker, uint64_t block) {
  struct launch *launch = worker->launch;
  const uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
  const uint32_t num_waves = (threads + LANES - 1) / LANES;
  const uint32_t block_id[3] = {
      (uint32_t)(block % launch->grid[0]), (uint32_t)(block / launch->grid[0] % launch->grid[1]),
      (uint32_t)(block / ((uint64_t)launch->grid[0] * launch->grid[1]))};
  worker->block = block;
  worker->steps = 0;
  worker->lane_flip = 0;
  worker->first_interval = ++worker->interval;
  worker->never_written.kind = NO_FAULT;
  worker->random = (launch->seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (block + 1);
  fill_with_garbage((uint32_t *)worker->lds, (launch->lds_bytes + 3) / 4,
                    (uint32_t)next_random(worker));
  for (uint32_t i = 0; i < num_waves; ++i) start_wave(worker, i, block_id);

  uint32_t live = num_waves, last = 0;
  while (live) {
    struct wave *w = choose(worker, num_waves, last);
    if (!w) {
      if (!open_barrier(worker, num_waves, live)) return false;
      continue;
    }
    w->slice = INT64_MAX;
    if (launch->seed) {
      const uint64_t random = next_random(worker);
      w->slice = 1 + (int64_t)(random % 24);
      worker->lane_flip = (uint32_t)(random >> 8) & (LANES - 1);
    }
    worker->pause_at = worker->steps + STEPS_PER_TURN;
    if (worker->pause_at > launch->step_limit) worker->pause_at = launch->step_limit;
    for (const struct op *o = w->pc; o;) o = o->run(w, o);
    if (worker->fault.kind != NO_FAULT) {
      report_never_written(worker);
      return false;
    }
    if (worker->steps >= launch->step_limit) {
      fail_block(worker, w, STEP_LIMIT, w->pc->pc, num_waves - live);
      report_never_written(worker);
      return false;
    }
    if (w->state == ENDED) --live;
    last = w->state == READY ? w->index + 1 : w->index;
  }
  return !report_never_written(worker);
}

/* Runs a block and keeps its counts apart. */
static bool run_counted_block(struct worker *worker, uint64_t block) {
  struct launch *launch = worker->launch;
  if (!launch->block_counters) return run_block(worker, block);
  uint64_t before[COUNTER_COUNT];
  memcpy(before, worker->counters, sizeof before);
  worker->visits = launch->block_visits + block * launch->num_basic_blocks;
  const bool done = run_block(worker, block);
  for (int i = 0; i < COUNTER_COUNT; ++i)
    launch->block_counters[block * COUNTER_COUNT + i] = worker->counters[i] - before[i];
  return done;
}

/* Runs blocks until none is left or some worker has faulted. */
void run_blocks(struct worker *worker) {
  struct launch *launch = worker->launch;
  fenv_t caller;
  fegetenv(&caller);
  fesetenv(FE_DFL_ENV);  /* a caller may have subnormals switched off */
  while (!__atomic_load_n(&launch->stop, __ATOMIC_RELAXED)) {
    const uint64_t turn = __atomic_fetch_add(&launch->next_block, 1, __ATOMIC_RELAXED);
    if (turn >= launch->num_blocks) break;
    if (!run_counted_block(worker, launch->block_order ? launch->block_order[turn] : turn))
      __atomic_store_n(&launch->stop, 1, __ATOMIC_RELAXED);
  }
  fesetenv(&caller);
}

/* What the caller must agree on with this library. */
const struct entry *const entry_tables[] = {vector_entries, scalar_entries, memory_entries, NULL};

const char *const counter_names[] = {
#define COUNTER_NAME(name) #name,
    COUNTERS(COUNTER_NAME)
#undef COUNTER_NAME
    NULL};

const uint64_t struct_sizes[] = {sizeof(struct op), sizeof(struct lane_map), sizeof(struct region),
                                 sizeof(struct launch), sizeof(struct worker),
                                 sizeof(struct shadow), sizeof(struct wave)};
