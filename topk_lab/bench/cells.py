"""What is an experiment: which cells, which candidates side by side, what is recorded of each?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from topk_lab import workloads
from topk_lab.bench.device import Device
from topk_lab.bench.timing import Candidate

__all__ = ["AXES", "CELL_FIELDS", "Cell", "Experiment"]

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
        Its arguments; with ``columns_reversed``, its last column stands first; ``blocks_per_unit``
        is not the workload's: so many blocks of a kernel a compute unit is held to.
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
        arguments.pop("blocks_per_unit", None)
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
    counters : callable
        What is known of a variant of a cell on a device beside its times.
    """

    name: str
    question: str
    cells: Callable[[], list[Cell]] = field(repr=False)
    candidates: Callable[[Cell, Device], dict[str, Candidate]] = field(repr=False)
    counters: Callable[[Cell, str, Device], dict[str, Any]] = field(
        default=lambda cell, variant, device: {}, repr=False
    )

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
