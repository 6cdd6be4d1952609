"""Which statements of the sources, and of this package, do the records bear out?

``data/claims.toml`` lists every claim with the published figure and the query that decides it. A
verdict needs records: without them a claim is ``published only``, with the reason. A time is
``reproduced`` on the hardware that it was published for and nowhere else; on another device a
ratio can show the same direction or the other one, which refutes nothing. Exactness and counts are
properties of the algorithm, so any target decides them.
"""

from __future__ import annotations

import math
import os
import statistics
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topk_lab import results
from topk_lab.environment import DEVICE_TARGETS

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["OUTCOMES", "Claim", "evaluate", "load_claims", "not_reproduced", "summary_line"]

REPRODUCED = "reproduced"
SAME_DIRECTION = "same direction"
OTHER_DIRECTION = "other direction"
NOT_REPRODUCED = "not reproduced"
PUBLISHED_ONLY = "published only"
OUTCOMES = (REPRODUCED, SAME_DIRECTION, OTHER_DIRECTION, NOT_REPRODUCED, PUBLISHED_ONLY)

CLAIM_KINDS = ("exact", "count", "time")
COMPARISONS = ("equal", "at least", "at most")


def _by_events_over_profiler(cell: Mapping[str, Any]) -> float | None:
    kernel_us = cell["counters"].get("kernel_us")
    return cell["median_us"] / kernel_us if kernel_us else None


# What is divided of two variants, by measure; None where it was not taken.
RATIOS: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    "ratio": lambda cell: cell["median_us"],
    "agreement": _by_events_over_profiler,
}
_OF_TWO = " or ".join(RATIOS)

STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "geomean": lambda values: math.exp(statistics.fmean(map(math.log, values))),
    "median": statistics.median,
    "min": min,
    "max": max,
    "spread": lambda values: max(values) / min(values),
}


@dataclass(frozen=True)
class Claim:
    """One statement, and how records decide it.

    Attributes
    ----------
    id, source, statement : str
        Its name, who states it, and what is stated.
    kind : {"exact", "count", "time"}
        exact: cells have status ok. count: a counter has a value. time: a median, or a ratio of
        two, has one.
    published : float or dict
        The published figure; a dict gives one for each value of the field `by`.
    unit : str
        Unit of `published`.
    experiment : str
        Experiment whose cells decide. Empty only with `why`.
    cells : int
        Distinct cells that must be there (for each target; for ratios: pairs).
    targets : tuple of str
        exact and count: the claim must hold on each of these, and on any other that has records.
        time: those whose times count; default ``hip`` and ``cuda``.
    query : dict
        Field -> value, or list of allowed values. ``workload_args.case`` reaches into a dict.
    measure : str
        count: ``counters.<name>``. time: ``median_us``; ``ratio``, of two variants' times; or
        ``agreement``, that ratio over the same of the device's profiler (``counters.kernel_us``).
    by : str
        Field that tells the values of a `published` dict apart.
    statistic : str
        How many values become one: geomean, median, min, max, spread (max / min). Default: counts
        must all be equal, of times the median.
    compare : {"equal", "at least", "at most"}
        How the found value must stand to the published one.
    tolerance : float
        Relative.
    baseline, candidate : str
        Variants of a ratio (time of the first / time of the second).
    hardware : str
        time: part of the name of the device that the figure was published for.
    why : str
        Why this package can't decide the claim at all.
    """

    id: str
    source: str
    statement: str
    kind: str
    published: Any
    unit: str = ""
    experiment: str = ""
    cells: int = 1
    targets: tuple[str, ...] = ()
    query: Mapping[str, Any] = field(default_factory=dict)
    measure: str = ""
    by: str = ""
    statistic: str = ""
    compare: str = "equal"
    tolerance: float = 0.0
    baseline: str = ""
    candidate: str = ""
    hardware: str = ""
    why: str = ""

    def problem(self) -> str | None:
        """What is wrong with the way the claim is stated, or None."""
        if self.kind not in CLAIM_KINDS:
            return f"kind must be one of {', '.join(CLAIM_KINDS)}, got {self.kind!r}"
        if self.compare not in COMPARISONS:
            return f"compare must be one of {', '.join(COMPARISONS)}, got {self.compare!r}"
        if self.statistic and self.statistic not in STATISTICS:
            return f"statistic must be one of {', '.join(STATISTICS)}, got {self.statistic!r}"
        if self.why:
            return None
        if not self.experiment:
            return "a claim must have an experiment, or a why"
        if self.kind != "time" and not self.targets:
            return f"a claim of kind {self.kind} must have targets"
        if self.kind == "count" and not self.measure.startswith("counters."):
            return f"measure of a count must be counters.<name>, got {self.measure!r}"
        if self.kind == "time" and self.measure not in ("median_us", *RATIOS):
            allowed = ", ".join(("median_us", *RATIOS))
            return f"measure of a time must be one of {allowed}, got {self.measure!r}"
        if self.kind == "time" and not self.hardware:
            return "a claim of kind time must name its hardware"
        if (self.measure in RATIOS) != bool(self.baseline and self.candidate):
            return f"baseline and candidate must be given exactly when measure is {_OF_TWO}"
        if isinstance(self.published, Mapping) != bool(self.by):
            return "by must be given exactly when published is a table"
        return None


@dataclass(frozen=True)
class _Finding:
    outcome: str
    note: str
    found: str
    used: Sequence[Mapping[str, Any]] = ()

    @property
    def verdict(self) -> str:
        if self.outcome in (SAME_DIRECTION, OTHER_DIRECTION):
            return f"{self.outcome} on {self.note}"
        return f"{PUBLISHED_ONLY} ({self.note})" if self.outcome == PUBLISHED_ONLY else self.outcome


def load_claims(path: str | os.PathLike[str] | None = None) -> list[Claim]:
    """Read the list of claims.

    Parameters
    ----------
    path : path, optional
        Default: ``data/claims.toml``.

    Returns
    -------
    list of Claim
        In the order of the file.

    Raises
    ------
    ValueError
        An unknown field, a missing one, an id given twice, or a claim that says too little to be
        decided; the line names the claim.
    """
    path = Path(path) if path is not None else results.data_root() / "claims.toml"
    known = {item.name for item in fields(Claim)}
    claims: dict[str, Claim] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("claim", []):
        name = entry.get("id", "?")
        unknown = sorted(set(entry) - known)
        if unknown:
            raise ValueError(f"claim {name}: no field is named {', '.join(unknown)}")
        if "targets" in entry:
            entry["targets"] = tuple(entry["targets"])
        try:
            claim = Claim(**entry)
        except TypeError as error:
            raise ValueError(f"claim {name}: {error}") from error
        problem = claim.problem()
        if problem or name in claims:
            raise ValueError(f"claim {name}: {problem or 'the id is taken'}")
        claims[name] = claim
    return list(claims.values())


def evaluate(records: pd.DataFrame, claims: Iterable[Claim] | None = None) -> pd.DataFrame:
    """Judge every claim by the records.

    Parameters
    ----------
    records : pandas.DataFrame
        As `results.load` returns it. Of a cell that was run more than once the last run counts.
    claims : iterable of Claim, optional
        Default: all of ``data/claims.toml``.

    Returns
    -------
    pandas.DataFrame
        One row a claim: ``id``, ``source``, ``kind``, ``statement``, ``published`` (text with
        unit), ``found`` (text; empty without records), ``verdict`` (reproduced | same direction on
        <device> | other direction on <device> | not reproduced | published only (<why>)),
        ``outcome`` (its first words, one of `OUTCOMES`), ``cells`` (how many decided),
        ``provenance``.
    """
    import pandas as pd

    current = results.latest(records)
    by_experiment: dict[str, list[dict[str, Any]]] = {}
    for position, cell in enumerate(current.to_dict("records")):
        by_experiment.setdefault(cell["experiment"], []).append({**cell, "position": position})
    rows = []
    for claim in load_claims() if claims is None else claims:
        cells = [
            cell for cell in by_experiment.get(claim.experiment, []) if _matches(cell, claim.query)
        ]
        finding = _judge(claim, cells)
        used = current.iloc[[cell["position"] for cell in finding.used]]
        rows.append(
            {
                "id": claim.id,
                "source": claim.source,
                "kind": claim.kind,
                "statement": claim.statement,
                "published": _published_text(claim),
                "found": finding.found,
                "verdict": finding.verdict,
                "outcome": finding.outcome,
                "cells": len(used),
                "provenance": results.provenance(used),
            }
        )
    columns = ("id", "source", "kind", "statement", "published", "found", "verdict", "outcome")
    return pd.DataFrame(rows, columns=[*columns, "cells", "provenance"])


def not_reproduced(frame: pd.DataFrame) -> list[str]:
    """Ids of the claims that records contradict.

    Parameters
    ----------
    frame : pandas.DataFrame
        As `evaluate` returns it.

    Returns
    -------
    list of str
    """
    return list(frame.loc[frame["outcome"] == NOT_REPRODUCED, "id"])


def summary_line(frame: pd.DataFrame) -> str:
    """Count the verdicts, in one line.

    Parameters
    ----------
    frame : pandas.DataFrame
        As `evaluate` returns it.

    Returns
    -------
    str
    """
    counts = frame["outcome"].value_counts()
    parts = [f"{int(counts.get(outcome, 0))} {outcome}" for outcome in OUTCOMES]
    return f"{len(frame)} claims: {', '.join(parts)}."


def _field(cell: Mapping[str, Any], name: str) -> Any:
    value: Any = cell
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _matches(cell: Mapping[str, Any], query: Mapping[str, Any]) -> bool:
    return all(
        _field(cell, name) in wanted if isinstance(wanted, list) else _field(cell, name) == wanted
        for name, wanted in query.items()
    )


def _number(value: float) -> str:
    return f"{value:.10g}" if float(value).is_integer() else f"{value:.5g}"


def _value_text(value: Any) -> str:
    return ", ".join(_number(item) for item in (value if isinstance(value, list) else [value]))


def _published_text(claim: Claim) -> str:
    if isinstance(claim.published, Mapping):
        text = ", ".join(_value_text(value) for value in claim.published.values())
    else:
        text = _value_text(claim.published)
    bound = "" if claim.compare == "equal" else f"{claim.compare} "
    within = f" (within {claim.tolerance:.0%})" if claim.tolerance else ""
    unit = claim.unit if claim.unit in ("x", "%") else f" {claim.unit}".rstrip()
    return f"{bound}{text}{unit}{within}"


def _judge(claim: Claim, cells: list[dict[str, Any]]) -> _Finding:
    if claim.why:
        return _Finding(PUBLISHED_ONLY, claim.why, "")
    if claim.kind == "exact":
        return _judge_exact(claim, cells)
    if claim.kind == "count":
        return _judge_count(claim, cells)
    return _judge_time(claim, cells)


def _by_target(
    claim: Claim, cells: list[dict[str, Any]]
) -> Iterable[tuple[str, int, list[dict[str, Any]]]]:
    """Each target, how many cells it must have, and those it has.

    A target that the claim doesn't ask for needs none, but what was recorded there still counts.
    """
    others = sorted({cell["target"] for cell in cells} - set(claim.targets))
    for target in (*claim.targets, *others):
        needed = claim.cells if target in claim.targets else 0
        yield target, needed, [cell for cell in cells if cell["target"] == target]


def _judge_exact(claim: Claim, cells: list[dict[str, Any]]) -> _Finding:
    counts, missing, failed, used = [], [], False, []
    for target, needed, mine in _by_target(claim, cells):
        ran = [cell for cell in mine if cell["status"] != "skipped"]
        exact = sum(cell["status"] == "ok" for cell in ran)
        failed |= exact < len(ran)
        used += ran
        if ran:
            counts.append(f"{exact}/{max(needed, len(ran))} on {target}")
        if len(ran) < needed:
            missing.append(f"{len(ran)} of {needed} cells on {target}")
    found = ", ".join(counts)
    if failed:
        return _Finding(NOT_REPRODUCED, "", found, used)
    if missing:
        return _Finding(PUBLISHED_ONLY, _lacking(claim, used, missing), found, used)
    return _Finding(REPRODUCED, "", found, used)


def _unrecorded(claim: Claim) -> str:
    place = f" on {claim.hardware}" if claim.hardware else ""
    return f"no record of experiment {claim.experiment}{place}"


def _lacking(claim: Claim, used: Sequence[Any], missing: Sequence[str]) -> str:
    if not used:
        return _unrecorded(claim)
    return f"recorded: {', '.join(missing)}"


def _judge_count(claim: Claim, cells: list[dict[str, Any]]) -> _Finding:
    texts: dict[str, str] = {}
    missing, used, holds = [], [], True
    for target, needed, mine in _by_target(claim, cells):
        counted = [cell for cell in mine if _field(cell, claim.measure) is not None]
        used += counted
        pairs = _pairs(claim, counted)
        if pairs is None or len(counted) < needed:
            if needed:
                missing.append(f"{len(counted)} of {needed} cells on {target}")
            continue
        texts[target] = ", ".join(_value_text(found) for found, _ in pairs)
        holds &= all(_agrees(claim, found, published) for found, published in pairs)
    found = _merged(texts)
    if not holds:
        return _Finding(NOT_REPRODUCED, "", found, used)
    if missing:
        return _Finding(PUBLISHED_ONLY, _lacking(claim, used, missing), found, used)
    return _Finding(REPRODUCED, "", found, used)


def _merged(texts: Mapping[str, str]) -> str:
    if not texts:
        return ""
    if len(set(texts.values())) == 1:
        return f"{next(iter(texts.values()))} on {', '.join(texts)}"
    return ", ".join(f"{text} on {target}" for target, text in texts.items())


def _pairs(claim: Claim, cells: Sequence[Mapping[str, Any]]) -> list[tuple[Any, Any]] | None:
    """Found and published values side by side; None where a published one has no counterpart."""
    if not claim.by:
        values = [_one_value(_field(cell, claim.measure)) for cell in cells]
        found = _reduced(claim, values)
        return None if found is None else [(found, claim.published)]
    pairs = []
    for key, published in claim.published.items():
        values = [
            _one_value(_field(cell, claim.measure))
            for cell in cells
            if _key(_field(cell, claim.by)) == key
        ]
        found = _reduced(claim, values)
        if found is None:
            return None
        pairs.append((found, published))
    return pairs


def _key(value: Any) -> str:
    """Spell a field's value as TOML keys are: whole numbers without a point."""
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def _one_value(value: Any) -> Any:
    """A list of equal numbers counts as that number: every row of a case has the same splits."""
    if isinstance(value, list) and len(set(value)) == 1:
        return value[0]
    return value


def _reduced(claim: Claim, values: Sequence[Any]) -> Any:
    if not values:
        return None
    if claim.statistic or claim.kind == "time":
        return STATISTICS[claim.statistic or "median"](values)
    # Without a statistic the cells must agree; when they don't, the odd one out is what is shown.
    return next((value for value in values if value != values[0]), values[0])


def _agrees(claim: Claim, found: Any, published: Any) -> bool:
    if isinstance(found, list) or isinstance(published, list):
        return found == published
    if claim.compare == "at least":
        return found >= published * (1 - claim.tolerance)
    if claim.compare == "at most":
        return found <= published * (1 + claim.tolerance)
    return math.isclose(found, published, rel_tol=claim.tolerance, abs_tol=1e-12)


def _judge_time(claim: Claim, cells: list[dict[str, Any]]) -> _Finding:
    timed = [
        cell
        for cell in cells
        if cell["kind"] == "measured"
        and cell["target"] in (claim.targets or DEVICE_TARGETS)
        and cell["status"] == "ok"
        and _is_time(cell["median_us"])
    ]
    if not timed:
        return _Finding(PUBLISHED_ONLY, _unrecorded(claim), "")
    texts, partial, same, contrary = {}, [], [], []
    for device in sorted({cell["device"] for cell in timed}):
        mine = [cell for cell in timed if cell["device"] == device]
        pairs, n = _timed_pairs(claim, mine)
        if pairs is None or n < claim.cells:
            partial.append(f"{n} of {claim.cells} cells on {device}")
            continue
        unit = claim.unit if claim.unit == "x" else f" {claim.unit}"
        texts[device] = ", ".join(_value_text(found) for found, _ in pairs) + unit
        if claim.hardware.lower() in device.lower():
            holds = all(_agrees(claim, found, published) for found, published in pairs)
            outcome = REPRODUCED if holds else NOT_REPRODUCED
            return _Finding(outcome, "", f"{texts[device]} on {device}", mine)
        direction = _same_direction(claim, pairs)
        if direction is not None:
            (same if direction else contrary).append(device)
    found = _merged(texts)
    if same:
        return _Finding(SAME_DIRECTION, ", ".join(same), found, timed)
    if contrary:
        return _Finding(OTHER_DIRECTION, ", ".join(contrary), found, timed)
    if partial:
        return _Finding(PUBLISHED_ONLY, f"recorded: {', '.join(partial)}", found, timed)
    return _Finding(
        PUBLISHED_ONLY, f"a time of {claim.hardware}, none recorded there", found, timed
    )


def _is_time(value: Any) -> bool:
    return value is not None and value > 0


def _timed_pairs(
    claim: Claim, cells: list[dict[str, Any]]
) -> tuple[list[tuple[float, Any]] | None, int]:
    if claim.measure == "median_us":
        return _pairs(claim, cells), len(cells)
    ratios = _ratios(claim, cells)
    found = _reduced(claim, ratios)
    return (None if found is None else [(found, claim.published)]), len(ratios)


def _ratios(claim: Claim, cells: list[dict[str, Any]]) -> list[float]:
    """Baseline / candidate of every pair of cells that differ in the variant alone."""
    ignored = ("variant", "policy", "target")  # a CPU is the target of Numba and torch alike
    names = [name for name in results.IDENTITY if name not in ignored]
    taken: dict[str, dict[str, float]] = {}
    for cell in cells:
        value = RATIOS[claim.measure](cell)
        if value is not None:
            key = repr([cell[name] for name in names])
            taken.setdefault(key, {})[cell["variant"]] = value
    return [
        pair[claim.baseline] / pair[claim.candidate]
        for pair in taken.values()
        if claim.baseline in pair and claim.candidate in pair
    ]


def _same_direction(claim: Claim, pairs: Sequence[tuple[float, Any]]) -> bool | None:
    """Whether another device shows the same effect; None for an absolute time, which has none."""
    found, published = pairs[0]
    if claim.statistic == "spread" or claim.measure == "agreement":
        return _agrees(claim, found, published)
    if claim.measure != "ratio":
        return None
    return found >= 1 if published == 1 else (found > 1) == (published > 1)
