"""What is timed, on which shapes, beside what?

An experiment is a list of cells; a cell is one shape, workload and cache state, on which all its
variants are timed side by side. `run` runs the cells that are asked for and records each variant.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from topk_lab import results, workloads
from topk_lab.bench.candidates import READS, Inputs, operator, torch_topk
from topk_lab.bench.device import Device, TorchDevice
from topk_lab.bench.ratios import MIRRORS, PUBLISHED_TIMES, TORCH, published_shapes
from topk_lab.bench.timing import Candidate, Effort, Timing, measure

__all__ = ["AXES", "EXPERIMENTS", "Cell", "Experiment", "run"]

CELL_FIELDS = ("num_rows", "num_cols", "k", "workload", "workload_args", "seed", "mode", "cache")
AXES = ("num_rows", "num_cols", "k", "workload", "mode", "cache", "variant")


@dataclass(frozen=True)
class Cell:
    """Variants that are timed side by side, and on what.

    Attributes
    ----------
    num_rows, num_cols, k : int
        Shape; every row is live to its end.
    workload : str
        Name of the workload.
    workload_args : dict
        Its arguments; with ``columns_reversed``, its last column stands first.
    mode, cache : str
        As `topk_lab.bench.measure` takes them.
    variants : tuple of str
        What is timed.
    seed : int
        Of the workload.
    """

    num_rows: int
    num_cols: int
    k: int
    workload: str
    workload_args: dict[str, Any]
    mode: str
    cache: str
    variants: tuple[str, ...]
    seed: int = 0

    def fields(self) -> dict[str, Any]:
        """The fields of a record that say on what it was timed."""
        return {name: getattr(self, name) for name in CELL_FIELDS}

    def logits(self) -> np.ndarray:
        """The (num_rows, num_cols) float32 logits."""
        arguments = dict(self.workload_args)
        reverse = arguments.pop("columns_reversed", False)
        logits = workloads.make(
            self.workload, self.num_rows, self.num_cols, seed=self.seed, **arguments
        )
        return np.ascontiguousarray(logits[:, ::-1]) if reverse else logits

    def __str__(self) -> str:
        return f"{self.num_rows} x {self.num_cols} {self.workload}, {self.mode}, {self.cache}"


@dataclass(frozen=True)
class Experiment:
    """A list of cells that answers a question.

    Attributes
    ----------
    name : str
        As records name it.
    question : str
        One line.
    cells : callable
        All its cells.
    candidates : callable
        What stands for the variants of a cell, on a device.
    """

    name: str
    question: str
    cells: Callable[[], list[Cell]] = field(repr=False)
    candidates: Callable[[Cell, Device], dict[str, Candidate]] = field(repr=False)

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Values of each axis, in the order of the cells."""
        cells = self.cells()
        values = {
            axis: tuple(dict.fromkeys(getattr(cell, axis) for cell in cells))
            for axis in AXES
            if axis != "variant"
        }
        return values | {
            "variant": tuple(dict.fromkeys(name for cell in cells for name in cell.variants))
        }

    def chosen(self, axes: Mapping[str, Sequence[Any]]) -> list[Cell]:
        """The cells at some values of some axes.

        Parameters
        ----------
        axes : mapping of str to sequence
            Axis -> values, compared as text; an axis that is not named is taken whole.

        Returns
        -------
        list of Cell

        Raises
        ------
        ValueError
            No such axis, or no such value on it.
        """
        known = self.axes()
        wanted = {axis: {str(value) for value in values} for axis, values in axes.items()}
        for axis, values in wanted.items():
            if axis not in known:
                raise ValueError(f"axis must be one of {', '.join(known)}, got {axis!r}")
            for value in values - {str(one) for one in known[axis]}:
                allowed = ", ".join(map(str, known[axis]))
                raise ValueError(f"{axis} must be among {allowed}, got {value!r}")
        variants = wanted.pop("variant", {str(one) for one in known["variant"]})
        return [
            replace(cell, variants=tuple(name for name in cell.variants if name in variants))
            for cell in self.cells()
            if all(str(getattr(cell, axis)) in values for axis, values in wanted.items())
        ]


def _reference_cells() -> list[Cell]:
    return [
        Cell(*shape, mode="graph", cache=cache, variants=(*READS, TORCH, *MIRRORS))
        for shape in published_shapes()
        for cache in PUBLISHED_TIMES
    ]


def _reference_candidates(cell: Cell, device: Device) -> dict[str, Candidate]:
    inputs = Inputs(cell.logits(), device, cell.cache)

    def stand_for(variant: str) -> Candidate:
        if variant in READS:
            return inputs.read(READS[variant])
        if variant == TORCH:
            return inputs.selection(lambda logits: torch_topk(cell.k, logits))
        return inputs.selection(lambda logits: operator(variant, cell.k, logits))

    return {variant: stand_for(variant) for variant in cell.variants}


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "reference_shapes",
            "How do the mirrors compare with the kernels that they mirror, and with the floor?",
            _reference_cells,
            _reference_candidates,
        ),
    )
}


def _identity(fields: Mapping[str, Any], variant: str) -> str:
    return json.dumps([variant, dict(fields)], sort_keys=True)


def _timed_before(recorder: results.Recorder, experiment: str, target: str) -> set[str]:
    """Identities of what the recorder's file has times of, from these kernels on this device."""
    path = recorder.path(kind="measured", target=target, experiment=experiment)
    if not path.exists():
        return set()
    frame = results.load(path)
    timed = frame[
        (frame["experiment"] == experiment)
        & (frame["status"] == "ok")
        & (frame["kernel_hash"] == recorder.run.code["kernel_hash"])
        & (frame["device"] == recorder.run.device_name(target))
    ]
    # A cell without a number makes floats of a whole column.
    numbers = dict.fromkeys(("num_rows", "num_cols", "k", "seed"), "int64")
    return {
        _identity({name: record[name] for name in CELL_FIELDS}, record["variant"])
        for record in timed.astype(numbers).to_dict("records")
    }


def _line(cell: Cell, variant: str, timing: Timing) -> str:
    if timing.status != "ok":
        return f"{cell}: {variant} {timing.status}: {timing.reason}"
    spread = f"{100 * timing.relative_iqr:.1f}%, {len(timing.samples_us)} samples"
    return f"{cell}: {variant} {timing.median_us:.2f} us ({spread})"


def run(
    name: str,
    recorder: results.Recorder,
    *,
    device: Device | None = None,
    axes: Mapping[str, Sequence[Any]] | None = None,
    shard: tuple[int, int] = (1, 1),
    resume: bool = False,
    effort: Effort | None = None,
    track: Callable[[Sequence[Cell], str], Iterable[Cell]] | None = None,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Run an experiment and record it.

    Parameters
    ----------
    name : str
        Key of `EXPERIMENTS`; dashes are read as underscores.
    recorder : topk_lab.results.Recorder
        Takes a record for each cell and variant, as soon as the cell has run.
    device : Device, optional
        Default: torch's current GPU.
    axes : mapping of str to sequence, optional
        Values of some axes, as `Experiment.chosen` takes them.
    shard : (int, int), default (1, 1)
        (i, n): every n-th cell from the i-th on, 1 <= i <= n.
    resume : bool, default False
        Leave out cells whose every variant the recorder's file has a time of, from the same kernels
        on the same device.
    effort : Effort, optional
        How many samples a cell takes.
    track : callable, optional
        Wraps the list of cells, to show progress.
    say : callable, default print
        Takes a line on every cell and variant.

    Returns
    -------
    list of dict
        The cells as recorded. They run in an order of their own, the same every time.

    Raises
    ------
    ValueError
        Unknown experiment, axis or value, a bad shard, no GPU.
    """
    experiment = EXPERIMENTS.get(name.replace("-", "_"))
    if experiment is None:
        raise ValueError(f"experiment must be one of {', '.join(EXPERIMENTS)}, got {name!r}")
    first, step = shard
    if not 1 <= first <= step:
        raise ValueError(f"shard must be (i, n) with 1 <= i <= n, got {shard}")
    cells = experiment.chosen(axes or {})
    # Neighbours in the list are alike: clocks and heat would follow the axes.
    random.Random(0).shuffle(cells)
    cells = cells[first - 1 :: step]
    device = device or TorchDevice()
    if resume:
        timed = _timed_before(recorder, experiment.name, device.target)
        cells = [
            cell
            for cell in cells
            if not all(_identity(cell.fields(), variant) in timed for variant in cell.variants)
        ]
    written = []
    for cell in cells if track is None else track(cells, experiment.name):
        candidates = experiment.candidates(cell, device)
        timings = measure(candidates, device, mode=cell.mode, cache=cell.cache, effort=effort)
        for variant, timing in timings.items():
            written.append(_record(recorder, experiment.name, cell, device.target, variant, timing))
            say(_line(cell, variant, timing))
    return written


def _record(
    recorder: results.Recorder,
    experiment: str,
    cell: Cell,
    target: str,
    variant: str,
    timing: Timing,
) -> dict[str, Any]:
    counters = {"input_bytes": 4 * cell.num_rows * cell.num_cols, **timing.counters()}
    return recorder.record(
        experiment=experiment,
        target=target,
        variant=variant,
        status=timing.status,
        reason=timing.reason,
        next_n=0,
        calls_per_graph=timing.calls_per_graph,
        samples_us=timing.samples_us or None,
        counters=counters,
        **cell.fields(),
    )
