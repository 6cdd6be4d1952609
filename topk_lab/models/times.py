"""Does the time grow with the rows, in which steps, and how near does it come to a read?

Every function takes the records of ``latency_vs_batch`` as `topk_lab.results.load` returns them and
counts only cells with status ok. Of a cell that was run more than once the last run counts; times
that are divided by one another come from one run. Intervals are 95 % bootstrap intervals, the same
for the same records and seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from topk_lab.models.bootstrap import (
    drawn_medians,
    fit_line,
    geomean,
    geomean_interval,
    interval,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "FIT_TOLERANCE",
    "FLAT_GROWTH",
    "REDUCE",
    "THROUGHPUT_ELASTICITY",
    "bandwidth_share",
    "fit_waves",
    "flatness",
    "is_read",
    "speedups",
]

FLAT_GROWTH = 1.10
"""Growth of the time up to which it counts as flat.

SGLang pull request 36004 calls "about 36.8 us from batch 8 to batch 256" flat: 32 times the rows at
a growth of 1.00, to the digit that "about" leaves, which is a few per cent. 1.10 is above that and
far below 32, what a device whose throughput is the limit would show.
"""

THROUGHPUT_ELASTICITY = 0.5
"""Elasticity (growth of log time over growth of log rows) from which throughput is the limit.

1 where twice the rows take twice the time, 0 where they take the same. From one half on, the rows
cost more than what is fixed.
"""

FIT_TOLERANCE = 0.10
"""Greatest relative residual with which times count as steps of equal height."""

LATENCY_BOUND, THROUGHPUT_BOUND = "latency-bound", "throughput-bound"
BETWEEN, UNDECIDED = "between", "undecided"
FITS = "fits"
DOES_NOT_FIT = "does not fit"
TOO_FEW = "not identifiable: fewer than 3 points"
ONE_WAVE = "not identifiable: all rows fit in one wave"
SAME_WAVES = "not identifiable: all rows take as many waves"

GROUP = ["kind", "device", "variant", "k", "num_cols", "cache"]
READ_PREFIX = "read_"
REDUCE = "delegate_reduce"
"""The delegate selection's first launch alone, as records name it: a read kernel of ours."""
RESIDENT, UNITS = "resident_blocks", "units"


def is_read(variant: str) -> bool:
    """Whether a variant, as records spell it, does nothing but read the rows."""
    return variant == REDUCE or variant.startswith(READ_PREFIX)


def _timed(frame: pd.DataFrame, *, sweep_only: bool = True) -> pd.DataFrame:
    """Cells with a time, oldest first; of the main sweep only, unless the occupancy axis too."""
    needed = [*GROUP, "run", "recorded", "status", "num_rows", "workload_args", "median_us"]
    missing = [name for name in (*needed, "samples_us", "counters") if name not in frame]
    if missing:
        raise ValueError(f"frame must hold records, got no column {', '.join(missing)}")
    timed = frame[(frame["status"] == "ok") & frame["median_us"].notna()]
    if sweep_only:
        timed = timed[~timed["workload_args"].map(bool).astype(bool)]
    return timed.sort_values("recorded", kind="stable")


def _groups(cells: pd.DataFrame, names: Sequence[str]) -> Iterator[tuple[dict, pd.DataFrame]]:
    """Groups with equal `names`, each with one cell a row count, the last that was recorded."""
    for key, group in cells.groupby(list(names), dropna=False, sort=True):
        last = group.drop_duplicates("num_rows", keep="last").sort_values("num_rows")
        yield dict(zip(names, key, strict=True)), last


def fit_waves(
    frame: pd.DataFrame, *, at_once: str = RESIDENT, draws: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """Fit ``time = fixed + per_wave * ceil(num_rows / blocks at once)`` by least squares.

    Parameters
    ----------
    frame : pandas.DataFrame
        Records; cells without `at_once` among their counters are left out. Cells of the
        occupancy axis (``workload_args.blocks_per_unit``) are fitted by themselves.
    at_once : {"resident_blocks", "units"}
        Blocks that a wave is made of: all that are resident, as if those of one unit did not hold
        each other up; or one for each unit, as if they took turns.
    draws : int, default 2000
        Of the bootstrap over points and over the samples of each.
    seed : int, default 0

    Returns
    -------
    pandas.DataFrame
        One row a group: ``kind``, ``device``, ``variant``, ``k``, ``num_cols``, ``cache``, ``held``
        (whether it is of the occupancy axis), ``blocks_per_unit``, ``resident_blocks``,
        ``at_once`` (blocks of a wave);
        ``fixed_us`` and ``per_wave_us``, each with ``_low`` and ``_high`` in place of ``_us``;
        ``one_wave_us``, the mean time of the rows of one wave (NaN without any); ``r2``;
        ``residual``, the largest relative one; ``points``, ``waves`` (the most of them) and
        ``verdict``: fits (residual at most `FIT_TOLERANCE`), does not fit, or not identifiable
        with the reason. What is not identifiable is NaN.
    """
    import pandas as pd

    if at_once not in (RESIDENT, UNITS):
        raise ValueError(f"at_once must be {RESIDENT} or {UNITS}, got {at_once!r}")
    cells = _timed(frame, sweep_only=False)
    cells = cells[cells["counters"].map(lambda counters: at_once in counters).astype(bool)]
    cells = cells.assign(
        held=[bool(arguments) for arguments in cells["workload_args"]],
        blocks_per_unit=[counters.get("blocks_per_unit") for counters in cells["counters"]],
        resident_blocks=[counters.get(RESIDENT) for counters in cells["counters"]],
        at_once=[counters[at_once] for counters in cells["counters"]],
    )
    rows = []
    for key, group in _groups(cells, [*GROUP, *_FIT_KEYS]):
        waves = np.ceil(group["num_rows"].to_numpy() / key["at_once"])
        rows.append(key | _wave_fit(waves, group, draws, np.random.default_rng(seed)))
    return pd.DataFrame(rows, columns=[*GROUP, *_FIT_KEYS, *_FIT_COLUMNS])


_FIT_KEYS = ("held", "blocks_per_unit", "resident_blocks", "at_once")
_FIT_COLUMNS = (
    *("fixed_us", "fixed_low", "fixed_high", "per_wave_us", "per_wave_low", "per_wave_high"),
    *("one_wave_us", "r2", "residual", "points", "waves", "verdict"),
)


def _wave_fit(
    waves: np.ndarray, cells: pd.DataFrame, draws: int, rng: np.random.Generator
) -> dict[str, Any]:
    times = cells["median_us"].to_numpy(float)
    first = times[waves == 1]
    fit: dict[str, Any] = dict.fromkeys(_FIT_COLUMNS, float("nan")) | {
        "one_wave_us": float(first.mean()) if len(first) else float("nan"),
        "points": len(times),
        "waves": int(waves.max()),
    }
    if len(times) < 3:
        return fit | {"verdict": TOO_FEW}
    if len(set(waves)) == 1:
        # Any split of the mean into a fixed part and a wave's part fits as well.
        return fit | {"verdict": ONE_WAVE if waves[0] == 1 else SAME_WAVES}
    fixed, per_wave = fit_line(waves[None], times[None])
    expected = fixed + per_wave * waves
    chosen = rng.integers(len(times), size=(draws, len(times)))
    drawn = np.take_along_axis(drawn_medians(cells["samples_us"], draws, rng), chosen, axis=1)
    fixed_drawn, per_wave_drawn = fit_line(waves[chosen], drawn)
    residual = float(np.max(np.abs(times - expected) / times))
    spread = ((times - times.mean()) ** 2).sum()
    fit["fixed_us"], fit["per_wave_us"] = float(fixed[0]), float(per_wave[0])
    fit["fixed_low"], fit["fixed_high"] = interval(fixed_drawn)
    fit["per_wave_low"], fit["per_wave_high"] = interval(per_wave_drawn)
    return fit | {
        "r2": float(1 - ((times - expected) ** 2).sum() / spread) if spread else float("nan"),
        "residual": residual,
        "verdict": FITS if residual <= FIT_TOLERANCE else DOES_NOT_FIT,
    }


def flatness(
    frame: pd.DataFrame, least: int = 8, most: int = 256, *, draws: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """Say whether the time stays the same from `least` rows to `most`.

    Parameters
    ----------
    frame : pandas.DataFrame
        Records; the occupancy axis is left out.
    least, most : int
        Row counts, both included. The defaults are those of the published statement.
    draws : int, default 2000
        Of the bootstrap over the samples of each point.
    seed : int, default 0

    Returns
    -------
    pandas.DataFrame
        One row a group: ``kind``, ``device``, ``variant``, ``k``, ``num_cols``, ``cache``;
        ``points``; ``least_rows``, ``most_rows`` and the times there, ``least_us`` and ``most_us``;
        ``growth`` (most_us / least_us), ``growth_low``, ``growth_high``; ``elasticity``, log growth
        over log of the rows' growth; ``spread`` (longest over shortest time of all points),
        ``spread_low``, ``spread_high``; ``verdict``: latency-bound (the whole interval of the
        growth is at most `FLAT_GROWTH`), throughput-bound (that of the elasticity is at least
        `THROUGHPUT_ELASTICITY`), between, or undecided where an interval holds a bound, or either
        end was not timed (growth and elasticity are NaN then).

    Raises
    ------
    ValueError
        `least` is not below `most`.

    Notes
    -----
    A spread is a maximum over a minimum, which noise widens: with more points it grows even where
    the time is flat. The verdict goes by the growth.
    """
    import pandas as pd

    if not 0 < least < most:
        raise ValueError(f"least must be above 0 and below most, got {least} and {most}")
    cells = _timed(frame)
    cells = cells[cells["num_rows"].between(least, most)]
    rows = []
    for key, group in _groups(cells, GROUP):
        times = group["median_us"].to_numpy(float)
        drawn = drawn_medians(group["samples_us"], draws, np.random.default_rng(seed))
        num_rows = group["num_rows"].to_numpy()
        whole = num_rows[0] == least and num_rows[-1] == most
        growths = drawn[:, -1] / drawn[:, 0] if whole else np.empty(0)
        growth_low, growth_high = interval(growths)
        spread_low, spread_high = interval(drawn.max(axis=1) / drawn.min(axis=1))
        rows.append(
            key
            | {
                "points": len(times),
                "least_rows": num_rows[0],
                "most_rows": num_rows[-1],
                "least_us": times[0],
                "most_us": times[-1],
                "growth": times[-1] / times[0] if whole else float("nan"),
                "growth_low": growth_low,
                "growth_high": growth_high,
                "elasticity": _elasticity(times[-1] / times[0], group) if whole else float("nan"),
                "spread": times.max() / times.min(),
                "spread_low": spread_low,
                "spread_high": spread_high,
                "verdict": _flat_verdict(growth_low, growth_high, group) if whole else UNDECIDED,
            }
        )
    return pd.DataFrame(rows, columns=[*GROUP, *_FLAT_COLUMNS])


_FLAT_COLUMNS = (
    *("points", "least_rows", "most_rows", "least_us", "most_us"),
    *("growth", "growth_low", "growth_high", "elasticity"),
    *("spread", "spread_low", "spread_high", "verdict"),
)


def _elasticity(growth: float, cells: pd.DataFrame) -> float:
    rows = cells["num_rows"]
    return float(np.log(growth) / np.log(rows.iloc[-1] / rows.iloc[0]))


def _flat_verdict(low: float, high: float, cells: pd.DataFrame) -> str:
    if high <= FLAT_GROWTH:
        return LATENCY_BOUND
    least, most = (_elasticity(growth, cells) for growth in (low, high))
    if least >= THROUGHPUT_ELASTICITY:
        return THROUGHPUT_BOUND
    return BETWEEN if low > FLAT_GROWTH and most < THROUGHPUT_ELASTICITY else UNDECIDED


def speedups(
    frame: pd.DataFrame, baseline: str, candidate: str, *, draws: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """Average ``baseline time / candidate time`` over the row counts.

    Parameters
    ----------
    frame : pandas.DataFrame
        Records; the occupancy axis is left out.
    baseline, candidate : str
        Variants as the records spell them.
    draws : int, default 2000
        Of the bootstrap over pairs and over the samples of both.
    seed : int, default 0

    Returns
    -------
    pandas.DataFrame
        One row for each ``kind``, ``device``, ``k``, ``num_cols`` and ``cache``: ``baseline``,
        ``candidate``, ``speedup`` (geometric mean) and its interval ``low``, ``high``; ``least``
        and ``greatest`` ratio; ``pairs``, how many row counts were timed for both in one run.

    Raises
    ------
    ValueError
        No pair at all.
    """
    import pandas as pd

    cells = _timed(frame)
    shape = [name for name in GROUP if name != "variant"]
    both = [
        cells[cells["variant"] == variant].drop_duplicates(["run", *shape, "num_rows"], keep="last")
        for variant in (baseline, candidate)
    ]
    names = [*shape, "num_rows", "run", "recorded"]
    pairs = both[0].merge(both[1], on=names, suffixes=("_baseline", "_candidate"))
    if pairs.empty:
        raise ValueError(
            f"frame must hold times of baseline {baseline!r} and candidate {candidate!r} in one "
            f"run, got {len(both[0])} and {len(both[1])} that pair with none"
        )
    rows = []
    for key, group in _groups(pairs.sort_values("recorded", kind="stable"), shape):
        ratios = (group["median_us_baseline"] / group["median_us_candidate"]).to_numpy(float)
        rng = np.random.default_rng(seed)
        before, after = (
            drawn_medians(group[f"samples_us_{side}"], draws, rng)
            for side in ("baseline", "candidate")
        )
        low, high = geomean_interval(before / after, rng)
        rows.append(
            key
            | {
                "baseline": baseline,
                "candidate": candidate,
                "speedup": geomean(ratios),
                "low": low,
                "high": high,
                "least": ratios.min(),
                "greatest": ratios.max(),
                "pairs": len(ratios),
            }
        )
    return pd.DataFrame(rows)


def bandwidth_share(frame: pd.DataFrame) -> pd.DataFrame:
    """Compare each time with that of the best read kernel on the same input.

    Parameters
    ----------
    frame : pandas.DataFrame
        Records; the occupancy axis is left out. Of some variants `is_read` says that they only
        read the rows.

    Returns
    -------
    pandas.DataFrame
        One row for each cell of another variant: ``kind``, ``device``, ``variant``, ``k``,
        ``num_cols``, ``cache``, ``num_rows``, ``time_us``; ``floor`` and ``floor_us``, the fastest
        read variant of the same run, shape and cache; ``share``, floor_us / time_us: what part of
        the measured read bandwidth is achieved; ``bytes_per_s`` and ``floor_bytes_per_s``, input
        bytes over either time. Without a read kernel all that rests on the floor is missing.
    """
    import pandas as pd

    cells = _timed(frame)
    place = ["run", "kind", "device", "num_rows", "num_cols", "cache"]
    reads = cells["variant"].map(is_read).astype(bool)
    best = (
        cells[reads]
        .sort_values("median_us", kind="stable")
        .drop_duplicates(place)
        .set_index(place)[["variant", "median_us"]]
    )
    rows = []
    for cell in cells[~reads].to_dict("records"):
        where = tuple(cell[name] for name in place)
        floor, floor_us = best.loc[where] if where in best.index else (None, float("nan"))
        input_bytes = cell["counters"].get("input_bytes", float("nan"))
        rows.append(
            {name: cell[name] for name in (*GROUP, "num_rows")}
            | {
                "time_us": cell["median_us"],
                "floor": floor,
                "floor_us": floor_us,
                "share": floor_us / cell["median_us"],
                "bytes_per_s": input_bytes / cell["median_us"] * 1e6,
                "floor_bytes_per_s": input_bytes / floor_us * 1e6,
            }
        )
    columns = [*GROUP, "num_rows", "time_us", "floor", "floor_us"]
    shares = pd.DataFrame(rows, columns=[*columns, "share", "bytes_per_s", "floor_bytes_per_s"])
    last = shares.drop_duplicates([*GROUP, "num_rows"], keep="last")
    return last.sort_values([*GROUP, "num_rows"]).reset_index(drop=True)
