"""Which columns of a row are live?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from topk_lab.contract.words import INT32_MAX, as_array, dtype_name, positive_int, type_name

if TYPE_CHECKING:
    import torch

# Beyond every length, and as far from the ends of int64.
FARTHEST = 1 << 40


def row_ends_from(
    seq_lens: torch.Tensor | np.ndarray, next_n: int = 1, compress_ratio: int = 1
) -> torch.Tensor | np.ndarray:
    """Row ends of a decode batch: expanded per token first, then floor-divided.

    Parameters
    ----------
    seq_lens : (batch,) or (batch, next_n) integer tensor or ndarray
        1-D: length of each sequence in tokens, its `next_n` new ones included; token j of sequence
        b sees ``seq_lens[b] - next_n + j + 1`` of them. 2-D: what each token sees.
    next_n : int, default 1
        Tokens scored per sequence. A 2-D `seq_lens` brings its own; 1 is then accepted too.
    compress_ratio : int, default 1
        Tokens per logit column.

    Returns
    -------
    (batch * next_n,) int32 tensor or ndarray, as `seq_lens` came
        Live logit columns of each row; never negative.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was required and what came.

    Notes
    -----
    The order matters: with 9 tokens, two of them new, and 4 tokens a column, both rows see two
    columns (``8 // 4`` and ``9 // 4``); ``9 // 4`` expanded afterwards would give 1 and 2. Source:
    the metadata builder of vLLM's sparse indexer, ``vllm/v1/attention/backends/mla/indexer.py``.

    Examples
    --------
    >>> row_ends_from(np.array([2, 9], np.int32), next_n=4, compress_ratio=2)
    array([0, 0, 0, 1, 3, 3, 4, 4], dtype=int32)
    """
    next_n = positive_int("next_n", next_n, INT32_MAX)
    compress_ratio = positive_int("compress_ratio", compress_ratio, INT32_MAX)
    is_tensor = hasattr(seq_lens, "detach")
    if not is_tensor and not isinstance(seq_lens, np.ndarray):
        raise TypeError(f"seq_lens must be a tensor or an ndarray, got {type_name(seq_lens)}")
    if dtype_name(seq_lens) not in ("int32", "int64"):
        raise TypeError(f"seq_lens must be int32, got {dtype_name(seq_lens)}")
    if seq_lens.ndim not in (1, 2):
        raise ValueError(
            f"seq_lens must have shape (batch,) or (batch, next_n), got {tuple(seq_lens.shape)}"
        )
    if seq_lens.ndim == 2 and next_n != 1 and next_n != seq_lens.shape[1]:
        raise ValueError(
            f"seq_lens must have shape (batch, next_n) with next_n = {next_n}, "
            f"got {tuple(seq_lens.shape)}"
        )
    if is_tensor:
        import torch

        wide = seq_lens.to(torch.int64).clamp(-FARTHEST, FARTHEST)
        if wide.ndim == 1:
            wide = wide[:, None] + torch.arange(1 - next_n, 1, device=wide.device)
        ends = wide.div(compress_ratio, rounding_mode="floor")
        return ends.clamp(0, INT32_MAX).to(torch.int32).reshape(-1)
    wide = _saturated(seq_lens)
    if wide.ndim == 1:
        wide = wide[:, None] + np.arange(1 - next_n, 1)
    return np.clip(wide // compress_ratio, 0, INT32_MAX).astype(np.int32).reshape(-1)


def live_bounds(
    num_rows: int,
    num_cols: int,
    *,
    row_ends: Any = None,
    row_starts: Any = None,
    seq_lens: Any = None,
    next_n: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Live columns of each row, clamped as the contract says.

    Parameters
    ----------
    num_rows, num_cols : int
        Shape of the logits.
    row_ends : (num_rows,) integer tensor or ndarray, optional
        First column past each row's live part.
    row_starts : (num_rows,) integer tensor or ndarray, optional
        First live column of each row; needs `row_ends`.
    seq_lens : (num_rows / next_n,) or (batch, next_n) integer tensor or ndarray, optional
        In place of `row_ends`; see `row_ends_from`.
    next_n : int, default 1
        Rows per sequence of a 1-D `seq_lens`.

    Returns
    -------
    starts, ends : (num_rows,) int64 ndarrays
        ``0 <= starts <= ends <= num_cols``. A negative length is an empty row, one above `num_cols`
        is clamped; with neither lengths nor ends every column is live.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was required and what came.
    """
    next_n = positive_int("next_n", next_n, INT32_MAX)
    check_length_arguments(row_ends, row_starts, seq_lens, next_n)
    starts = np.zeros(num_rows, np.int64)
    if seq_lens is not None:
        seq_lens = _as_integers("seq_lens", seq_lens)
        check_seq_lens_shape(tuple(seq_lens.shape), num_rows, next_n)
        if seq_lens.ndim == 1:
            # In int64: a length of -2^31 less next_n wraps to a huge one in int32.
            row = np.arange(num_rows)
            ends = seq_lens[row // next_n] - next_n + row % next_n + 1
        else:
            ends = seq_lens.reshape(-1)
    elif row_ends is not None:
        ends = _as_integers("row_ends", row_ends)
        check_per_row_shape("row_ends", tuple(ends.shape), num_rows)
    else:
        ends = np.full(num_rows, num_cols, np.int64)
    if row_starts is not None:
        starts = _as_integers("row_starts", row_starts)
        check_per_row_shape("row_starts", tuple(starts.shape), num_rows)
        starts = np.clip(starts, 0, num_cols)
    return starts, np.clip(ends, starts, num_cols)


def check_length_arguments(row_ends: Any, row_starts: Any, seq_lens: Any, next_n: int) -> None:
    """Refuse length arguments that exclude or need each other."""
    if row_ends is not None and seq_lens is not None:
        raise ValueError("row_ends or seq_lens must be None, got both")
    if row_starts is not None and row_ends is None:
        raise ValueError("row_starts must come with row_ends, got row_ends=None")
    if next_n != 1 and seq_lens is None:
        raise ValueError(f"next_n must be 1 without seq_lens, got {next_n}")


def check_per_row_shape(name: str, shape: tuple[int, ...], num_rows: int) -> None:
    """Refuse a shape other than (num_rows,)."""
    if shape != (num_rows,):
        raise ValueError(f"{name} must have shape (num_rows,) = ({num_rows},), got {shape}")


def check_seq_lens_shape(shape: tuple[int, ...], num_rows: int, next_n: int) -> None:
    """Refuse sequence lengths that do not make num_rows rows."""
    if len(shape) == 1:
        if num_rows % next_n:
            raise ValueError(f"next_n must divide num_rows = {num_rows}, got {next_n}")
        if shape[0] * next_n != num_rows:
            raise ValueError(
                f"seq_lens must have shape (num_rows / next_n,) = ({num_rows // next_n},), "
                f"got {shape}"
            )
    elif len(shape) != 2 or shape[0] * shape[1] != num_rows or (next_n != 1 and next_n != shape[1]):
        per_sequence = "next_n" if next_n == 1 else f"next_n = {next_n}"
        raise ValueError(
            f"seq_lens must have shape (batch,) or (batch, {per_sequence}) "
            f"with num_rows = {num_rows} in all, got {shape}"
        )


def _as_integers(name: str, value: Any) -> np.ndarray:
    array = as_array(name, value)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be int32, got {array.dtype}")
    return _saturated(array)


def _saturated(array: np.ndarray) -> np.ndarray:
    """Any integers as int64, so far from its ends that no sum of lengths wraps."""
    if array.dtype == np.int32:
        return array.astype(np.int64)  # all are, and a call of microseconds comes here
    least = 0 if array.dtype.kind == "u" else -FARTHEST
    farthest = min(FARTHEST, np.iinfo(array.dtype).max)
    return np.clip(array, max(least, np.iinfo(array.dtype).min), farthest).astype(np.int64)
