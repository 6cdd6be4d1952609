"""Does one captured call stay exact for all later lengths and contents?

And what does a host get wrong that decides from lengths before the capture: stale lengths and a
path that was frozen give wrong answers, a split count that was frozen a slow one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from topk_lab import registry, replay, schedules, targets
from topk_lab.verify.core import Check, Finding

__all__ = ["replay_checks"]

# Rows of each class of the schedules: a device is fast enough for all, and for a full graph.
DEVICE_ROWS = (8, 24, 96, 144, 200, 300)
DEVICE_COLUMNS = schedules.K512_MAX_COLUMNS
DEVICE_REPLAYS = 200
EMULATED_ROWS = (8, 33)
EMULATED_COLUMNS = 66_000
EMULATED_REPLAYS = 8
# What the host sees when it captures, and decides by: a row that is short, and long ones.
HOST_ROWS = 8
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


def replay_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """One captured call a class of rows, and the host policies beside the gated variant."""
    on_device = target in targets.DEVICE_TARGETS
    if seed is not None or not (on_device or target in targets.AMD_TARGETS):
        return
    if not registry.resolve(variant).graph_safe:
        return
    num_cols = DEVICE_COLUMNS if on_device else EMULATED_COLUMNS
    count = DEVICE_REPLAYS if on_device else EMULATED_REPLAYS

    def check(label: str, num_rows: int, body: partial, due: str = "ok") -> Check:
        return Check(
            experiment="graph_replays",
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

    for num_rows in DEVICE_ROWS if on_device else EMULATED_ROWS:
        body = partial(_lengths_body, variant, target, num_rows, num_cols, count)
        yield check(f"lengths-{num_rows}", num_rows, body)
    if variant != "vllm_k512":
        return
    for host in replay.HOST_POLICIES:
        body = partial(_host_body, host, variant, target, HOST_ROWS, num_cols, count)
        yield check(host, HOST_ROWS, body, due="ok" if host == "host-splits" else "wrong")
