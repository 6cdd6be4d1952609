/* What an access that may be done is worth knowing about: lines, bank conflicts, races. */
#ifndef TOPK_LAB_EMULATOR_WATCH_H
#define TOPK_LAB_EMULATOR_WATCH_H

#include "state.h"

#define FOR_EACH_SET(l, bits)                                                 \
  for (uint64_t left_ = (bits); left_; left_ &= left_ - 1)                    \
    for (int l = __builtin_ctzll(left_), once_ = 1; once_; once_ = 0)

static inline void count(struct wave *w, enum counter counter, uint64_t amount) {
  w->worker->counters[counter] += amount;
}

static inline void count_lines(struct wave *w, uint64_t of_64, uint64_t of_128, bool write) {
  count(w, write ? global_lines_64_written : global_lines_64_read, of_64);
  count(w, write ? global_lines_128_written : global_lines_128_read, of_128);
}

/* Lines of one run of bytes. */
static void count_linear_lines(struct wave *w, uint64_t begin, uint64_t bytes, bool write) {
  const uint64_t last = begin + bytes - 1;
  count_lines(w, (last >> 6) - (begin >> 6) + 1, (last >> 7) - (begin >> 7) + 1, write);
}

/* A set of lines, empty when zeroed; a wave touches at most two a lane. */
struct line_set {
  uint64_t lines[4 * LANES];
  uint64_t size;
};

static inline void add_line(struct line_set *set, uint64_t line) {
  enum { SLOTS = 4 * LANES };
  uint64_t slot = (line * UINT64_C(0x9e3779b97f4a7c15)) >> 56;
  while (set->lines[slot] && set->lines[slot] != line + 1) slot = (slot + 1) % SLOTS;
  set->size += set->lines[slot] == 0;
  set->lines[slot] = line + 1;
}

/* Distinct lines over the active lanes. */
static void count_scattered_lines(struct wave *w, const uint64_t *address, uint32_t size,
                                  bool write) {
  struct line_set of_64 = {.size = 0}, of_128 = {.size = 0};
  FOR_EACH_SET(l, exec_of(w)) {
    for (uint64_t line = address[l] >> 6; line <= (address[l] + size - 1) >> 6; ++line) {
      add_line(&of_64, line);
      add_line(&of_128, line >> 1);
    }
  }
  count_lines(w, of_64.size, of_128.size, write);
}

/* Cycles that bank conflicts add. LDS serves an access in phases of so many lanes that their words
   fill the banks once; in a phase a bank gives one word a cycle, to all lanes that want this word.
   Which lanes form a phase, and how many banks take part, is what was measured on the devices: the
   package's emulator/README.md names the sources, and what is assumed. */
static void count_bank_conflicts(struct wave *w, const uint32_t *address, uint32_t size,
                                 enum access access) {
  static const uint8_t quads_of_8[] = {0, 5, 1, 4, 2, 7, 3, 6, 8, 13, 9, 12, 10, 15, 11, 14};
  static const uint8_t quads_of_16[] = {0, 3, 5, 6, 1, 2, 4, 7, 8, 11, 13, 14, 9, 10, 12, 15};
  static const uint8_t quads_in_order[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  struct worker *worker = w->worker;
  const uint64_t exec = exec_of(w);
  const uint32_t words = size < 4 ? 1 : size / 4;
  const uint32_t banks = access == READ && words != 3 ? (uint32_t)worker->launch->lds_read_banks : 32;
  const uint32_t lanes = words == 3 ? 8 : banks / words;
  const uint8_t *quads = quads_in_order;
  if (access == READ && words >= 3) quads = lanes == 16 ? quads_of_16 : quads_of_8;
  uint64_t added = 0;
  for (uint32_t first = 0; first < LANES; first += lanes) {
    const uint32_t stamp = ++worker->stamp;
    uint8_t wanted[64] = {0};
    uint32_t cycles = 0;
    for (uint32_t i = first; i < first + lanes; ++i) {
      const uint32_t lane = quads[i / 4] * 4u + i % 4;
      if (!(exec >> lane & 1)) continue;
      for (uint32_t word = address[lane] >> 2, last = word + words; word < last; ++word) {
        if (worker->lds_stamps[word] == stamp) continue;
        worker->lds_stamps[word] = stamp;
        const uint32_t n = ++wanted[word % banks];
        cycles = n > cycles ? n : cycles;
      }
    }
    if (cycles > 1) added += cycles - 1;
  }
  count(w, lds_bank_conflict_cycles, added);
}

static inline uint32_t name_of(const struct wave *w, const struct op *o) {
  return (o->pc + 4) << 2 | w->index;
}

/* Was it another wave than this one? */
static inline bool foreign(uint32_t name, const struct wave *w) {
  return name && (name & 15) != w->index;
}

static inline uint32_t first_foreign(const uint32_t names[2], const struct wave *w) {
  return foreign(names[0], w) ? names[0] : foreign(names[1], w) ? names[1] : 0;
}

static inline void remember(uint32_t names[2], uint32_t name, const struct wave *w) {
  if (!names[0] || !foreign(names[0], w)) names[0] = name;
  else if (!names[1]) names[1] = name;
}

/* Holds an access of LDS against all since the last barrier; false after a fault. */
static bool watch_lds(struct wave *w, const struct op *o, const uint32_t *address, uint32_t size,
                      enum access access) {
  struct worker *worker = w->worker;
  const uint32_t name = name_of(w, o);
  FOR_EACH_SET(l, exec_of(w)) {
    for (uint32_t word = address[l] >> 2; word <= (address[l] + size - 1) >> 2; ++word) {
      struct shadow *s = worker->shadow + word;
      if (s->interval != worker->interval)
        *s = (struct shadow){.written = s->written, .interval = worker->interval};
      uint32_t other = foreign(s->write, w) ? s->write : 0;
      if (!other && access != READ) other = first_foreign(s->read, w);
      if (!other && access != ATOMIC) other = first_foreign(s->atomic, w);
      if (other) {
        fail(w, o, LDS_RACE, l, 4 * (uint64_t)word, 4);
        worker->fault.other_pc = (other >> 4 << 2) - 4;
        worker->fault.other_wave = other & 15;
        return false;
      }
      if (access != WRITE && s->written < worker->first_interval &&
          worker->never_written.kind == NO_FAULT) {
        fail(w, o, LDS_NEVER_WRITTEN, l, address[l], size);
        worker->never_written = worker->fault;
        worker->fault.kind = NO_FAULT;
      }
      if (access == WRITE) s->write = name;
      else remember(access == READ ? s->read : s->atomic, name, w);
      if (access != READ) s->written = worker->interval;
    }
  }
  return true;
}

#endif
