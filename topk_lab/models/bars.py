"""Is the delegate selection as fast as was wanted before it was measured?

The bars are for an NVIDIA H200 and k = 512, unless they say otherwise. What is missed is shown as
missed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topk_lab.models.bootstrap import geomean
from topk_lab.models.delegate import DELEGATE, LARGE_BYTES, NORMAL

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BARS", "Bar", "allowed_us", "judge_bars"]

SHORT_COLUMNS = 16_384
SHORT_US = 2.2
FLOOR_SHARE, FLOOR_US = 1.1, 5.0


def allowed_us(floor_us: float, num_cols: int) -> float:
    """What a call may take by the bar, by the time of the best read kernel and the row's length."""
    if num_cols <= SHORT_COLUMNS:
        return floor_us + SHORT_US
    return FLOOR_SHARE * floor_us + FLOOR_US


@dataclass(frozen=True)
class Bar:
    """A number that was wanted before it was measured.

    Attributes
    ----------
    statement : str
        What is held against the target.
    table : str
        Which argument of `judge_bars` it is of.
    chosen : callable
        The rows of that table that count.
    value : callable
        From these rows, the number.
    sense : {"at most", "at least", "above"}
        On which side of the target it should be.
    target : float
    """

    statement: str
    table: str
    chosen: Callable[[pd.DataFrame], pd.Series]
    value: Callable[[pd.DataFrame], float]
    sense: str
    target: float

    def met(self, value: float) -> bool:
        """Whether a value is on the right side; one that is not there is not."""
        if self.sense == "at most":
            return value <= self.target
        return value >= self.target if self.sense == "at least" else value > self.target


def _cached(cache: str) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda shapes: shapes["cache"] == cache


def _warm(short: bool) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda shapes: (
        (shapes["cache"] == "warm") & ((shapes["num_cols"] <= SHORT_COLUMNS) == short)
    )


def _buffered(cache: str, buffer: str) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda pairs: (pairs["cache"] == cache) & (pairs["buffer"] == buffer)


def _greatest_excess(shapes: pd.DataFrame) -> float:
    floors = zip(shapes["floor_us"], shapes["num_cols"], strict=True)
    return float((shapes["time_us"] / [allowed_us(*one) for one in floors]).max())


def _least_speedup(cells: pd.DataFrame) -> float:
    return float(cells["speedup"].min())


def _mean_speedup(cells: pd.DataFrame) -> float:
    return geomean(cells["speedup"])


def _slower(pairs: pd.DataFrame) -> float:
    return float((pairs["speedup"] < 1).sum())


def _greatest_ratio(cells: pd.DataFrame) -> float:
    return float(cells["ratio"].max())


_STATES = (("warm", "warm"), ("pressure_256MiB", "cache pressure"))
_MATRIX = (("warm", "live", 2.5), ("warm", "full", 2.5), ("cold", "live", 1.8))

BARS = (
    Bar(
        f"{FLOOR_SHARE} x floor + {FLOOR_US:g} us, warm, longer rows: greatest share of it taken",
        *("shapes", _warm(short=False), _greatest_excess, "at most", 1.0),
    ),
    Bar(
        f"floor + {SHORT_US} us, warm, up to {SHORT_COLUMNS} columns: greatest share of it taken",
        *("shapes", _warm(short=True), _greatest_excess, "at most", 1.0),
    ),
    *(
        Bar(f"speed-up over the best peer, {said}: least", "shapes", _cached(cache), *bar)
        for cache, said in _STATES
        for bar in ((_least_speedup, "above", 1.0),)
    ),
    *(
        Bar(f"speed-up over the best peer, {said}: geomean", "shapes", _cached(cache), *bar)
        for cache, said in _STATES
        for bar in ((_mean_speedup, "at least", 1.2),)
    ),
    *(
        Bar(
            f"speed-up over vllm_k512, {cache}, {buffer} buffer: geomean",
            *("matrix", _buffered(cache, buffer), _mean_speedup, "at least", target),
        )
        for cache, buffer, target in _MATRIX
    ),
    *(
        Bar(
            f"cases slower than vllm_k512, {cache}, {buffer} buffer",
            *("matrix", _buffered(cache, buffer), _slower, "at most", 0.0),
        )
        for cache, buffer, _ in _MATRIX
    ),
    Bar(
        "time of adversarial rows over that of normal ones: greatest",
        "rows",
        lambda rows: (rows["variant"] == DELEGATE) & (rows["workload"] != NORMAL),
        *(_greatest_ratio, "at most", 1.3),
    ),
    *(
        Bar(
            f"speed-up over vllm_generic, k {k}: geomean",
            "large_k",
            lambda pairs, k=k: pairs["k"] == k,
            *(_mean_speedup, "at least", 2.5),
        )
        for k in (1024, 2048)
    ),
    Bar(
        f"slope of the time over the floor's, from {LARGE_BYTES // 10**6} MB on: greatest",
        "growth",
        lambda slopes: slopes["ratio"].notna(),
        *(_greatest_ratio, "at most", 1.3),
    ),
)


def judge_bars(
    *,
    shapes: pd.DataFrame,
    matrix: pd.DataFrame,
    rows: pd.DataFrame,
    large_k: pd.DataFrame,
    growth: pd.DataFrame,
) -> pd.DataFrame:
    """Hold what was measured against what was wanted.

    Parameters
    ----------
    shapes : pandas.DataFrame
        As `topk_lab.bench.ratios.against_peers` returns it.
    matrix : pandas.DataFrame
        Pairs of ``delegate_matrix``, as `paired` returns them, ``vllm_k512`` as the baseline.
    rows : pandas.DataFrame
        As `adversarial_ratios` returns them.
    large_k : pandas.DataFrame
        Pairs of ``delegate_large_k``, ``vllm_generic`` as the baseline.
    growth : pandas.DataFrame
        As `growth_slopes` returns them.

    Returns
    -------
    pandas.DataFrame
        A row for each of `BARS`: ``bar``, ``value``, ``sense``, ``target``, ``met``, ``cells``, how
        many it is over. Where there is none the value is NaN, and the bar is not met.
    """
    import pandas as pd

    tables = {
        "shapes": shapes,
        "matrix": matrix,
        "rows": rows,
        "large_k": large_k,
        "growth": growth,
    }
    found = []
    for bar in BARS:
        table = tables[bar.table]
        cells = table[bar.chosen(table)]
        value = bar.value(cells) if len(cells) else float("nan")
        found.append(
            {
                "bar": bar.statement,
                "value": value,
                "sense": bar.sense,
                "target": bar.target,
                "met": bar.met(value),
                "cells": len(cells),
            }
        )
    return pd.DataFrame(found)
