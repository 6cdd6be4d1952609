"""Do slots of a paged cache stand where the page table says, whichever kernel writes them?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from topk_lab import registry, schedules, targets, workloads
from topk_lab.contract import UNWRITTEN
from topk_lab.contract.words import INT32_MAX
from topk_lab.verify.core import Check, Finding, splits_observed, violations

__all__ = ["due_slots", "page_table_checks", "shuffled_tables"]

NUM_COLS = 20_000
SEQ_LENS = (20_000, 700, 514, 300)  # the last shorter than any k here
NEXT_N = 2
ODD_K = 600
NUM_ROWS = len(SEQ_LENS) * NEXT_N
FORMS = (
    # id, page size, a table row a sequence, slots alone, order
    ("pages-of-64", 64, False, False, "any"),
    ("shared-by-a-sequence", 64, True, False, "any"),
    ("slots-alone", 64, True, True, "any"),
    ("pages-of-1", 1, False, False, "any"),
    ("one-page", 32_768, False, False, "any"),
    ("rising", 64, True, False, "index"),
    ("rising-slots-alone", 16, False, True, "index"),
    ("absent-and-far-pages", 64, False, False, "any"),
)


def _k_of(variant: str) -> int:
    """No power of two, unless the variant takes but one k."""
    name = registry.resolve(variant).name
    refused = name in schedules.POLICIES and schedules.gate_refusal(name, NUM_ROWS, NUM_COLS, ODD_K)
    return 512 if refused else ODD_K


def shuffled_tables(num_tables: int, pages: int, seed: int = 0) -> np.ndarray:
    """Page tables (num_tables, pages) int32: every page of a pool once, in random order."""
    rng = np.random.default_rng([seed, num_tables, pages])
    return rng.permutation(num_tables * pages).reshape(num_tables, pages).astype(np.int32)


def due_slots(indices: np.ndarray, page_table: np.ndarray, page_size: int) -> np.ndarray:
    """The contract's slots of indices (num_rows, k), by division and in int64."""
    next_n = len(indices) // len(page_table)
    tables = np.repeat(page_table, next_n, axis=0).astype(np.int64)
    columns = np.maximum(indices, 0)
    pages = np.take_along_axis(tables, columns // page_size, axis=1)
    slots = pages * page_size + columns % page_size
    absent = (indices < 0) | (pages < 0) | (slots > INT32_MAX)
    return np.where(absent, -1, slots).astype(np.int32)


def _body(
    page_size: int,
    shared: bool,
    slots_only: bool,
    order: str,
    holes: bool,
    variant: str,
    target: str,
    seed: int | None,
) -> Finding:
    seq_lens = np.array(SEQ_LENS, np.int32)
    lengths = {"seq_lens": seq_lens, "next_n": NEXT_N}
    row_ends = (seq_lens[:, None] - np.arange(NEXT_N)[::-1]).reshape(-1)
    logits = workloads.make("normal", NUM_ROWS, NUM_COLS, row_ends=row_ends, poison="inf")
    pages = -(-NUM_COLS // page_size)
    table = shuffled_tables(NUM_ROWS // NEXT_N if shared else NUM_ROWS, pages)
    if holes:
        last = INT32_MAX // page_size  # its last slot is the greatest that int32 can name
        table[:, ::3] = -1
        table[:, 1::3] = last + 1
        table[:, 2::6] = last
    run = partial(
        targets.run, target, variant, logits, _k_of(variant), order=order, page_table=table,
        page_size=page_size, seed=seed, **lengths,
    )  # fmt: skip
    outcome = run(values=True)
    counters = {"splits": splits_observed(outcome)}
    reason = violations(logits, outcome, lengths, order=order)
    due = due_slots(outcome.indices, table, page_size)
    slots = outcome.slots
    if reason is None and slots_only:
        alone = run(slots_only=True)
        if not (alone.indices == UNWRITTEN).all():
            reason = "indices were written where slots alone were asked for"
        # Arrival orders slots; without one, a row's slots are told apart by what they are.
        slots, due = np.sort(alone.slots, axis=1), np.sort(due, axis=1)
        if order == "index":
            slots, due = alone.slots, due_slots(outcome.indices, table, page_size)
    if reason is None and not np.array_equal(slots, due):
        row, slot = np.argwhere(slots != due)[0].tolist()
        reason = f"row {row} has slot {slots[row, slot]} in place {slot}, due was {due[row, slot]}"
    return Finding("wrong" if reason else "ok", reason, counters, outcome.code)


def page_table_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """Every form of page table, page size and order that the variant offers."""
    info = registry.resolve(variant)
    for label, page_size, shared, slots_only, order in FORMS:
        if order not in info.orders:
            continue
        holes = label == "absent-and-far-pages"
        yield Check(
            experiment="page_tables",
            id=label,
            target=target,
            variant=variant,
            num_rows=NUM_ROWS,
            num_cols=NUM_COLS,
            k=_k_of(variant),
            next_n=NEXT_N,
            workload="normal",
            workload_args={"case": label, "page_size": page_size, "poison": "inf"},
            body=partial(_body, page_size, shared, slots_only, order, holes, variant, target, seed),
        )
