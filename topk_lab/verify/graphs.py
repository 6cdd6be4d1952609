"""Does one captured call stay exact for all later lengths and contents?

And what does a host get wrong that decides from lengths before the capture: stale lengths and a
path that was frozen give wrong answers, a split count that was frozen a slow one. On a device also:
are lengths read that were written just before, with nothing waiting in between?
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from topk_lab import registry, replay, schedules, targets
from topk_lab.verify.core import Check, Finding

__all__ = [
    "DEVICE_SIZES",
    "EMULATED_SIZES",
    "FRESH_SIZES",
    "STALE",
    "Sizes",
    "fresh_checks",
    "length_checks",
    "replay_checks",
]


class Sizes(NamedTuple):
    """Calls that are captured, and how often each is replayed."""

    rows: tuple[int, ...]
    num_cols: int
    replays: int


# Rows of each class of the schedules: a device is fast enough for all, and for a full graph.
DEVICE_SIZES = Sizes((8, 24, 96, 144, 200, 300), schedules.K512_MAX_COLUMNS, 200)
EMULATED_SIZES = Sizes((8, 33), 66_000, 8)
FRESH_SIZES = Sizes((24,), 262_144, 200)
# What the host sees when it captures, and decides by: a row that is short, and long ones.
HOST_ROWS = 8
STALE = "stale lengths"  # how a reason begins that names them
SEEN = {"host-lengths": 5000, "host-path": replay.K, "host-splits": 5000}


def _lengths_body(variant: str, target: str, num_rows: int, num_cols: int, count: int) -> Finding:
    captured = replay.capture(target, variant, num_rows, num_cols)
    limit = captured.plan.max_splits
    lengths: set[int] = set()
    splits: set[int] = set()
    for given in replay.replays(num_rows, num_cols, count):
        captured.replay(given)
        lengths |= set(given.row_ends.tolist())
        observed = np.maximum(captured.splits(), 1)
        splits |= set(observed.tolist())
        live = np.clip(given.row_ends, 0, num_cols).tolist()
        due = [schedules.active_splits(variant, num_rows, length, limit) for length in live]
        reason = captured.wrong()
        if reason is None and observed.tolist() != due:
            row = int(np.flatnonzero(observed != due)[0])
            reason = f"row {row} was cut into {observed[row]} splits, {due[row]} were due"
        if reason is not None:
            reason = f"replay {given.number}, {given.pattern}: {reason}"
            return Finding("wrong", reason, {"replays": given.number + 1}, captured.code)
    counters = {"replays": count, "lengths": len(lengths), "splits": sorted(splits)}
    return Finding("ok", None, counters, captured.code, say=f"{count} replays of one graph")


def _host_body(
    host: str, variant: str, target: str, num_rows: int, num_cols: int, count: int
) -> Finding:
    seen = np.full(num_rows, SEEN[host], np.int32)
    captured = replay.capture(target, variant, num_rows, num_cols, host=host, row_ends=seen)
    first, wrong = None, 0
    splits: set[int] = set()
    for given in replay.replays(num_rows, num_cols, count):
        captured.replay(given)
        splits |= set(np.maximum(captured.splits(), 1).tolist())
        reason = captured.wrong()
        if reason is not None:
            wrong += 1
            first = first or f"replay {given.number}, {given.pattern}: {reason}"
    counters = {"replays": count, "wrong_replays": wrong, "splits": sorted(splits)}
    return Finding("wrong" if wrong else "ok", first, counters, captured.code)


def _fresh_body(variant: str, target: str, num_rows: int, num_cols: int, count: int) -> Finding:
    captured = replay.capture(target, variant, num_rows, num_cols, direct=True)
    given = np.stack([one.row_ends for one in replay.replays(num_rows, num_cols, count)])
    answers = captured.back_to_back(given)
    counters = {"replays": count}
    for number, answer in enumerate(answers):
        reason = captured.wrong_with(answer, given[number])
        if reason is None:
            continue
        # An answer that is right for lengths of before tells what was read.
        stale = next(
            (
                before
                for before in range(number - 1, -1, -1)
                if captured.wrong_with(answer, given[before]) is None
            ),
            None,
        )
        if stale is not None:
            reason = f"{STALE}: the answer is that of the lengths of replay {stale}; {reason}"
        reason = f"replay {number}: {reason}"
        return Finding("wrong", reason, counters | {"exact": number}, captured.code)
    return Finding("ok", None, counters, captured.code, say=f"{count} replays, nothing waited")


def _check(
    experiment: str,
    label: str,
    variant: str,
    target: str,
    num_rows: int,
    num_cols: int,
    body: partial,
    due: str = "ok",
) -> Check:
    return Check(
        experiment=experiment,
        id=label,
        target=target,
        variant=variant,
        num_rows=num_rows,
        num_cols=num_cols,
        k=replay.K,
        next_n=0,
        workload=None,
        workload_args={"case": label},
        body=body,
        due=due,
    )


def length_checks(variant: str, target: str, sizes: Sizes) -> Iterator[Check]:
    """One captured call for each number of rows, replayed on changing lengths and contents."""
    for num_rows in sizes.rows:
        size = (num_rows, sizes.num_cols)
        body = partial(_lengths_body, variant, target, *size, sizes.replays)
        yield _check("graph_replays", f"lengths-{num_rows}", variant, target, *size, body)


def fresh_checks(
    variant: str, target: str, seed: int | None, sizes: Sizes = FRESH_SIZES
) -> Iterator[Check]:
    """A captured call whose lengths are written just before each replay: a device's question."""
    if target not in targets.DEVICE_TARGETS or not registry.resolve(variant).graph_safe:
        return
    for num_rows in sizes.rows:
        size = (num_rows, sizes.num_cols)
        body = partial(_fresh_body, variant, target, *size, sizes.replays)
        yield _check("fresh_lengths", f"rows-{num_rows}", variant, target, *size, body)


def replay_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """One captured call a class of rows, and the host policies beside the gated variant."""
    on_device = target in targets.DEVICE_TARGETS
    if seed is not None or not (on_device or target in targets.AMD_TARGETS):
        return
    if not registry.resolve(variant).graph_safe:
        return
    sizes = DEVICE_SIZES if on_device else EMULATED_SIZES
    yield from length_checks(variant, target, sizes)
    if variant != "vllm_k512":
        return
    for host in replay.HOST_POLICIES:
        size = (HOST_ROWS, sizes.num_cols)
        body = partial(_host_body, host, variant, target, *size, sizes.replays)
        due = "ok" if host == "host-splits" else "wrong"
        yield _check("graph_replays", host, variant, target, *size, body, due)
