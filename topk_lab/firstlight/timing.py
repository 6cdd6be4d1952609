"""Which times does a first run take, and in which order, if there may be no time for all?

The cells are those of `topk_lab.bench.EXPERIMENTS`, so that the records decide the same claims: of
the matrix a sample that is the same every time, spread over its axes, with the cases that a claim
names in front. Where something stands in for a device each selection runs once and is held against
the oracle: no times.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from topk_lab import bench, claims, registry, targets
from topk_lab.bench.candidates import READS
from topk_lab.bench.cells import Cell
from topk_lab.bench.device_logits import draw
from topk_lab.bench.matrix import matrix_row_ends
from topk_lab.bench.timing import Effort
from topk_lab.contract import find_violations
from topk_lab.firstlight.report import Report

if TYPE_CHECKING:
    from topk_lab.firstlight.checks import Context

__all__ = ["cells", "matrix_sample", "run"]

MATRIX_CASES = 100
MATRIX_CACHES = ("warm", "pressure_256MiB")
MATRIX_BUFFERS = ("live", "full")
EFFORT = Effort(min_samples=20, max_seconds=0.25, max_samples=40, warm_up_seconds=0.005)
# The rows that the published statement of a flat time is about, then the others.
CLAIMED_ROWS = (8, 16, 32, 64, 128, 256)
LATENCY_VARIANTS = (*READS, "sglang_block512", "sglang_block1024")
QUICK_CELLS = 3
QUICK_LOGITS = 600_000


def _claimed_alone(experiment: str) -> list[dict[str, Any]]:
    """Queries of the claims that name a case or two: what a short run can decide."""
    return [
        {name: value for name, value in claim.query.items() if name != "variant"}
        for claim in claims.load_claims()
        if claim.experiment == experiment and claim.kind == "time" and claim.cells <= 2
    ]


def _is_asked(cell: Cell, queries: Sequence[dict[str, Any]]) -> bool:
    flat = {f"workload_args.{name}": value for name, value in cell.workload_args.items()}
    flat |= cell.fields()
    return any(all(flat.get(name) == value for name, value in query.items()) for query in queries)


def matrix_sample(count: int = MATRIX_CASES) -> list[Cell]:
    """Cases of the matrix, each with warm caches and under pressure.

    Parameters
    ----------
    count : int, default 100

    Returns
    -------
    list of Cell
        Two a case. First the cases that a claim names alone; then, one after the other, the case
        whose values on the axes have come up least, so that every value comes up about as often.
    """
    by_case: dict[str, list[Cell]] = {}
    for cell in bench.EXPERIMENTS["vllm_matrix"].cells():
        if cell.cache in MATRIX_CACHES and cell.workload_args["buffer"] in MATRIX_BUFFERS:
            by_case.setdefault(repr(sorted(cell.workload_args.items())), []).append(cell)
    cases = list(by_case.values())
    random.Random(0).shuffle(cases)
    queries = _claimed_alone("vllm_matrix")
    named = [case for case in cases if any(_is_asked(cell, queries) for cell in case)]
    chosen: list[list[Cell]] = []
    seen: dict[tuple[str, Any], int] = {}
    sizes = {
        axis: len({case[0].workload_args[axis] for case in cases})
        for axis in cases[0][0].workload_args
    }

    def take(case: list[Cell]) -> None:
        chosen.append(case)
        cases.remove(case)
        for place in case[0].workload_args.items():
            seen[place] = seen.get(place, 0) + 1

    def crowded(case: list[Cell]) -> int:
        """How often its values came up, a value of a long axis counting more; squared: no peaks."""
        return sum(
            (sizes[axis] * seen.get((axis, value), 0)) ** 2
            for axis, value in case[0].workload_args.items()
        )

    for case in named[:count]:
        take(case)
    while len(chosen) < min(count, len(by_case)):
        take(min(cases, key=crowded))
    return list(itertools.chain.from_iterable(chosen))


def _latency() -> list[Cell]:
    timed = [
        dataclasses.replace(cell, variants=LATENCY_VARIANTS)
        for cell in bench.EXPERIMENTS["latency_vs_batch"].cells()
        if cell.cache == "warm" and not cell.workload_args
    ]
    return sorted(timed, key=lambda cell: cell.num_rows not in CLAIMED_ROWS)


_CELLS: dict[str, Callable[[], list[Cell]]] = {
    "reference_shapes": lambda: bench.EXPERIMENTS["reference_shapes"].cells(),
    "latency_vs_batch": _latency,
    "vllm_matrix": matrix_sample,
}


def cells(experiment: str, small: bool = False) -> list[Cell]:
    """The cells of a first run, in its order.

    Parameters
    ----------
    experiment : {"reference_shapes", "latency_vs_batch", "vllm_matrix"}
    small : bool, default False
        A few that need little memory.

    Returns
    -------
    list of Cell
    """
    found = _CELLS[experiment]()
    if small:
        fit = [cell for cell in found if cell.num_rows * cell.num_cols <= QUICK_LOGITS]
        return fit[:QUICK_CELLS]
    return found


def run(context: Context, experiment: str) -> Report:
    """Time the cells of an experiment, as far as time allows.

    Parameters
    ----------
    context : Context
    experiment : str
        As `cells` takes it.

    Returns
    -------
    Report
    """
    planned = cells(experiment, context.small)
    if context.emulated:
        return _once(context, experiment, planned)
    done = 0

    def track(left: Sequence[Cell], label: str) -> Iterable[Cell]:
        nonlocal done
        done = len(planned) - len(left)
        for cell in context.in_time(left):
            yield cell
            done += 1

    # An experiment that says how many samples it takes has many cells.
    own = bench.EXPERIMENTS[experiment].effort
    recorded = bench.run(
        experiment,
        context.recorder,
        cells=planned,
        resume=context.resume,
        effort=EFFORT if own == Effort() else own,
        track=track,
        say=lambda line: None,
    )
    report = Report("ok", done=done, planned=len(planned), unit="cells")
    failed = [cell for cell in recorded if cell["status"] in ("wrong", "error")]
    report = Report("ok", done=done, planned=len(planned), unit="cells")
    if not failed:
        return report
    first = failed[0]
    where = f"{first['num_rows']} x {first['num_cols']}, {first['workload']}, {first['cache']}"
    return dataclasses.replace(
        report,
        status=first["status"],
        reason=f"{len(failed)} of {len(recorded)} times, first {first['variant']} on {where}: "
        f"{first['reason']}",
        cause="it is exact outside of a graph (see exactness): the capture, or too little memory",
    )


def _host_logits(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """The logits of a cell, and where its rows end."""
    if "buffer" not in cell.workload_args:
        return cell.logits(), np.full(cell.num_rows, cell.num_cols, np.int32)
    ends = matrix_row_ends(cell.workload_args)
    return draw(cell.workload, ends, cell.num_cols, "cpu", seed=cell.seed).numpy(), ends


def _once(context: Context, experiment: str, planned: Sequence[Cell]) -> Report:
    """Run every variant of every cell once, and hold it against the oracle."""
    done, problems = 0, []
    for cell in context.in_time(planned):
        logits, row_ends = _host_logits(cell)
        for variant in cell.variants:
            if variant.partition("[")[0] not in registry.VARIANTS:
                continue  # torch's own: nothing of this package
            outcome = targets.run(context.target, variant, logits, cell.k, row_ends=row_ends)
            found = find_violations(logits, outcome.indices, row_ends=row_ends)
            reason = f"{len(found)} violations; {found[0]}" if found else None
            if reason:
                problems.append(f"{variant} on {cell}: {reason}")
            context.recorder.record(
                experiment=experiment,
                target=context.memory.target,
                variant=variant,
                status="wrong" if reason else "ok",
                reason=reason,
                **cell.fields() | {"mode": None, "cache": None},
            )
        done += 1
    report = Report(
        "wrong" if problems else "ok", done=done, planned=len(planned), unit="cells",
        notes=["a stand-in answered: no times"],
    )  # fmt: skip
    if not problems:
        return report
    return dataclasses.replace(
        report,
        reason=f"{len(problems)} selections, first {problems[0]}",
        cause="the kernel is wrong: see exactness",
    )
