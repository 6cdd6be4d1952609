"""Which twin stands for a variant, and how did it find the k best logits of one row?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from topk_lab import schedules
from topk_lab.contract.words import as_array, check_word
from topk_lab.reference import aiter, delegate, sglang, shared_histogram, vllm
from topk_lab.reference.trace_record import TRACE_STEP, Selection
from topk_lab.schedules import (
    DelegateChoice,
    OneBlockPolicy,
    SharedHistogramPolicy,
    StashPolicy,
    Variant,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Trace", "select", "trace"]


def select(
    variant: str | Variant,
    logits: object,
    k: int,
    starts: object = None,
    ends: object = None,
    *,
    tie_break: str = "any",
    order: str = "any",
    trace: bool = False,
) -> Selection:
    """Select as a variant's kernels do, step by step.

    Parameters
    ----------
    variant : str or Variant
        A name of `topk_lab.schedules.POLICIES`, policy fields in brackets allowed. An unsound
        policy is carried out as it is.
    logits : (num_rows, num_cols) float32 array or CPU tensor
        Scores, any strides.
    k : int
        As many as the variant takes.
    starts, ends : (num_rows,) int array, optional
        Live columns [start, end) of each row, within [0, num_cols]. Default: whole rows.
    tie_break : {"any", "lowest"}
    order : {"any", "index", "value"}
        Promises that the variant makes.
    trace : bool
        Also record every step: 16 KiB each.

    Returns
    -------
    Selection

    Raises
    ------
    TypeError, ValueError
        As `vllm.select`, `sglang.select`, `aiter.select`, `shared_histogram.select` and
        `delegate.select`; a promise that the variant does not make.
    """
    if not isinstance(variant, Variant):
        variant = schedules.parse_variant(variant)
    for kind, lineage in ((OneBlockPolicy, aiter), (DelegateChoice, delegate)):
        if isinstance(variant.policy, kind):
            return lineage.select(
                variant, logits, k, starts, ends, tie_break=tie_break, order=order, trace=trace
            )
    check_word("tie_break", tie_break, ("any",))
    if isinstance(variant.policy, StashPolicy):
        return sglang.select(variant, logits, k, starts, ends, order=order, trace=trace)
    check_word("order", order, ("any",))
    if isinstance(variant.policy, SharedHistogramPolicy):
        return shared_histogram.select(variant, logits, k, starts, ends, trace=trace)
    return vllm.select(variant, logits, k, starts, ends, trace=trace)


@dataclass(frozen=True)
class Trace:
    """How the k best logits of one row were found.

    Attributes
    ----------
    variant : str
        With any policy field that was changed.
    k : int
    steps : (blocks, steps a block) TRACE_STEP array
        One record per block and step, a merge's last; step is -1 where none was made.
    indices : (k,) int32 array
        The answer.
    """

    variant: str
    k: int
    steps: np.ndarray
    indices: np.ndarray

    def frame(self) -> pd.DataFrame:
        """One line per step that was made, in order, without its histogram.

        Returns
        -------
        pandas.DataFrame
            block ("row" if one block did it all, else "split 0", ..., "merge"), then the fields of
            TRACE_STEP; fits is bool.
        """
        import pandas as pd

        made = np.argwhere(self.steps["step"] >= 0)
        merge = len(self.steps) - 1
        merged = merge > 0 and self.steps["step"][merge, 0] >= 0
        names = [
            "row" if not merged else "merge" if block == merge else f"split {block}"
            for block, _ in made
        ]
        records = self.steps[made[:, 0], made[:, 1]]
        frame = pd.DataFrame(
            {field: records[field] for field in TRACE_STEP.names if field != "histogram"}
        )
        frame["fits"] = frame["fits"].astype(bool)
        frame.insert(0, "block", names)
        return frame


def trace(row: object, k: int, *, variant: str | Variant, row_end: int | None = None) -> Trace:
    """Record how a variant finds the k best logits of one row.

    Parameters
    ----------
    row : (num_cols,) float32 array or CPU tensor
        Scores.
    k : int
        As in `select`.
    variant : str or Variant
        As in `select`.
    row_end : int, optional
        Live columns; default all. Clamped to [0, num_cols].

    Returns
    -------
    Trace

    Raises
    ------
    TypeError, ValueError
        As `select`; a row that is not one-dimensional.

    Examples
    --------
    >>> import numpy as np
    >>> from topk_lab.reference import trace
    >>> row = np.full(1000, -np.inf, np.float32)
    >>> row[:300] = np.arange(300)
    >>> trace(row, 512, variant="vllm_k512").frame()["threshold_bin"].tolist()
    [2016, 2044, 0, 0]
    """
    if not isinstance(variant, Variant):
        variant = schedules.parse_variant(variant)
    logits = as_array("row", row)
    if logits.ndim != 1:
        raise ValueError(f"row must have shape (num_cols,), got {logits.shape}")
    end = logits.size if row_end is None else min(max(row_end, 0), logits.size)
    answer = select(variant, logits[None], k, ends=np.array([end]), trace=True)
    return Trace(str(variant), k, answer.trace[0], answer.indices[0])
