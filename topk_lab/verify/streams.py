"""Does a selection on a side stream see what that stream wrote just before?

The logits of each turn are written by work that is still queued, behind other work that takes its
time, when the selection is queued. Only the order of the stream makes its answer right.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from topk_lab import plans, targets
from topk_lab.contract import UNWRITTEN
from topk_lab.verify.core import Check, Finding

__all__ = ["stream_checks"]

K = 512
NUM_ROWS = 24
NUM_COLS = 60_000
TURNS = 20
BUSY_BYTES = 2**28  # written before the logits are, so that these come late


def _body(variant: str, target: str, num_rows: int, num_cols: int, busy_bytes: int) -> Finding:
    import torch

    from topk_lab import driver

    memory = driver.open_memory(target)
    plan = plans.plan(variant, plans.Shape(num_rows, num_cols, K, num_cols, K))
    place = memory.place
    tensors = {
        "logits": torch.zeros((num_rows, num_cols), device=place),
        "row_ends": torch.full((num_rows,), num_cols, dtype=torch.int32, device=place),
        "indices": torch.empty((num_rows, K), dtype=torch.int32, device=place),
        "workspace": torch.empty((plan.workspace_bytes // 4,), dtype=torch.int32, device=place),
    }
    busy = torch.empty(busy_bytes, dtype=torch.uint8, device=place)
    memory.launch(plan, tensors)
    memory.synchronize()
    code = targets.code_of(plan, memory.opened)
    for turn in range(TURNS):
        with memory.side_stream():
            busy.fill_(turn)
            tensors["logits"].fill_(-1.0)
            tensors["logits"][:, turn : turn + K] = 1.0
            tensors["indices"].fill_(UNWRITTEN)
            memory.launch(plan, tensors)
        found = np.sort(tensors["indices"].cpu().numpy(), axis=1)
        wrong = np.flatnonzero((found != np.arange(turn, turn + K)).any(axis=1))
        if wrong.size:
            before = np.arange(turn - 1, turn - 1 + K)
            late = turn > 0 and (found[wrong] == before).all()
            told = "the answer is that of the logits before" if late else "other columns were taken"
            reason = f"turn {turn}: {wrong.size} rows, first {wrong[0]}: {told}"
            return Finding("wrong", reason, {"turns": turn + 1}, code)
    return Finding("ok", None, {"turns": TURNS}, code, say=f"{TURNS} turns on side streams")


def stream_checks(
    variant: str, target: str, seed: int | None, busy_bytes: int = BUSY_BYTES
) -> Iterator[Check]:
    """A selection behind queued writes of its logits, turn after turn: a device's question."""
    if target not in targets.DEVICE_TARGETS:
        return
    yield Check(
        experiment="side_streams",
        id=f"queued-writes-{NUM_COLS}",
        target=target,
        variant=variant,
        num_rows=NUM_ROWS,
        num_cols=NUM_COLS,
        k=K,
        next_n=0,
        workload=None,
        workload_args={"case": f"queued-writes-{NUM_COLS}"},
        body=partial(_body, variant, target, NUM_ROWS, NUM_COLS, busy_bytes),
    )
