"""Which logits make a selection hard, and how are they made again?

A workload is a named generator. Row r is a function of the name, its arguments, the seed, r and
the row's live length alone: it does not change when there are more rows, another poison or a wider
buffer. Workloads with a fixed pattern (`ascending`, `pivot_bins`, ...) show it as written in row 0;
row r is the same, rotated right by r live columns, so that answers differ between rows.

`make` builds the logits, `names` and `describe` list the workloads, `defaults` gives the arguments
that a record needs.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from topk_lab.contract import live_bounds

__all__ = ["POISONS", "defaults", "describe", "make", "names"]

POISONS: dict[str, np.float32] = {
    "nan": np.float32(np.nan),
    "inf": np.float32(np.inf),
    "1e20": np.float32(1e20),
}

NEG_INF = np.float32(-np.inf)
LEAST_FINITE = np.finfo(np.float32).min


@dataclass(frozen=True)
class _Workload:
    generate: Callable[..., np.ndarray]
    rotated: bool

    @property
    def defaults(self) -> dict[str, Any]:
        parameters = inspect.signature(self.generate).parameters.values()
        return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


_WORKLOADS: dict[str, _Workload] = {}


def names() -> tuple[str, ...]:
    """Names of all workloads.

    Returns
    -------
    tuple of str
    """
    return tuple(_WORKLOADS)


def describe(name: str) -> str:
    """One line on a workload.

    Parameters
    ----------
    name : str

    Returns
    -------
    str

    Raises
    ------
    ValueError
        No such workload.
    """
    return inspect.getdoc(_find(name).generate).splitlines()[0]


def defaults(name: str) -> dict[str, Any]:
    """Return the arguments of a workload with their defaults.

    Parameters
    ----------
    name : str

    Returns
    -------
    dict
        Empty if it takes none.

    Raises
    ------
    ValueError
        No such workload.
    """
    return dict(_find(name).defaults)


def make(
    name: str,
    num_rows: int,
    num_cols: int,
    *,
    seed: int = 0,
    row_ends: np.ndarray | int | None = None,
    poison: str | None = None,
    **args: Any,
) -> np.ndarray:
    """Make the logits of a workload.

    Parameters
    ----------
    name : str
        One of `names`.
    num_rows, num_cols : int
        Shape, at least 0.
    seed : int, default 0
        At least 0.
    row_ends : (num_rows,) integer ndarray or int, optional
        Live length of each row, clamped to ``[0, num_cols]``; all columns are live without it. What
        a workload counts (masked columns, NaN, ...) it counts among the live columns.
    poison : {"nan", "inf", "1e20"}, optional
        What fills the columns at or past a row's end; without it they hold stale values: the
        workload drawn on.
    **args
        Arguments of the workload, see `defaults`.

    Returns
    -------
    (num_rows, num_cols) float32 ndarray, C-contiguous

    Raises
    ------
    TypeError
        An argument that the workload does not take.
    ValueError
        An unknown workload or poison, or a value out of range.

    Examples
    --------
    >>> make("ascending", 2, 5, row_ends=4, poison="inf")
    array([[ 0.,  1.,  2.,  3., inf],
           [ 3.,  0.,  1.,  2., inf]], dtype=float32)
    """
    workload = _find(name)
    unknown = sorted(args.keys() - workload.defaults.keys())
    if unknown:
        allowed = ", ".join(workload.defaults) or "none"
        raise TypeError(f"arguments of workload {name} must be among: {allowed}; got {unknown[0]}")
    if poison is not None and poison not in POISONS:
        raise ValueError(f"poison must be one of {', '.join(POISONS)} or None, got {poison!r}")
    for argument, value in (("num_rows", num_rows), ("num_cols", num_cols), ("seed", seed)):
        if value < 0:
            raise ValueError(f"{argument} must be at least 0, got {value}")
    if row_ends is not None and np.ndim(row_ends) == 0:
        row_ends = np.full(num_rows, row_ends, np.int64)
    _, ends = live_bounds(num_rows, num_cols, row_ends=row_ends)

    logits = np.empty((num_rows, num_cols), np.float32)
    salt = zlib.crc32(name.encode())
    for row, end in enumerate(ends.tolist()):
        rng = np.random.default_rng([seed, salt, row])
        live = workload.generate(rng, end, **args)
        logits[row, :end] = np.roll(live, row) if workload.rotated and end else live
        if poison is not None:
            logits[row, end:] = POISONS[poison]
        elif end < num_cols:
            logits[row, end:] = workload.generate(rng, num_cols - end, **args)
    return logits


def _find(name: str) -> _Workload:
    if name not in _WORKLOADS:
        raise ValueError(f"workload must be one of {', '.join(_WORKLOADS)}, got {name!r}")
    return _WORKLOADS[name]


def _workload(*, rotated: bool = False) -> Callable[[Callable], Callable]:
    def register(generate: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        _WORKLOADS[generate.__name__] = _Workload(generate, rotated)
        return generate

    return register


def _count_of(fraction: float, num_live: int) -> int:
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be in [0, 1], got {fraction}")
    return int(fraction * num_live + 0.5)


def _some(rng: np.random.Generator, num_live: int, count: int) -> np.ndarray:
    """Exactly `count` distinct columns, every choice alike; all of them if there are fewer."""
    return rng.choice(num_live, min(count, num_live), replace=False, shuffle=False)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} must be at least 0, got {count}")


def _normal(rng: np.random.Generator, num_live: int) -> np.ndarray:
    return rng.standard_normal(num_live, np.float32)


@_workload()
def normal(rng: np.random.Generator, num_live: int) -> np.ndarray:
    """Standard normal."""
    return _normal(rng, num_live)


@_workload()
def uniform(rng: np.random.Generator, num_live: int) -> np.ndarray:
    """Uniform multiples of 2^-24 in [0, 1)."""
    return rng.random(num_live, np.float32)


@_workload()
def mostly_negative(rng: np.random.Generator, num_live: int) -> np.ndarray:
    """Normal with mean -2.2 and deviation 0.55, as rows of a real indexer look.

    Fitted to a reported DeepSeek V4.1 row: 65539 columns, 2 of them positive, 512th greatest -0.87.
    """
    return _normal(rng, num_live) * np.float32(0.55) - np.float32(2.2)


@_workload()
def tiny(rng: np.random.Generator, num_live: int, *, scale: float = 1e-9) -> np.ndarray:
    """Normal times 1e-9: zero in half precision."""
    return _normal(rng, num_live) * np.float32(scale)


@_workload()
def beyond_fp16(rng: np.random.Generator, num_live: int) -> np.ndarray:
    """Magnitudes from 2^16 to the greatest finite, of either sign: infinite in half precision."""
    exponent = rng.integers(127 + 16, 255, num_live, np.uint32)
    mantissa = rng.integers(0, 1 << 23, num_live, np.uint32)
    sign = rng.integers(0, 2, num_live, np.uint32)
    return (sign << 31 | exponent << 23 | mantissa).view(np.float32)


@_workload(rotated=True)
def subnormals(rng: np.random.Generator, num_live: int) -> np.ndarray:
    """The i-th live column holds i * 2^-149: zero where subnormals are flushed."""
    return np.arange(num_live, dtype=np.uint32).view(np.float32)


@_workload(rotated=True)
def ascending(rng: np.random.Generator, num_live: int) -> np.ndarray:
    """The i-th live column holds i."""
    return np.arange(num_live, dtype=np.float32)


@_workload(rotated=True)
def descending(rng: np.random.Generator, num_live: int) -> np.ndarray:
    """The i-th live column holds n - 1 - i, n being the row's live length."""
    return np.arange(num_live, dtype=np.float32)[::-1]


@_workload(rotated=True)
def near_equal(rng: np.random.Generator, num_live: int) -> np.ndarray:
    """The i-th live column holds 1 + i * 2^-20: thousands in one coarse bin."""
    return (1 + np.arange(num_live) * 2.0**-20).astype(np.float32)


@_workload()
def near_one(rng: np.random.Generator, num_live: int, *, scale: float = 1e-3) -> np.ndarray:
    """One plus a normal times 1e-3: most of the row in two coarse bins."""
    return np.float32(1) + _normal(rng, num_live) * np.float32(scale)


@_workload()
def relu_heads(rng: np.random.Generator, num_live: int, *, heads: int = 16) -> np.ndarray:
    """Weighted sum of the positive parts of `heads` normals, as an indexer scores."""
    _check_counts(heads=heads)
    row = np.zeros(num_live, np.float32)
    for weight in rng.random(heads, np.float32):
        row += weight * np.maximum(_normal(rng, num_live), 0)
    return row


@_workload()
def same_leading_bits(rng: np.random.Generator, num_live: int) -> np.ndarray:
    """Bits 0x3F900000 with the 10 lowest random: only the last radix step tells them apart."""
    return (np.uint32(0x3F900000) | rng.integers(0, 1024, num_live, np.uint32)).view(np.float32)


@_workload()
def constant(rng: np.random.Generator, num_live: int, *, value: float = 1.0) -> np.ndarray:
    """One value everywhere."""
    return np.full(num_live, value, np.float32)


@_workload()
def odd_one_out(rng: np.random.Generator, num_live: int) -> np.ndarray:
    """0.5 everywhere but in the last column, which holds 0.5 + 2^-24."""
    row = np.full(num_live, 0.5, np.float32)
    row[-1:] += 2.0**-24
    return row


@_workload()
def few_values(rng: np.random.Generator, num_live: int, *, count: int = 10) -> np.ndarray:
    """Whole numbers below `count`: heavy ties."""
    return rng.integers(0, count, num_live).astype(np.float32)


@_workload()
def relu_zeros(rng: np.random.Generator, num_live: int, *, positive: int = 100) -> np.ndarray:
    """Exactly `positive` columns above zero, all others +0.0: the cutoff ties at zero."""
    _check_counts(positive=positive)
    row = np.zeros(num_live, np.float32)
    columns = _some(rng, num_live, positive)
    row[columns] = 1 - rng.random(len(columns), np.float32)
    return row


@_workload(rotated=True)
def signed_zeros(rng: np.random.Generator, num_live: int, *, ones: int = 100) -> np.ndarray:
    """1.0 in the first `ones` even columns, -0.0 in the other even ones, +0.0 in the odd ones."""
    _check_counts(ones=ones)
    row = np.zeros(num_live, np.float32)
    row[::2] = -0.0
    row[: 2 * ones : 2] = 1
    return row


@_workload()
def nan(rng: np.random.Generator, num_live: int, *, count: int = 100) -> np.ndarray:
    """Normal, and exactly `count` NaN of any payload, half of them negative."""
    _check_counts(count=count)
    row = _normal(rng, num_live)
    columns = _some(rng, num_live, count)
    bits = np.uint32(0x7F800000) | rng.integers(1, 1 << 23, len(columns), np.uint32)
    bits[1::2] |= np.uint32(0x80000000)
    row.view(np.uint32)[columns] = bits
    return row


@_workload()
def infinities(rng: np.random.Generator, num_live: int, *, fraction: float = 0.5) -> np.ndarray:
    """+inf in exactly `fraction` of the columns, -inf in the others."""
    row = np.full(num_live, NEG_INF)
    row[_some(rng, num_live, _count_of(fraction, num_live))] = np.inf
    return row


@_workload()
def all_neg_inf(rng: np.random.Generator, num_live: int) -> np.ndarray:
    """Every logit masked."""
    return np.full(num_live, NEG_INF)


@_workload()
def masked_random(
    rng: np.random.Generator, num_live: int, *, fraction: float = 0.875
) -> np.ndarray:
    """Normal, with exactly `fraction` of the columns -inf, anywhere."""
    row = _normal(rng, num_live)
    row[_some(rng, num_live, _count_of(fraction, num_live))] = NEG_INF
    return row


@_workload()
def masked_prefix(rng: np.random.Generator, num_live: int, *, finite: int = 524) -> np.ndarray:
    """Normal in the first `finite` columns, -inf in all others."""
    _check_counts(finite=finite)
    row = _normal(rng, num_live)
    row[finite:] = NEG_INF
    return row


@_workload()
def masked_blocks(rng: np.random.Generator, num_live: int, *, of: int = 8) -> np.ndarray:
    """Normal in one block of 8 columns of each `of` such blocks, -inf in all others.

    Of a last group of fewer blocks one is kept too; the last block may be cut short. This is how
    the consumer layers of a two-level indexer mask: with one block in 8, exactly 7 of 8 columns.
    """
    if not isinstance(of, int) or of < 1:
        raise ValueError(f"of must be a whole number of at least 1, got {of!r}")
    row = _normal(rng, num_live)
    num_blocks = -(-num_live // 8)
    of = min(of, max(num_blocks, 1))
    kept = np.arange(0, num_blocks, of)
    kept += rng.integers(0, np.minimum(of, num_blocks - kept)) if len(kept) else 0
    masked = np.ones(num_blocks, bool)
    masked[kept] = False
    row[np.repeat(masked, 8)[:num_live]] = NEG_INF
    return row


@_workload(rotated=True)
def finite_min(rng: np.random.Generator, num_live: int, *, zeros: int = 511) -> np.ndarray:
    """Zero in the first `zeros` columns, then the least finite value, then -inf."""
    _check_counts(zeros=zeros)
    row = np.full(num_live, NEG_INF)
    row[:zeros] = 0
    row[zeros : zeros + 1] = LEAST_FINITE
    return row


@_workload(rotated=True)
def pivot_bins(
    rng: np.random.Generator, num_live: int, *, count: int = 128, k: int = 512
) -> np.ndarray:
    """Twos, then a threshold bin of `count` ones of which the first is 1 + 2^-23, then -inf.

    There are max(0, k - count // 2) twos, so that the k-th greatest lies in the middle of the bin.
    Counts of 128, 129, 1024 and 1025 stand on both sides of the bounds of the final items.
    """
    _check_counts(count=count, k=k)
    twos = max(0, k - count // 2)
    row = np.full(num_live, NEG_INF)
    row[:twos] = 2
    row[twos : twos + count] = 1
    row[twos : twos + min(count, 1)] = np.float32(1 + 2**-23)
    return row
