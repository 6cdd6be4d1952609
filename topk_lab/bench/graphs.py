"""What does a captured graph save, what does its generality cost, how many splits are best?

Three experiments. ``graph_calls``: eager calls, and graphs of one call to many. ``graph_replay``:
one graph for 200 lengths over three orders of magnitude, beside selections whose split count was
fixed when it was captured, as a host that looks at lengths would fix it. ``split_policy``: every
split count on every shape, for the regret of the policies.
"""

from __future__ import annotations

import dataclasses
import statistics

import numpy as np

from topk_lab.bench.candidates import Inputs, drawn_candidates, stand_for
from topk_lab.bench.cells import Cell, warm_calls
from topk_lab.bench.device import Device
from topk_lab.bench.device_logits import draw
from topk_lab.bench.ratios import TORCH
from topk_lab.bench.timing import Candidate, Effort, Session, Timing
from topk_lab.schedules import K512_MAX_COLUMNS

__all__ = [
    "FIXED_SPLITS",
    "POLICY_EFFORT",
    "call_cells",
    "policy_candidates",
    "policy_cells",
    "read_bytes",
    "replay_candidates",
    "replay_cells",
    "replay_lengths",
    "replayed",
]

K = 512
ROWS = 24  # 4 sequences of 6 tokens, as in the published times
CALLS = (1, 2, 5, 10, 20, 50, 100)
CALL_COLUMNS = (10_000, 100_000)
SHORTEST, LONGEST = 1000, K512_MAX_COLUMNS
REPLAYS = 200
REPLAY_SAMPLES = 3

FIXED_SPLITS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48)
POLICY_VARIANTS = ("vllm_generic", "vllm_k512", "vllm_k512[splits=h200]", "aiter_one_block")
POLICY_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384)
POLICY_LENGTHS = tuple(2**power for power in range(12, 21))
POLICY_EFFORT = Effort(min_samples=10, max_seconds=0.2, max_samples=20, warm_up_seconds=0.002)
GRAPH_BYTES = 2**30
REPLAY_VARIANTS = (
    *("vllm_generic", "vllm_k512", "vllm_k512_uncrowded", "vllm_k512[splits=h200]"),
    *("vllm_k512[splits=fixed_1]", "vllm_k512[splits=fixed_16]"),
    *("sglang_block1024", "aiter_one_block"),
)


def call_cells() -> list[Cell]:
    """Eager, and graphs of one call to a hundred."""

    def cell(num_cols: int, mode: str, calls: int | None) -> Cell:
        variants = ("vllm_generic", "vllm_k512", TORCH)
        return Cell(ROWS, num_cols, K, "normal", {}, mode, "warm", variants, calls_per_graph=calls)

    return [
        cell(num_cols, *state)
        for num_cols in CALL_COLUMNS
        for state in (("eager", None), *(("graph", calls) for calls in CALLS))
    ]


def replay_lengths() -> list[int]:
    """The live length of each replay: evenly spread over the logarithm, in random order."""
    spread = np.geomspace(SHORTEST, LONGEST, REPLAYS).round().astype(int)
    return np.random.default_rng(0).permutation(spread).tolist()


def replay_cells() -> list[Cell]:
    """One graph for all lengths."""
    arguments = {"shortest": SHORTEST, "longest": LONGEST, "replays": REPLAYS}
    return [Cell(ROWS, LONGEST, K, "normal", arguments, "graph", "warm", REPLAY_VARIANTS)]


def replay_candidates(cell: Cell, device: Device) -> dict[str, Candidate]:
    """What stands for the variants of the replayed cell: each time it is prepared, the next length.

    The candidates are prepared in turn, so each counts for itself.
    """
    ends = np.full(cell.num_rows, cell.num_cols, np.int32)
    logits = draw(cell.workload, ends, cell.num_cols, device.place, seed=cell.seed)

    def stand_for_lengths(variant: str) -> Candidate:
        inputs = Inputs(logits, device, cell.cache, row_ends=ends)
        candidate = stand_for(variant, cell.k, inputs)
        lengths = iter(replay_lengths())

        def prepare() -> None:
            candidate.prepare()
            inputs.row_ends.fill_(next(lengths))

        return dataclasses.replace(candidate, prepare=prepare)

    return {variant: stand_for_lengths(variant) for variant in cell.variants}


def replayed(
    cell: Cell, candidates: dict[str, Candidate], device: Device, effort: Effort
) -> dict[str, Timing]:
    """Capture once, then time one replay a length: a sample is the median of a few runs of it."""
    session = Session(candidates, device, mode=cell.mode, cache=cell.cache)
    few = Effort(min_samples=REPLAY_SAMPLES, max_seconds=0, warm_up_seconds=0, seed=effort.seed)
    steps: dict[str, list[Timing]] = {name: [] for name in candidates}
    lengths = replay_lengths()
    for _ in lengths:
        for name, timing in session.time(few).items():
            steps[name].append(timing)
    return {name: _timeline(lengths, timings) for name, timings in steps.items()}


def _timeline(lengths: list[int], timings: list[Timing]) -> Timing:
    for replay, timing in enumerate(timings):
        if timing.status != "ok":
            reason = f"replay {replay}, length {lengths[replay]}: {timing.reason}"
            return Timing(timing.status, reason)
    return Timing(
        "ok",
        None,
        tuple(statistics.median(timing.samples_us) for timing in timings),
        timings[0].calls_per_graph,
        {
            name: (before, timings[-1].clocks[name][1])
            for name, (before, _) in timings[0].clocks.items()
            if name in timings[-1].clocks
        },
        {"lengths": lengths},
    )


def policy_cells() -> list[Cell]:
    """Every split count, and the policies, on every shape."""
    fixed = tuple(f"vllm_k512[splits=fixed_{count}]" for count in FIXED_SPLITS)
    return [
        Cell(
            num_rows,
            K512_MAX_COLUMNS,
            K,
            workload,
            {"length": length},
            "graph",
            "warm",
            (*POLICY_VARIANTS, *fixed),
            calls_per_graph=warm_calls(4 * num_rows * length, GRAPH_BYTES),
        )
        for workload in ("normal", "masked_blocks")
        for num_rows in POLICY_ROWS
        for length in POLICY_LENGTHS
    ]


def policy_candidates(cell: Cell, device: Device) -> dict[str, Candidate]:
    """What stands for the variants of a cell: rows of one length in a wide buffer."""
    ends = np.full(cell.num_rows, cell.workload_args["length"], np.int32)
    return drawn_candidates(cell, device, ends)


def read_bytes(cell: Cell, variant: str, device: Device) -> dict[str, int]:
    """What a call of a cell of the policies reads at least: its live columns."""
    return {"input_bytes": 4 * cell.num_rows * cell.workload_args["length"]}
