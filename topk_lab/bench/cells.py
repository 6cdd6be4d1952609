"""What is an experiment: which cells, which candidates side by side, what is recorded of each?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from topk_lab import workloads
from topk_lab.bench.device import Device, TorchDevice
from topk_lab.bench.timing import Candidate, Effort, Timing, measure

__all__ = ["AXES", "CELL_FIELDS", "Cell", "Experiment", "warm_calls"]

CELL_FIELDS = (
    *("num_rows", "num_cols", "k", "next_n", "workload", "workload_args", "seed"),
    *("mode", "cache"),
)
AXES = ("num_rows", "num_cols", "k", "workload", "mode", "cache", "calls_per_graph", "variant")


MOST_WARM_CALLS = 20


def warm_calls(call_bytes: int, graph_bytes: int) -> int:
    """Calls of a warm graph that reads about so much: of long rows a few outweigh its launch."""
    return int(np.clip(graph_bytes // call_bytes, 2, MOST_WARM_CALLS))


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
        Its arguments; with ``columns_reversed``, its last column stands first; ``blocks_per_unit``
        is not the workload's: so many blocks of a kernel a compute unit is held to.
    mode, cache : str
        As `topk_lab.bench.measure` takes them.
    variants : tuple of str
        What is timed.
    seed : int
        Of the workload.
    next_n : int
        Rows of a sequence; 0 where every row has its own end.
    calls_per_graph : int, optional
        Of a warm graph; None for as many as `topk_lab.bench.measure` takes.
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
    next_n: int = 0
    calls_per_graph: int | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of a record that say on what it was timed."""
        return {name: getattr(self, name) for name in CELL_FIELDS}

    def on(self, axis: str) -> Any:
        """Its value on an axis: a field of its own, or an argument of its workload."""
        return getattr(self, axis) if axis in AXES else self.workload_args.get(axis)

    def logits(self) -> np.ndarray:
        """The (num_rows, num_cols) float32 logits."""
        arguments = dict(self.workload_args)
        reverse = arguments.pop("columns_reversed", False)
        arguments.pop("blocks_per_unit", None)
        logits = workloads.make(
            self.workload, self.num_rows, self.num_cols, seed=self.seed, **arguments
        )
        return np.ascontiguousarray(logits[:, ::-1]) if reverse else logits

    def __str__(self) -> str:
        arguments = "".join(f" {name}={value}" for name, value in self.workload_args.items())
        shape = f"{self.num_rows} x {self.num_cols}"
        return f"{shape} {self.workload}{arguments}, {self.mode}, {self.cache}"


def _measured(
    cell: Cell, candidates: dict[str, Candidate], device: Device, effort: Effort
) -> dict[str, Timing]:
    return measure(
        candidates,
        device,
        mode=cell.mode,
        cache=cell.cache,
        calls_per_graph=cell.calls_per_graph,
        effort=effort,
    )


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
    counters : callable
        What is known of a variant of a cell on a device beside its times.
    measured : callable
        Times the candidates of a cell, as `topk_lab.bench.measure` does.
    effort : Effort
        How many samples a cell takes, unless a run says otherwise.
    arguments_are_axes : bool
        Whether cells can be chosen by the arguments of their workloads.
    device : callable
        Makes what it runs on, unless a run says otherwise.
    target : callable
        Where a variant is recorded to have run, of a device.
    """

    name: str
    question: str
    cells: Callable[[], list[Cell]] = field(repr=False)
    candidates: Callable[[Cell, Device], dict[str, Candidate]] = field(repr=False)
    counters: Callable[[Cell, str, Device], dict[str, Any]] = field(
        default=lambda cell, variant, device: {}, repr=False
    )
    measured: Callable[[Cell, dict[str, Candidate], Device, Effort], dict[str, Timing]] = field(
        default=_measured, repr=False
    )
    effort: Effort = field(default_factory=Effort, repr=False)
    arguments_are_axes: bool = False
    device: Callable[[], Device] = field(default=TorchDevice, repr=False)
    target: Callable[[str, Device], str] = field(
        default=lambda variant, device: device.target, repr=False
    )

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Values of each axis, in the order of the cells."""
        cells = self.cells()
        named = [axis for axis in AXES if axis != "variant"]
        if self.arguments_are_axes:
            named += dict.fromkeys(name for cell in cells for name in cell.workload_args)
        values = {axis: tuple(dict.fromkeys(cell.on(axis) for cell in cells)) for axis in named}
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
            if all(str(cell.on(axis)) in values for axis, values in wanted.items())
        ]
