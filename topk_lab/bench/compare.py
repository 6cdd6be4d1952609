"""Which cells became faster or slower from one set of records to another, and by how much?

A is what was, B what is judged against it. Two cells are the same where all that tells cells apart
is equal, `topk_lab.results.IDENTITY`; of a cell that was run more than once the last run counts.

The verdict on times rests on two things that must agree. The *interval* of a side is [q1, q3]
around its median: means and extremes are left alone, for a few slow samples move them far. Where
samples show the tick of a timer, either end is moved out by half of it. The *distance* is that of
the medians: the longer over the shorter, less 1, so that A against B and B against A are judged
alike.

=========== ====================================================================================
verdict     when
=========== ====================================================================================
faster,     the intervals are apart, and the distance is above the threshold
slower
same        the distance is at most the threshold, and the intervals overlap, or even their far
            ends are no further apart than the threshold
ambiguous   what is left: medians far apart in intervals that overlap, intervals apart with
            medians that are not, too few samples to speak of quartiles, or none on one side
broken      ok in A, not ok in B: worse than slower
mended      ok in B, not ok in A
failing     ok in neither
untimed     ok in both, and timed in neither: the emulator never times
missing     in A alone
new         in B alone
=========== ====================================================================================
"""

from __future__ import annotations

import math
import numbers
import reprlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from topk_lab import results
from topk_lab.contract.words import check_word, positive_int, type_name
from topk_lab.models.bootstrap import drawn_medians, geomean, geomean_interval

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ACROSS",
    "UNCHANGED",
    "VERDICTS",
    "compare",
    "describe",
    "fails_with",
    "judge",
    "summary",
]

# From what should be looked at first to what need not be.
VERDICTS = (
    *("broken", "slower", "missing", "failing", "ambiguous"),
    *("faster", "mended", "new", "same", "untimed"),
)
UNCHANGED = ("same", "untimed")

ACROSS = {"device": ("kind", "target", "device"), "policy": ("policy",)}
"""What may be allowed to differ -> the fields of a cell's identity that are then left out."""

# What may differ between the sides of a line, and what is the same for both.
SIDE_FIELDS = ("kind", "target", "device", "variant", "policy", "status", "run")
SHARED_FIELDS = tuple(name for name in results.IDENTITY if name not in SIDE_FIELDS)
TIMES = ("median_us", "low_us", "high_us", "n", "samples_us")


class _Times(NamedTuple):
    """Times of a side: the median, the ends of the interval (us), and the number of samples."""

    median: float
    low: float
    high: float
    n: int


def _tick(samples: Sequence[np.ndarray]) -> float:
    """The timer's tick: the least step between values of a side on which values recur.

    No step is smaller than a tick. Where no value recurs the timer is finer than the noise, and
    where one alone does, its tick is not to be seen: the others may be anything, such as late
    interrupts.
    """
    steps = []
    for times in samples:
        values, counts = np.unique(times.round(6), return_counts=True)
        if (counts > 1).sum() > 1:
            steps.append(float(np.diff(values).min()))
    return min(steps, default=0.0)


def _times(samples: np.ndarray, tick: float) -> _Times:
    low, median, high = np.quantile(samples, (0.25, 0.5, 0.75))
    return _Times(float(median), float(low) - tick / 2, float(high) + tick / 2, len(samples))


def _judged(
    a_us: Sequence[float], b_us: Sequence[float], threshold: float, min_samples: int
) -> tuple[str, str, _Times, _Times]:
    samples = [np.asarray(times, float) for times in (a_us, b_us)]
    tick = _tick(samples)
    a, b = (_times(times, tick) for times in samples)
    fewest = min(a.n, b.n)
    if fewest < min_samples:
        return "ambiguous", f"{fewest} samples, {min_samples} are needed", a, b
    distance = max(a.median, b.median) / min(a.median, b.median) - 1
    # 1.02 / 1 - 1 is a little more than 0.02.
    far = distance > threshold and not math.isclose(distance, threshold, rel_tol=1e-9)
    apart = a.high < b.low or b.high < a.low
    stretch = 1 + threshold
    near_ends = b.high <= a.low * stretch and a.high <= b.low * stretch
    share = f"{100 * threshold:g} %"
    if far and apart:
        verdict = "slower" if b.median > a.median else "faster"
        return verdict, f"quartiles apart, medians by more than {share}", a, b
    if far:
        return "ambiguous", f"medians apart by more than {share}, quartiles overlap", a, b
    if apart and not near_ends:
        return "ambiguous", f"quartiles apart, medians by no more than {share}", a, b
    return "same", f"medians apart by no more than {share}", a, b


def judge(
    a_us: Sequence[float],
    b_us: Sequence[float],
    *,
    threshold: float = 0.02,
    min_samples: int = 10,
) -> str:
    """Say whether B is faster or slower than A.

    Parameters
    ----------
    a_us, b_us : sequence of float
        Times of single calls (us).
    threshold : float, default 0.02
        Distance of the medians up to which nobody minds, as a share of the smaller.
    min_samples : int, default 10
        A side with fewer is ambiguous: of so few, quartiles are hardly more than single samples.

    Returns
    -------
    {"faster", "slower", "same", "ambiguous"}
        By the rule that the module states.

    Raises
    ------
    TypeError, ValueError
        A threshold below 0 or not finite, fewer than one sample asked for, or samples that are no
        times.

    Examples
    --------
    >>> from topk_lab.bench.compare import judge
    >>> judge([10.0, 10.1, 10.2] * 20, [10.9, 11.0, 11.1] * 20)
    'slower'
    """
    _check_rule(threshold, min_samples)
    for name, samples in (("a_us", a_us), ("b_us", b_us)):
        try:
            times = np.asarray(samples)
        except ValueError:  # lists of several lengths
            times = np.empty(0)
        # Texts and bools turn into floats too, if asked.
        counted = times.ndim == 1 and times.size and times.dtype.kind in "iuf"
        if not (counted and (np.isfinite(times) & (times > 0)).all()):
            raise ValueError(
                f"{name} must hold at least one time, all finite and above 0, got "
                f"{reprlib.repr(samples)}"
            )
    return _judged(a_us, b_us, threshold, min_samples)[0]


def _check_rule(threshold: float, min_samples: int) -> None:
    if isinstance(threshold, bool) or not isinstance(threshold, numbers.Real):
        raise TypeError(f"threshold must be a number, got {threshold!r} ({type_name(threshold)})")
    if not (math.isfinite(threshold) and threshold >= 0):
        raise ValueError(f"threshold must be finite and at least 0, got {threshold}")
    positive_int("min_samples", min_samples)


def compare(
    a: pd.DataFrame,
    b: pd.DataFrame | None = None,
    *,
    baseline: str | None = None,
    candidate: str | None = None,
    across: str | Sequence[str] = (),
    threshold: float = 0.02,
    min_samples: int = 10,
) -> pd.DataFrame:
    """Judge the cells of B against those of A, or a variant's against another's.

    Parameters
    ----------
    a, b : pandas.DataFrame
        Records, as `topk_lab.results.load` returns them. Without `b`, or where it is `a`, two
        variants of the same records are compared.
    baseline, candidate : str, optional
        Variants as the records spell them: A's cells of the one are compared with B's of the other.
        Default: each variant with itself.
    across : {"device", "policy"}, or a sequence of these, default ()
        What may differ between the two cells of a line. A device's cells match no other's unless it
        says so, and neither do those of a variant whose policy was changed under the same name.
        Policies of a baseline and a candidate always may.
    threshold, min_samples
        Of `judge`.

    Returns
    -------
    pandas.DataFrame
        A line for each cell of either side, in A's order and then B's; none is left out:
        ``verdict`` and ``reason``; ``ratio``, B's median as a multiple of A's; ``variant``, or
        ``"baseline -> candidate"``; the fields of a cell's identity that both sides share; and with
        ``_a`` or ``_b`` behind them ``kind``, ``target``, ``device``, ``variant``, ``policy``,
        ``status``, ``run``, ``median_us``, ``low_us``, ``high_us``, ``n``, ``samples_us``. What a
        side does not have is missing.

    Raises
    ------
    TypeError, ValueError
        Bad arguments, no records, a variant without records, devices that differ.

    Notes
    -----
    Baseline and candidate of the same records are taken from one run, the last that timed both in a
    cell: times that are divided by one another should share the state of the device. Where no run
    timed both, or the last one of either has no time, the last of each counts.
    """
    import pandas as pd

    _check_rule(threshold, min_samples)
    across = (across,) if isinstance(across, str) else tuple(across)
    for word in across:
        check_word("across", word, tuple(ACROSS))
    left_out = {name for word in across for name in ACROSS[word]}
    for name, value, other in (
        ("baseline", baseline, candidate),
        ("candidate", candidate, baseline),
    ):
        if value is None and other is not None:
            raise ValueError(f"{name} must be given too where the other is, got None")
    same_records = b is None or b is a
    if b is None and baseline is None:
        raise ValueError("b must be given, or baseline and candidate, got neither")
    b = a if same_records else b
    if baseline is not None:
        left_out |= {"variant", "policy"}
    a, b = _chosen("a", a, baseline), _chosen("b", b, candidate)
    _require_device(a, b, "device" in across)
    fields = [name for name in results.IDENTITY if name not in left_out]
    runs_a, runs_b = _runs(a, fields), _runs(b, fields)
    pairs = [
        _pair(runs_a.get(key, {}), runs_b.get(key, {}), same_records)
        for key in dict.fromkeys([*runs_a, *runs_b])
    ]
    lines = [_line(*pair, threshold, min_samples) for pair in pairs]
    alone = [(line, pair) for line, pair in zip(lines, pairs, strict=True) if None in pair]
    if alone:
        any_policy = [name for name in fields if name != "policy"]
        of_side = [
            {results.identity(cell, any_policy) for cell in frame.to_dict("records")}
            for frame in (a, b)
        ]
        for line, pair in alone:
            loose = results.identity(pair[0] or pair[1], any_policy)
            if all(loose in found for found in of_side):
                line["reason"] += ", the other has it under another policy"
    return pd.DataFrame(lines, columns=_COLUMNS)


_COLUMNS = [
    *("verdict", "reason", "ratio", "variant", *SHARED_FIELDS),
    *(f"{name}_{side}" for side in "ab" for name in (*SIDE_FIELDS, *TIMES)),
]


def _chosen(name: str, frame: pd.DataFrame, variant: str | None) -> pd.DataFrame:
    missing = [
        column
        for column in (*results.IDENTITY, "status", "run", "recorded", "samples_us")
        if column not in frame
    ]
    if missing:
        raise ValueError(f"{name} must hold records, got no column {', '.join(missing)}")
    if frame.empty:
        raise ValueError(f"{name} must hold at least one cell, got none")
    if variant is None:
        return frame
    chosen = frame[frame["variant"] == variant]
    if chosen.empty:
        there = ", ".join(dict.fromkeys(frame["variant"]))
        raise ValueError(f"variant must be one of those of {name} ({there}), got {variant!r}")
    return chosen


def _require_device(a: pd.DataFrame, b: pd.DataFrame, across: bool) -> None:
    """Times of two devices say nothing of the code, unless that is the question."""
    places = [
        list(dict.fromkeys(f"{cell.kind} on {cell.device}" for cell in frame.itertuples()))
        for frame in (a, b)
    ]
    said = [" and ".join(of) for of in places]
    if across:
        for name, of, text in zip("ab", places, said, strict=True):
            if len(of) > 1:
                raise ValueError(f"{name} must hold cells of one device across devices, got {text}")
    elif not set(places[0]) & set(places[1]):
        raise ValueError(
            f"a and b must hold cells of the same device, got {said[0]}, and {said[1]}; "
            "across device compares them"
        )


def _runs(frame: pd.DataFrame, fields: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Identity of a cell -> its runs, oldest first, each with the last line that it wrote."""
    cells = frame.to_dict("records")
    keys = [results.identity(cell, fields) for cell in cells]
    found: dict[str, dict[str, dict[str, Any]]] = {key: {} for key in keys}
    for key, cell in sorted(zip(keys, cells, strict=True), key=lambda keyed: keyed[1]["recorded"]):
        runs = found[key]
        runs.pop(cell["run"], None)
        runs[cell["run"]] = cell
    return found


def _pair(
    of_a: dict[str, Any], of_b: dict[str, Any], same_records: bool
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The last run of either side; of the same records the last that both share, if all is well."""
    last = tuple(next(reversed(runs.values()), None) for runs in (of_a, of_b))
    shared = [run for run in of_a if run in of_b] if same_records else []
    timed = [run for run in shared if _is_timed(of_a[run]) and _is_timed(of_b[run])]
    if timed and all(_is_timed(cell) for cell in last):
        return of_a[timed[-1]], of_b[timed[-1]]
    return last


def _line(
    a: dict[str, Any] | None, b: dict[str, Any] | None, threshold: float, min_samples: int
) -> dict[str, Any]:
    known = a or b
    names = list(dict.fromkeys(cell["variant"] for cell in (a, b) if cell))
    line = {"variant": " -> ".join(names), **{name: known[name] for name in SHARED_FIELDS}}
    for side, cell in (("a", a), ("b", b)):
        line |= {f"{name}_{side}": cell and cell[name] for name in SIDE_FIELDS}
    sides = [side for side, cell in (("a", a), ("b", b)) if cell and _is_timed(cell)]
    if sides == ["a", "b"] and a["status"] == b["status"] == "ok":
        verdict, reason, *times = _judged(a["samples_us"], b["samples_us"], threshold, min_samples)
        for side, cell, of_side in zip("ab", (a, b), times, strict=True):
            line |= _of_side(side, of_side, cell["samples_us"])
        if a["variant"] == b["variant"]:
            reason += "".join(
                f"; {name} {value} -> {b['policy'].get(name)}"
                for name, value in a["policy"].items()
                if value != b["policy"].get(name)
            )
        ratio = times[1].median / times[0].median
        return line | {"verdict": verdict, "reason": reason, "ratio": ratio}
    for side in sides:
        samples_us = {"a": a, "b": b}[side]["samples_us"]
        times = np.asarray(samples_us, float)
        line |= _of_side(side, _times(times, _tick([times])), samples_us)
    if a is None or b is None:
        only = "B" if a is None else "A"
        return line | {"verdict": "new" if a is None else "missing", "reason": f"in {only} alone"}
    if (a["status"], b["status"]) != ("ok", "ok"):
        verdict = (
            "broken" if a["status"] == "ok" else "mended" if b["status"] == "ok" else "failing"
        )
        why = (a if b["status"] == "ok" else b)["reason"]
        return line | {"verdict": verdict, "reason": f"{a['status']} -> {b['status']}: {why}"}
    without = " and ".join(side.upper() for side in "ab" if side not in sides)
    verdict = "ambiguous" if sides else "untimed"
    return line | {"verdict": verdict, "reason": f"no times in {without}"}


def _is_timed(cell: dict[str, Any]) -> bool:
    return hasattr(cell["samples_us"], "__len__")


def _of_side(side: str, times: _Times, samples: list[float]) -> dict[str, Any]:
    return {f"{name}_{side}": value for name, value in zip(TIMES, (*times, samples), strict=True)}


def fails_with(verdict: str) -> tuple[str, ...]:
    """The verdicts that are at least as bad as one: slower means broken too."""
    return (verdict, "broken") if verdict == "slower" else (verdict,)


def describe(line: Mapping[str, Any]) -> str:
    """Name a cell in few words.

    Parameters
    ----------
    line : mapping
        A line of what `compare` returns, or of records.

    Returns
    -------
    str
        Shape, workload with its arguments, and how times were taken, as far as there are such.
    """
    known = {
        name: int(value) if isinstance(value, float) else value
        for name, value in line.items()
        if name in SHARED_FIELDS and value is not None and value == value
    }
    words = [
        f"{known['num_rows']} x {known['num_cols']}"
        if {"num_rows", "num_cols"} <= set(known)
        else "",
        f"k {known['k']}" if "k" in known else "",
        known.get("workload"),
        *(f"{name} {value}" for name, value in (known.get("workload_args") or {}).items()),
        *(f"{name} {known[name]}" for name in ("next_n", "seed") if known.get(name)),
        f"{known['mode']} of {known['calls_per_graph']} calls"
        if {"mode", "calls_per_graph"} <= set(known)
        else known.get("mode"),
        known.get("cache"),
    ]
    return ", ".join(word for word in words if word)


def summary(lines: pd.DataFrame, *, draws: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Average the ratios of the cells that were timed on both sides.

    Parameters
    ----------
    lines : pandas.DataFrame
        As `compare` returns them.
    draws : int, default 1000
        Of the bootstrap over cells and over the samples of both sides.
    seed : int, default 0

    Returns
    -------
    pandas.DataFrame
        A row for all and, where there are several, one for each variant: ``variant`` (``"all"``
        in the first); ``geomean`` of B's time as a multiple of A's and its 95 % interval ``low``,
        ``high``; ``least`` and ``greatest`` ratio; ``cells``. Empty if nothing was timed.
    """
    import pandas as pd

    timed = lines[lines["ratio"].notna()]
    columns = ["variant", "geomean", "low", "high", "least", "greatest", "cells"]
    if timed.empty:
        return pd.DataFrame(columns=columns)
    rng = np.random.default_rng(seed)
    a, b = (drawn_medians(timed[f"samples_us_{side}"], draws, rng) for side in "ab")
    ratios, variants = timed["ratio"].to_numpy(float), timed["variant"].to_numpy()
    groups = {"all": np.full(len(timed), True)}
    if len(set(variants)) > 1:
        groups |= {variant: variants == variant for variant in dict.fromkeys(variants)}
    rows = []
    for variant, chosen in groups.items():
        low, high = geomean_interval(b[:, chosen] / a[:, chosen], rng)
        rows.append(
            {
                "variant": variant,
                "geomean": geomean(ratios[chosen]),
                "low": low,
                "high": high,
                "least": ratios[chosen].min(),
                "greatest": ratios[chosen].max(),
                "cells": int(chosen.sum()),
            }
        )
    return pd.DataFrame(rows, columns=columns)
