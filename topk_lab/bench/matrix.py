"""Which cases had the source's matrix, and how fast are they here?

1008 cases: concurrency x speculative tokens x context x compression ratio x logits, k = 512, as
`data/published/vllm_56743_matrix.csv` lists them. The published text leaves open how wide the
buffer was. A captured graph has one buffer for all lengths, as wide as the longest; and on the
width depends what served as baseline: one block a row, or ten splits. So the buffer is an axis:

=========== ====================================================================
buffer      width and lengths
=========== ====================================================================
``live``    as wide as the longest row
``full``    1 Mi columns, whatever the lengths: as under a full graph
``ragged``  the same, and sequence b of B as long as (b + 1) / B of the context
=========== ====================================================================
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from topk_lab import results
from topk_lab.bench.candidates import drawn_candidates
from topk_lab.bench.cells import Cell, warm_calls
from topk_lab.bench.device import Device
from topk_lab.bench.timing import Candidate, Effort, Session, Timing
from topk_lab.contract import row_ends_from
from topk_lab.schedules import K512_MAX_COLUMNS

__all__ = [
    "BUFFERS",
    "MATRIX_EFFORT",
    "matrix_axes",
    "matrix_candidates",
    "matrix_cells",
    "matrix_row_ends",
    "profiled",
    "profiled_cells",
    "read_bytes",
]

K = 512
VARIANTS = ("vllm_generic", "vllm_k512")
BUFFERS = ("live", "full", "ragged")
WORKLOADS = {"dense": "normal", "masked": "masked_blocks"}
# Which buffers are timed in which state of the caches.
STATES = {
    "warm": BUFFERS,
    "pressure_256MiB": ("live", "full"),
    "cold": ("live",),
}
MATRIX_EFFORT = Effort(min_samples=10, max_seconds=0.1, max_samples=20, warm_up_seconds=0.002)
GRAPH_BYTES = 2**31  # that a warm graph reads, about
PROFILED_TOKENS = 6
PROFILED_CONCURRENCY = (1, 4, 16)
PROFILED_REPLAYS = 10


def matrix_axes() -> dict[str, tuple[Any, ...]]:
    """The published axes: name -> values, numbers as such."""
    table = results.load_published("vllm_56743_matrix")
    return {
        axis: tuple(int(value) if value.isdecimal() else value for value in values.split())
        for axis, values in zip(table["axis"], table["values"], strict=True)
    }


def _seq_lens(arguments: dict[str, Any]) -> np.ndarray:
    """Tokens of each sequence, the speculative ones included: (concurrency,) int32."""
    batch, context = arguments["concurrency"], arguments["context"]
    if arguments["buffer"] != "ragged":
        return np.full(batch, context, np.int32)
    return (context * np.arange(1, batch + 1, dtype=np.int64) // batch).astype(np.int32)


def matrix_row_ends(arguments: dict[str, Any]) -> np.ndarray:
    """Live columns of each row of a case.

    Parameters
    ----------
    arguments : dict
        One value on each axis of `matrix_axes`, and ``buffer``.

    Returns
    -------
    (concurrency * speculative_tokens,) int32 ndarray
        A token's tokens so far, then divided by the compression ratio.
    """
    return row_ends_from(
        _seq_lens(arguments),
        next_n=arguments["speculative_tokens"],
        compress_ratio=arguments["compression_ratio"],
    )


def _cell(arguments: dict[str, Any], cache: str) -> Cell:
    ends = matrix_row_ends(arguments)
    width = int(ends.max()) if arguments["buffer"] == "live" else K512_MAX_COLUMNS
    calls = None
    if cache == "warm":
        calls = warm_calls(4 * int(ends.sum(dtype=np.int64)), GRAPH_BYTES)
    return Cell(
        len(ends),
        width,
        K,
        WORKLOADS[arguments["logits"]],
        arguments,
        "graph",
        cache,
        VARIANTS,
        next_n=arguments["speculative_tokens"],
        calls_per_graph=calls,
    )


def _cases() -> list[dict[str, Any]]:
    axes = matrix_axes()
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


@functools.cache
def _all_cells() -> tuple[Cell, ...]:
    return tuple(
        _cell(case | {"buffer": buffer}, cache)
        for cache, buffers in STATES.items()
        for buffer in buffers
        for case in _cases()
    )


def matrix_cells() -> list[Cell]:
    """Every case in every buffer and state of the caches that is timed."""
    return list(_all_cells())


def profiled_cells() -> list[Cell]:
    """72 of the cases, for the source's number of profiled pairs: which ones it did not say."""
    return [
        _cell(case | {"buffer": "full"}, "warm")
        for case in _cases()
        if case["speculative_tokens"] == PROFILED_TOKENS
        and case["concurrency"] in PROFILED_CONCURRENCY
    ]


def matrix_candidates(cell: Cell, device: Device) -> dict[str, Candidate]:
    """What stands for the variants of a cell of the matrix: its logits are made on the device."""
    return drawn_candidates(cell, device, matrix_row_ends(cell.workload_args))


def read_bytes(cell: Cell, variant: str, device: Device) -> dict[str, int]:
    """What a call of the cell reads at least: its live columns."""
    return {"input_bytes": 4 * int(matrix_row_ends(cell.workload_args).sum(dtype=np.int64))}


def profiled(
    cell: Cell, candidates: dict[str, Candidate], device: Device, effort: Effort
) -> dict[str, Timing]:
    """Time the candidates by events and by the device's profiler: ``kernel_us`` a call."""
    session = Session(
        candidates,
        device,
        mode=cell.mode,
        cache=cell.cache,
        calls_per_graph=cell.calls_per_graph,
    )
    return {
        name: replace(
            timing, more={"kernel_us": round(session.kernel_us(name, PROFILED_REPLAYS), 4)}
        )
        if timing.status == "ok"
        else timing
        for name, timing in session.time(effort).items()
    }
