"""How near to one read does the selection on a CPU come, and beside what?

A cell is timed as one call after another, with caches as the calls leave them: 64 MB and more don't
fit. Beside this package's selection run ``torch.topk`` without sorting, ``numpy.argpartition``,
which works on one thread and returns a whole row of indices, and ``torch.amax``, which reads every
logit once and so stands for the floor. ``threads`` among a cell's arguments says how many threads
torch may use, and with it this package.
"""

from __future__ import annotations

import dataclasses
import platform
import time
import tracemalloc
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from topk_lab import workloads
from topk_lab.bench.candidates import READS, Inputs, operator
from topk_lab.bench.cells import Cell
from topk_lab.bench.device import Call, Device
from topk_lab.bench.device_logits import draw
from topk_lab.bench.peers import as_indices
from topk_lab.bench.ratios import TORCH
from topk_lab.bench.timing import Candidate, Effort, Timing, measure

if TYPE_CHECKING:
    import torch

__all__ = ["EFFORT", "NUMPY", "CpuDevice", "candidates", "cells", "measured", "target"]

SELECTION = "cpu_delegate"
NUMPY = "numpy.argpartition"
FLOOR = "read_amax"
NORMAL = "normal"

ROWS = (1, 8, 24, 64, 384)
COLUMNS = (16_384, 65_536, 262_144, 1_048_576)
SHORT_COLUMNS = (512, 2048, 8192)
KS = (512, 2048)
OTHER_KS = (1, 64, 4096)
OTHER_KS_SHAPE = (24, 262_144)
WORKLOADS_SHAPE = (8, 262_144)
SMALL_BYTES = 1 << 27  # of an input that is also timed on one thread
NUMPY_BYTES = 1 << 26  # of an input that a row of int64 indices a row is made for

EFFORT = Effort(min_samples=5, max_seconds=0.4, max_samples=25, warm_up_seconds=0.01)


class _Moment:
    """A point in time; what was called before has ended."""

    def record(self) -> None:
        """Mark this point."""
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: _Moment) -> float:
        """Milliseconds from here to `end`."""
        return 1e3 * (end.seconds - self.seconds)


class CpuDevice:
    """The CPU: a call has ended when it returns, and nothing is captured."""

    target = "numba"
    place = "cpu"
    cache_bytes = 0
    arch = platform.machine()

    def capture(self, calls: Sequence[Call]) -> Call:
        """Refuse: there are no graphs."""
        raise ValueError("mode must be eager on a CPU, got graph")

    def event(self) -> _Moment:
        """Make an event that has not passed yet."""
        return _Moment()

    def write_pressure(self) -> None:
        """Refuse: caches are as the calls leave them."""
        raise ValueError("cache must be warm on a CPU, got pressure_256MiB")

    def read_other(self, nbytes: int) -> None:
        """Refuse: caches are as the calls leave them."""
        raise ValueError("cache must be warm on a CPU, got cold")

    def kernel_us(self, run: Call, replays: int) -> float:
        """Refuse: nobody but the clock tells the time."""
        raise ValueError("kernels must be those of a device, got a CPU")

    def synchronize(self) -> None:
        """Wait for nothing."""

    def clocks(self) -> dict[str, float]:
        """Nothing that can be read everywhere."""
        return {}


def target(variant: str, device: Device) -> str:
    """What a variant is recorded as: numba for this package's, torch for what runs beside it."""
    return device.target if variant == SELECTION else "torch"


def _cell(num_rows: int, num_cols: int, k: int, threads: int, workload: str = NORMAL) -> Cell:
    # A maximum that is NaN looks as one that was never written.
    floor = () if workload == "nan" else (FLOOR,)
    numpy = () if 4 * num_rows * num_cols > NUMPY_BYTES else (NUMPY,)
    arguments = workloads.defaults(workload) | {"threads": threads}
    return Cell(
        *(
            num_rows,
            num_cols,
            k,
            workload,
            arguments,
            "eager",
            "warm",
            (*floor, TORCH, *numpy, SELECTION),
        )
    )


def cells() -> list[Cell]:
    """Long rows by two k, small ones on one thread too; short rows, other k, all workloads."""
    long = [(rows, columns, k) for rows in ROWS for columns in COLUMNS for k in KS]
    short = [(rows, columns, KS[0]) for rows in ROWS[::2] for columns in SHORT_COLUMNS]
    others = [(*OTHER_KS_SHAPE, k) for k in OTHER_KS]
    alone = [
        shape for shape in long if shape[2] == KS[0] and 4 * shape[0] * shape[1] <= SMALL_BYTES
    ]
    return [
        *(_cell(*shape, threads=2) for shape in (*long, *short, *others)),
        *(_cell(*shape, threads=1) for shape in alone),
        *(
            _cell(*WORKLOADS_SHAPE, KS[0], threads=2, workload=name)
            for name in workloads.names()
            if name != NORMAL
        ),
    ]


def _torch_topk(k: int, logits: torch.Tensor) -> tuple[Call, torch.Tensor]:
    import torch

    values = torch.empty((len(logits), k))
    indices = torch.empty((len(logits), k), dtype=torch.int64)
    return lambda: torch.topk(logits, k, sorted=False, out=(values, indices)), indices


def _argpartition(k: int, logits: torch.Tensor) -> tuple[Call, torch.Tensor]:
    import torch

    indices = torch.empty((len(logits), k), dtype=torch.int64)
    rows, written = logits.numpy(), indices.numpy()
    behind = rows.shape[1] - k

    def call() -> None:
        written[...] = np.argpartition(rows, behind, axis=1)[:, behind:]

    return call, indices


def _logits(cell: Cell, device: Device) -> np.ndarray | torch.Tensor:
    arguments = {name: value for name, value in cell.workload_args.items() if name != "threads"}
    if cell.workload == NORMAL:  # large ones too
        ends = np.full(cell.num_rows, cell.num_cols, np.int32)
        return draw(NORMAL, ends, cell.num_cols, device.place, seed=cell.seed)
    return workloads.make(cell.workload, cell.num_rows, cell.num_cols, seed=cell.seed, **arguments)


def candidates(cell: Cell, device: Device) -> dict[str, Candidate]:
    """What stands for the variants of a cell."""
    inputs = Inputs(_logits(cell, device), device, cell.cache)
    made = {
        FLOOR: lambda: inputs.read(READS[FLOOR]),
        TORCH: lambda: inputs.selection(partial(_torch_topk, cell.k), as_indices),
        NUMPY: lambda: inputs.selection(partial(_argpartition, cell.k), as_indices),
        SELECTION: lambda: inputs.selection(partial(operator, SELECTION, cell.k, inputs.row_ends)),
    }
    return {variant: made[variant]() for variant in cell.variants}


def extra_bytes(call: Call) -> int:
    """The most that a call has allocated at a time, of memory that Python and NumPy account for.

    That is all that this package's selection allocates: compiled code allocates a few KiB for the
    digits of a sort by value, and nothing else.
    """
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def measured(
    cell: Cell, candidates: dict[str, Candidate], device: Device, effort: Effort
) -> dict[str, Timing]:
    """Time the candidates of a cell on as many threads as it says."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(cell.workload_args["threads"])
    try:
        timings = measure(candidates, device, mode=cell.mode, cache=cell.cache, effort=effort)
        timing = timings.get(SELECTION)
        if timing is not None and timing.status == "ok":
            counted = {"extra_bytes": extra_bytes(candidates[SELECTION].calls[0])}
            timings[SELECTION] = dataclasses.replace(timing, more=counted)
    finally:
        torch.set_num_threads(before)
    return timings
