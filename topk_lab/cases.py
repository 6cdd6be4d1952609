"""Which inputs did the sources test their kernels on, and into how many splits does each row go?

The lists of vLLM ``tests/kernels/test_top_k_per_row.py`` as of #56743, as data. The splits are
written down from there and from the kernel's own table, never computed from `topk_lab.schedules`:
a test compares the two.

``boundaries``
    Both sides of every bound of the split policy, the rows rotated against each other.
``boundaries-broadcast``
    The same with one row shared by all, as published.
``masked-replay``
    What a captured graph is replayed on: nine patterns of masked rows around the bounds of the
    final items, then ten lengths around the bounds of the split policy. One a case, rows rotated.
``mixed-replay``
    The same patterns and lengths as published: all in one launch.
``one-d-lengths``
    One length a sequence, several rows a sequence, rows sliced out of wider storage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided

from topk_lab import workloads

__all__ = [
    "LISTS",
    "Case",
    "CaseInput",
    "boundaries",
    "load",
    "masked_replay",
    "mixed_replay",
    "one_d_lengths",
]

K = 512
WIDTH = 262145

# rows, live length of all, id, variant that the gate picks, splits of a row
BOUNDARIES = (
    (128, 65536, "single-before-64k", "vllm_k512", 1),
    (128, 65537, "four-splits-after-64k", "vllm_k512", 4),
    (129, 262144, "single-before-three-split-length", "vllm_k512", 1),
    (129, 262145, "three-splits-after-256k", "vllm_k512", 3),
    (160, 262145, "three-splits-upper-row-bound", "vllm_k512", 3),
    (161, 262144, "single-before-two-split-length", "vllm_k512", 1),
    (161, 262145, "two-splits-after-256k", "vllm_k512", 2),
    (256, 262145, "two-splits-upper-row-bound", "vllm_k512", 2),
    (257, 262145, "large-row-single-block", "vllm_k512", 1),
    (384, 262145, "optimized-row-limit", "vllm_k512", 1),
    (385, 262145, "native-fallback", "vllm_generic", 10),
)

REPLAY_ROWS = 24
REPLAY_NEXT_N = 6
REPLAY_SHAPE = (4, 6)  # of the 2-D lengths
REPLAY_MASKED_LENGTH = 70000
REPLAY_MASKED_SPLITS = 8
REPLAY_PATTERNS = (
    "no-visible-column",
    "one-visible-column",
    "511-visible-columns",
    "513-visible-columns",
    "least-finite-in-last-place",
    "128-in-threshold-bin",
    "129-in-threshold-bin",
    "1024-in-threshold-bin",
    "1025-in-threshold-bin",
)
# live length, splits of a row
REPLAY_BOUNDS = (
    (0, 1),
    (511, 1),
    (512, 1),
    (513, 1),
    (16384, 1),
    (16385, 8),
    (131072, 8),
    (131073, 10),
    (262144, 10),
    (262145, 16),
)

ONE_D_WIDTH = 16384
ONE_D_FILLED = 16000
ONE_D_LENGTHS = (0, 1, 511, 512, 513, 1023, 1024, 16000)


@dataclass(frozen=True)
class CaseInput:
    """What a case is run on.

    Attributes
    ----------
    logits : (num_rows, num_cols) float32 ndarray
        May be a view whose rows overlap: to be read, never written.
    seq_lens : (batch,) or (batch, next_n) int32 ndarray
    """

    logits: np.ndarray
    seq_lens: np.ndarray


@dataclass(frozen=True)
class Case:
    """One input of a list, built when asked for.

    Attributes
    ----------
    list_name, id : str
        The list, and the case's name in it.
    num_rows, num_cols, k, next_n : int
        Shape of the call. `next_n` belongs to the `CaseInput.seq_lens`, 1-D or 2-D.
    build : callable
        Makes the `CaseInput`, anew at each call.
    variant : str
        The variant that the source's gate picks for this shape.
    splits : tuple of int
        Splits due in each row, (num_rows,).
    """

    list_name: str
    id: str
    num_rows: int
    num_cols: int
    k: int
    next_n: int
    build: Callable[[], CaseInput]
    variant: str
    splits: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.list_name}/{self.id}"


def boundaries(form: str = "rotated") -> tuple[Case, ...]:
    """Both sides of every bound of the split policy: 11 cases, k 512, 262145 columns.

    Parameters
    ----------
    form : {"rotated", "broadcast"}
        ``broadcast``: every row is arange(num_cols), by a row stride of 0, as published.
        ``rotated``: the live part of row r is arange(length) rotated left by r, by a row stride of
        1; so no two rows choose the same columns, and three of four are unaligned. What lies past
        the last row's end is greater. Either form takes the memory of one row.

    Returns
    -------
    tuple of Case

    Raises
    ------
    ValueError
        Another form.
    """
    if form not in ("rotated", "broadcast"):
        raise ValueError(f"form must be one of rotated, broadcast, got {form!r}")
    build = _rotated_ramps if form == "rotated" else _shared_ramp
    return tuple(
        Case(
            "boundaries" if form == "rotated" else "boundaries-broadcast",
            case_id,
            num_rows,
            WIDTH,
            K,
            1,
            partial(build, (length,) * num_rows, (num_rows,)),
            variant,
            (splits,) * num_rows,
        )
        for num_rows, length, case_id, variant, splits in BOUNDARIES
    )


def masked_replay() -> tuple[Case, ...]:
    """Nine patterns of masked rows and ten lengths, one a case: 24 rows, 2-D lengths (4, 6).

    Returns
    -------
    tuple of Case
        A pattern's rows have 70000 live columns and 1e20 behind them; row r is the pattern rotated
        right by r live columns. A length's rows are made as in ``boundaries``.
    """
    patterns = [
        _replay_case(
            "masked-replay",
            case_id,
            partial(_masked_rows, (pattern,) * REPLAY_ROWS, rotated=True),
            (REPLAY_MASKED_SPLITS,) * REPLAY_ROWS,
        )
        for pattern, case_id in enumerate(REPLAY_PATTERNS)
    ]
    lengths = [
        _replay_case(
            "masked-replay",
            f"length-{length}",
            partial(_rotated_ramps, (length,) * REPLAY_ROWS, REPLAY_SHAPE),
            (splits,) * REPLAY_ROWS,
        )
        for length, splits in REPLAY_BOUNDS
    ]
    return (*patterns, *lengths)


def mixed_replay() -> tuple[Case, ...]:
    """The patterns and the lengths of `masked_replay` as published: two launches for all.

    Returns
    -------
    tuple of Case
        ``patterns``: row r has pattern r % 9, not rotated. ``lengths``: row r has the
        (r % 10)-th length, and every row is arange(num_cols).
    """
    rows = range(REPLAY_ROWS)
    bounds = [REPLAY_BOUNDS[row % len(REPLAY_BOUNDS)] for row in rows]
    return (
        _replay_case(
            "mixed-replay",
            "patterns",
            partial(_masked_rows, tuple(row % len(REPLAY_PATTERNS) for row in rows), rotated=False),
            (REPLAY_MASKED_SPLITS,) * REPLAY_ROWS,
        ),
        _replay_case(
            "mixed-replay",
            "lengths",
            partial(_shared_ramp, tuple(length for length, _ in bounds), REPLAY_SHAPE),
            tuple(splits for _, splits in bounds),
        ),
    )


def one_d_lengths() -> tuple[Case, ...]:
    """Eight 1-D lengths with six rows each, from empty to 16000: one case of 48 rows.

    Returns
    -------
    tuple of Case
        Rows start at element 1 of storage 8 elements wider, so none is aligned. Their first 16000
        columns are arange(16000) rotated left by the row (published: not rotated), the rest 1e20.
    """
    num_rows = len(ONE_D_LENGTHS) * REPLAY_NEXT_N
    return (
        Case(
            "one-d-lengths",
            "sliced-rows",
            num_rows,
            ONE_D_WIDTH,
            K,
            REPLAY_NEXT_N,
            _sliced_rows,
            "vllm_k512",
            (1,) * num_rows,
        ),
    )


LISTS: dict[str, Callable[[], tuple[Case, ...]]] = {
    "boundaries": boundaries,
    "boundaries-broadcast": partial(boundaries, "broadcast"),
    "masked-replay": masked_replay,
    "mixed-replay": mixed_replay,
    "one-d-lengths": one_d_lengths,
}


def load(list_name: str) -> tuple[Case, ...]:
    """Cases of a list.

    Parameters
    ----------
    list_name : str
        Key of `LISTS`.

    Returns
    -------
    tuple of Case

    Raises
    ------
    ValueError
        No such list.
    """
    if list_name not in LISTS:
        raise ValueError(f"case list must be one of {', '.join(LISTS)}, got {list_name!r}")
    return LISTS[list_name]()


def _replay_case(
    list_name: str, case_id: str, build: Callable[[], CaseInput], splits: tuple[int, ...]
) -> Case:
    return Case(
        list_name, case_id, REPLAY_ROWS, WIDTH, K, REPLAY_NEXT_N, build, "vllm_k512", splits
    )


def _shared_ramp(lengths: tuple[int, ...], lengths_shape: tuple[int, ...]) -> CaseInput:
    base = np.arange(WIDTH, dtype=np.float32)
    logits = as_strided(base, (len(lengths), WIDTH), (0, base.itemsize))
    return CaseInput(logits, np.array(lengths, np.int32).reshape(lengths_shape))


def _rotated_ramps(lengths: tuple[int, ...], lengths_shape: tuple[int, ...]) -> CaseInput:
    num_rows, length = len(lengths), lengths[0]
    base = np.arange(WIDTH + num_rows - 1, dtype=np.float32)
    # The ramp starts over at the live length, as far as the last row sees: rotated over the whole
    # width, all rows of the short lengths would choose the same columns.
    base[length : length + num_rows - 1] = np.arange(num_rows - 1) % max(length, 1)
    logits = as_strided(base, (num_rows, WIDTH), (base.itemsize, base.itemsize))
    return CaseInput(logits, np.array(lengths, np.int32).reshape(lengths_shape))


def _masked_rows(patterns: tuple[int, ...], *, rotated: bool) -> CaseInput:
    logits = np.full((len(patterns), WIDTH), 1e20, np.float32)
    for row, pattern in enumerate(patterns):
        live = _masked_row(pattern)
        logits[row, : len(live)] = np.roll(live, row) if rotated else live
    return CaseInput(logits, np.full(REPLAY_SHAPE, REPLAY_MASKED_LENGTH, np.int32))


def _masked_row(pattern: int) -> np.ndarray:
    if pattern == 4:
        return workloads.make("finite_min", 1, REPLAY_MASKED_LENGTH, zeros=511)[0]
    if pattern > 4:
        count = (128, 129, 1024, 1025)[pattern - 5]
        return workloads.make("pivot_bins", 1, REPLAY_MASKED_LENGTH, count=count, k=K)[0]
    visible = (0, 1, 511, 513)[pattern]
    row = np.full(REPLAY_MASKED_LENGTH, -np.inf, np.float32)
    row[:visible] = np.arange(visible)
    return row


def _sliced_rows() -> CaseInput:
    num_rows = len(ONE_D_LENGTHS) * REPLAY_NEXT_N
    storage = np.full((num_rows, ONE_D_WIDTH + 8), 1e20, np.float32)
    logits = storage[:, 1 : 1 + ONE_D_WIDTH]
    for row in range(num_rows):
        logits[row, :ONE_D_FILLED] = np.roll(np.arange(ONE_D_FILLED), -row)
    return CaseInput(logits, np.array(ONE_D_LENGTHS, np.int32))
