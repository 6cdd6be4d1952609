"""Is this answer exact?

The judge selects nothing: it holds the finished answer against the contract's rule that no live
logit left out is greater than one chosen. So it shares no step with what it judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from topk_lab.contract.lengths import live_bounds
from topk_lab.contract.words import (
    NO_INDEX,
    ORDERS,
    TIE_BREAKS,
    as_array,
    check_word,
    dtype_name,
    positive_int,
)

KINDS = (
    "shape",
    "dtype",
    "unwritten",
    "out_of_range",
    "duplicate",
    "hole",
    "missing",
    "extra",
    "wrong_values",
    "tie_break",
    "order",
    "values",
)

_NAN_KEY = np.uint32(0xFFFFFFFF)
_NEG_INF_KEY = np.uint32(0x007FFFFF)
_NOT_LIVE = np.uint32(0)  # below the key of every value, -inf included
_CHUNK_ELEMENTS = 1 << 19  # keys of one chunk stay in the last-level cache


def canonical_key(values: np.ndarray) -> np.ndarray:
    """Unsigned keys that compare as the contract compares logits.

    Parameters
    ----------
    values : float32 ndarray or tensor of any shape

    Returns
    -------
    uint32 ndarray of the same shape
        Rises with the value; every NaN has the greatest key, both zeros have the same.

    Raises
    ------
    TypeError
        `values` is not float32.

    Examples
    --------
    >>> key = canonical_key(np.array([-np.inf, -0.0, 0.0, np.inf, -np.nan], np.float32))
    >>> [hex(one) for one in key.tolist()]
    ['0x7fffff', '0x80000000', '0x80000000', '0xff800000', '0xffffffff']
    """
    values = as_array("values", values)
    if values.dtype != np.float32:
        raise TypeError(f"values must be float32, got {values.dtype}")
    # On the bits: float comparisons order no NaN, and may flush subnormals.
    bits = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    sign_fill = (bits.view(np.int32) >> 31).view(np.uint32)
    key = bits ^ (sign_fill | np.uint32(0x80000000))
    key += bits == np.uint32(0x80000000)
    key[(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)] = _NAN_KEY
    return key.reshape(values.shape)


@dataclass(frozen=True)
class Violation:
    """One way in which one row breaks the contract.

    Attributes
    ----------
    row : int or None
        The row; None if the whole array is meant.
    kind : str
        One of `KINDS`: ``shape`` and ``dtype`` of the whole array; ``unwritten`` a negative other
        than -1; ``out_of_range`` at or past n_r; ``duplicate`` one index in two slots; ``hole`` a
        -1 with an index behind it; ``missing`` and ``extra`` fewer or more indices than m;
        ``wrong_values`` a greater logit was left out; ``tie_break``, ``order`` as asked for;
        ``values`` not the logits at the indices.
    detail : str
        What was found, with slots, columns and values.
    """

    row: int | None
    kind: str
    detail: str

    def __str__(self) -> str:
        where = "answer" if self.row is None else f"row {self.row}"
        return f"{where}: {self.kind}: {self.detail}"


def find_violations(
    logits: Any,
    indices: Any,
    *,
    k: int | None = None,
    row_ends: Any = None,
    row_starts: Any = None,
    seq_lens: Any = None,
    next_n: int = 1,
    values: Any = None,
    tie_break: str = "any",
    order: str = "any",
) -> list[Violation]:
    """Every way in which an answer breaks the contract.

    Parameters
    ----------
    logits : (num_rows, num_cols) float32 tensor or ndarray
        Any strides, 0 included.
    indices : (num_rows, k) int32 tensor or ndarray
        The answer.
    k : int, optional
        Checked against the width of `indices` if given, else taken from it.
    row_ends, row_starts, seq_lens, next_n
        As in `live_bounds`.
    values : (num_rows, k) float32 tensor or ndarray, optional
        Checked against the logits at `indices` if given.
    tie_break : {"any", "lowest"}
    order : {"any", "index", "value"}

    Returns
    -------
    list of Violation
        Empty for an exact answer; by row, at most one of each kind a row. A row whose indices are
        not m distinct live ones is not judged on values, ties and order.

    Raises
    ------
    TypeError, ValueError
        The question itself is malformed (logits, lengths, k, words); a malformed answer is a
        violation.

    Notes
    -----
    Time is linear in the live elements: m distinct indices are a top m exactly if the greatest key
    left out is no greater than the least key chosen.
    """
    check_word("tie_break", tie_break, TIE_BREAKS)
    check_word("order", order, ORDERS)
    if dtype_name(logits) != "float32":
        raise TypeError(f"logits must be float32, got {dtype_name(logits)}")
    logits = as_array("logits", logits)
    if logits.ndim != 2:
        raise ValueError(f"logits must have shape (num_rows, num_cols), got {logits.shape}")
    num_rows, num_cols = logits.shape
    starts, ends = live_bounds(
        num_rows,
        num_cols,
        row_ends=row_ends,
        row_starts=row_starts,
        seq_lens=seq_lens,
        next_n=next_n,
    )
    if k is not None:
        k = positive_int("k", k)
    malformed = _malformed("indices", indices, "int32", num_rows, k)
    if values is not None and not malformed:
        malformed = _malformed("values", values, "float32", num_rows, indices.shape[1])
    if malformed:
        return malformed

    indices = as_array("indices", indices)
    values = None if values is None else as_array("values", values)
    if num_cols == 0:
        logits = np.zeros((num_rows, 1), np.float32)  # a column that is live in no row
    rows_per_chunk = max(1, _CHUNK_ELEMENTS // max(logits.shape[1], indices.shape[1]))
    violations: list[Violation] = []
    for first in range(0, num_rows, rows_per_chunk):
        rows = slice(first, first + rows_per_chunk)
        answer = _Answer(
            logits=logits[rows],
            starts=starts[rows],
            ends=ends[rows],
            indices=indices[rows].astype(np.int64),
            values=None if values is None else values[rows],
        )
        findings = [*_index_findings(answer), *_choice_findings(answer, tie_break, order)]
        findings.sort(key=lambda finding: KINDS.index(finding.kind))
        for row in np.flatnonzero(np.any([finding.rows for finding in findings], axis=0)):
            violations += [
                Violation(first + int(row), finding.kind, finding.detail(row))
                for finding in findings
                if finding.rows[row]
            ]
    return violations


def assert_exact(logits: Any, indices: Any, *, limit: int = 8, **question: Any) -> None:
    """Raise unless the answer keeps the contract.

    Parameters
    ----------
    logits, indices
        As in `find_violations`.
    limit : int, default 8
        Violations that the message lists.
    **question
        The keyword arguments of `find_violations`.

    Raises
    ------
    AssertionError
        Lists the first violations.
    """
    violations = find_violations(logits, indices, **question)
    if not violations:
        return
    rows = len({violation.row for violation in violations})
    lines = [f"not exact: {len(violations)} violations in {rows} of {len(logits)} rows"]
    lines += [f"  {violation}" for violation in violations[:limit]]
    if len(violations) > limit:
        lines.append(f"  and {len(violations) - limit} more")
    raise AssertionError("\n".join(lines))


class _Finding(NamedTuple):
    kind: str
    rows: np.ndarray  # (num_rows,) bool
    detail: Callable[[int], str]  # of a row


@dataclass(frozen=True)
class _Answer:
    """Some rows of an answer beside their question."""

    logits: np.ndarray  # (num_rows, num_cols) float32
    starts: np.ndarray  # (num_rows,) int64
    ends: np.ndarray  # (num_rows,) int64
    indices: np.ndarray  # (num_rows, k) int64
    values: np.ndarray | None  # (num_rows, k) float32

    @cached_property
    def live(self) -> np.ndarray:  # (num_rows, 1): n_r
        return (self.ends - self.starts)[:, None]

    @cached_property
    def wanted(self) -> np.ndarray:  # (num_rows, 1): m
        return np.minimum(self.live, self.indices.shape[1])

    @cached_property
    def empty(self) -> np.ndarray:  # (num_rows, k): slot holds -1
        return self.indices == NO_INDEX

    @cached_property
    def beyond(self) -> np.ndarray:  # (num_rows, k): slot holds an index that is not live
        return self.indices >= self.live

    @cached_property
    def found(self) -> np.ndarray:  # (num_rows, k): slot holds a live index
        return (self.indices >= 0) & ~self.beyond

    @cached_property
    def sorted_found(self) -> np.ndarray:  # (num_rows, k): live indices, -1 before them
        return np.sort(np.where(self.found, self.indices, NO_INDEX), axis=1)

    @cached_property
    def repeated(self) -> np.ndarray:  # (num_rows, k - 1): in sorted_found, equal to the next
        return (self.sorted_found[:, 1:] == self.sorted_found[:, :-1]) & (
            self.sorted_found[:, 1:] >= 0
        )

    @cached_property
    def whole(self) -> np.ndarray:  # (num_rows,): m distinct live indices and nothing else
        only = (self.found | self.empty).all(axis=1) & ~self.repeated.any(axis=1)
        return only & (self.found.sum(axis=1) == self.wanted[:, 0])

    @cached_property
    def columns(self) -> np.ndarray:  # (num_rows, k): absolute; column 0 where not found
        return np.where(self.found, self.indices + self.starts[:, None], 0)

    def logit(self, row: int, index: int) -> str:
        """Text of the logit at an index of a row."""
        return f"{self.logits[row, self.starts[row] + index]} at index {index}"


def _index_findings(answer: _Answer) -> Iterator[_Finding]:
    """Find what the indices break on their own, whatever the logits hold."""
    indices, empty = answer.indices, answer.empty
    k = indices.shape[1]

    def slots(row: int, marked: np.ndarray) -> str:
        slot = int(np.argmax(marked[row]))
        others = np.count_nonzero(marked[row]) - 1
        return f"{indices[row, slot]} in slot {slot}" + (f" and {others} more" if others else "")

    unwritten = indices < NO_INDEX
    yield _Finding("unwritten", unwritten.any(axis=1), lambda row: slots(row, unwritten))
    yield _Finding(
        "out_of_range",
        answer.beyond.any(axis=1),
        lambda row: f"{slots(row, answer.beyond)}, the row has {answer.live[row, 0]} live columns",
    )

    def repeats(row: int) -> str:
        index = answer.sorted_found[row, 1:][answer.repeated[row]][0]
        at = ", ".join(map(str, np.flatnonzero(indices[row] == index)[:4]))
        return f"index {index} in slots {at}; {answer.repeated[row].sum()} slots repeat an index"

    yield _Finding("duplicate", answer.repeated.any(axis=1), repeats)

    is_index = indices >= 0
    last_index = np.where(is_index, np.arange(k), -1).max(axis=1)
    hole = empty & (np.arange(k) < last_index[:, None])
    yield _Finding(
        "hole",
        hole.any(axis=1),
        lambda row: f"{slots(row, hole)}, an index in slot {last_index[row]}",
    )
    num_filled = k - empty.sum(axis=1)
    num_indices = np.count_nonzero(is_index, axis=1)
    wanted = answer.wanted[:, 0]
    yield _Finding(
        "missing",
        num_filled < wanted,
        lambda row: f"{num_filled[row]} slots are filled, required {wanted[row]}",
    )
    yield _Finding(
        "extra",
        num_indices > wanted,
        lambda row: f"{num_indices[row]} indices, required {wanted[row]}",
    )


def _choice_findings(answer: _Answer, tie_break: str, order: str) -> Iterator[_Finding]:
    """Find what the indices break against the logits."""
    keys = canonical_key(answer.logits)
    for row_keys, start, end in zip(keys, answer.starts, answer.ends, strict=True):
        row_keys[:start] = _NOT_LIVE
        row_keys[end:] = _NOT_LIVE
    chosen = np.take_along_axis(keys, answer.columns, axis=1)
    if answer.values is not None:
        yield _value_finding(answer, chosen)
    if order != "any":
        yield _order_finding(answer, chosen, order)

    found = answer.found
    cutoff = np.where(found, chosen, _NAN_KEY).min(axis=1)
    row_of_slot = np.broadcast_to(np.arange(len(keys))[:, None], found.shape)
    keys[row_of_slot[found], answer.columns[found]] = _NOT_LIVE
    best = keys.argmax(axis=1)  # of those left out
    better = (
        answer.whole
        & (answer.wanted[:, 0] > 0)
        & (np.take_along_axis(keys, best[:, None], axis=1)[:, 0] > cutoff)
    )

    def left_out(row: int) -> str:
        slot = int(np.argmax(found[row] & (chosen[row] == cutoff[row])))
        return (
            f"{answer.logit(row, int(answer.indices[row, slot]))} chosen, "
            f"{answer.logit(row, int(best[row] - answer.starts[row]))} left out"
        )

    yield _Finding("wrong_values", better, left_out)
    if tie_break == "lowest":
        equal_left_out = keys == cutoff[:, None]
        lowest_left_out = equal_left_out.argmax(axis=1) - answer.starts
        equal_chosen = found & (chosen == cutoff[:, None])
        highest_chosen = np.where(equal_chosen, answer.indices, NO_INDEX).max(axis=1)
        yield _Finding(
            "tie_break",
            answer.whole
            & ~better
            & equal_left_out.any(axis=1)
            & (lowest_left_out < highest_chosen),
            lambda row: (
                f"{answer.logit(row, int(highest_chosen[row]))} chosen, "
                f"{answer.logit(row, int(lowest_left_out[row]))} left out"
            ),
        )


def _value_finding(answer: _Answer, chosen: np.ndarray) -> _Finding:
    required = np.where(answer.found, chosen, _NEG_INF_KEY)
    other = (canonical_key(answer.values) != required) & (answer.found | answer.empty)

    def detail(row: int) -> str:
        slot = int(np.argmax(other[row]))
        index = int(answer.indices[row, slot])
        logit = "-inf for index -1" if index == NO_INDEX else answer.logit(row, index)
        return f"{answer.values[row, slot]} in slot {slot}, required {logit}"

    return _Finding("values", other.any(axis=1), detail)


def _order_finding(answer: _Answer, chosen: np.ndarray, order: str) -> _Finding:
    falls = answer.indices[:, 1:] <= answer.indices[:, :-1]
    if order == "value":
        falls &= chosen[:, 1:] == chosen[:, :-1]
        falls |= chosen[:, 1:] > chosen[:, :-1]
    falls &= answer.found[:, 1:] & answer.found[:, :-1]

    def detail(row: int) -> str:
        slot = int(np.argmax(falls[row]))
        first, second = answer.indices[row, slot : slot + 2].tolist()
        return f"{answer.logit(row, first)} in slot {slot} before {answer.logit(row, second)}"

    return _Finding("order", answer.whole & falls.any(axis=1), detail)


def _malformed(name: str, value: Any, dtype: str, num_rows: int, k: int | None) -> list[Violation]:
    """Why an answer can't be held against the logits at all."""
    shape = tuple(getattr(value, "shape", ()))
    violations = []
    if len(shape) != 2 or shape[0] != num_rows or shape[1] < 1 or (k is not None and shape[1] != k):
        required = f"({num_rows}, {'k' if k is None else k})"
        violations.append(
            Violation(
                None, "shape", f"{name} must have shape (num_rows, k) = {required}, got {shape}"
            )
        )
    if dtype_name(value) != dtype:
        violations.append(
            Violation(None, "dtype", f"{name} must be {dtype}, got {dtype_name(value)}")
        )
    return violations
