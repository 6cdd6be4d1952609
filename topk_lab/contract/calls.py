"""Is this a right call, and what does it ask for?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topk_lab.contract.lengths import (
    check_length_arguments,
    check_per_row_shape,
    check_seq_lens_shape,
)
from topk_lab.contract.words import (
    GREATEST_PAGE,
    INT32_MAX,
    MAX_COLUMNS,
    ORDERS,
    TIE_BREAKS,
    check_word,
    dtype_name,
    positive_int,
    type_name,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Pages:
    """Where the columns of each row lie in a paged cache.

    Attributes
    ----------
    table : (num_rows / next_n, pages) int32 tensor
        Page ids: column i of row r lies in page ``table[r // next_n, i >> bits]``. As wide as the
        logits, any row stride.
    bits : int
        A page holds ``2**bits`` columns.
    next_n : int
        Rows that share a row of the table.
    """

    table: torch.Tensor
    bits: int
    next_n: int


@dataclass(frozen=True)
class Call:
    """A call that passed `check_call`, its lengths in one form.

    Attributes
    ----------
    num_rows, num_cols, k : int
    row_stride : int
        Elements from one row of the logits to the next; may be 0 or below `num_cols`.
    next_n : int
        0: `lengths` are the row ends (num_rows,); else they are sequence lengths
        (num_rows / next_n,), see `row_ends_from`.
    lengths : int32 tensor or None
        1-D and contiguous, on the device of the logits; None if every column is live.
    row_starts : (num_rows,) int32 tensor or None
    out : (num_rows, k) int32 tensor or None
        Any row stride of at least k.
    values_out : (num_rows, k) float32 tensor or None
        Any row stride of at least k.
    tie_break, order : str
    workspace : 1-D uint8 tensor or None
        Its size is the plan's to check, by `check_workspace`.
    pages : Pages or None
        Given, `out` takes slots of a paged cache, and `raw_out` the indices.
    raw_out : (num_rows, k) int32 tensor or None
        Any row stride of at least k.
    """

    num_rows: int
    num_cols: int
    k: int
    row_stride: int
    next_n: int
    lengths: torch.Tensor | None
    row_starts: torch.Tensor | None
    out: torch.Tensor | None
    values_out: torch.Tensor | None
    tie_break: str
    order: str
    workspace: torch.Tensor | None = None
    pages: Pages | None = None
    raw_out: torch.Tensor | None = None


def check_call(
    logits: torch.Tensor,
    k: int,
    *,
    row_ends: torch.Tensor | None = None,
    row_starts: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    next_n: int = 1,
    out: torch.Tensor | None = None,
    values_out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    tie_break: str = "any",
    order: str = "any",
    page_table: torch.Tensor | None = None,
    page_size: int | None = None,
    raw_out: torch.Tensor | None = None,
) -> Call:
    """Refuse what the host can see to be wrong, before anything is launched or written.

    Parameters
    ----------
    logits : (num_rows, num_cols) float32 tensor
        Last dimension contiguous, any row stride (0: one row shared by all).
    k : int
        At least 1. What a variant takes at most is the variant's to check.
    row_ends, row_starts : (num_rows,) int32 tensor, contiguous, optional
    seq_lens : (num_rows / next_n,) or (batch, next_n) int32 tensor, contiguous, optional
        In place of `row_ends`.
    next_n : int, default 1
        Rows per sequence of a 1-D `seq_lens`.
    out : (num_rows, k) int32 tensor, optional
        Last dimension contiguous, row stride at least k, sharing memory with nothing else.
    values_out : (num_rows, k) float32 tensor, optional
        As `out`.
    workspace : 1-D uint8 tensor, contiguous, optional
    tie_break : {"any", "lowest"}
    order : {"any", "index", "value"}
    page_table : (num_rows, pages) or (batch, pages) int32 tensor, optional
        With `page_size`: `out` takes slots of a paged cache. A row of it serves the num_rows /
        batch rows of a sequence. Last dimension contiguous, never narrower than the logits.
    page_size : int, optional
        Columns of a page, a power of two.
    raw_out : (num_rows, k) int32 tensor, optional
        As `out`, with `page_table` only: takes the indices.

    Returns
    -------
    Call

    Raises
    ------
    TypeError
        Not a tensor, or a wrong dtype or device.
    ValueError
        A wrong shape, stride, number or word, or two length arguments that exclude each other. Each
        message names the argument, what was required and what came.
    """
    check_tensor("logits", logits, "float32")
    if logits.ndim != 2:
        raise ValueError(f"logits must have shape (num_rows, num_cols), got {tuple(logits.shape)}")
    num_rows, num_cols = logits.shape
    if num_rows > INT32_MAX or num_cols > MAX_COLUMNS:
        raise ValueError(
            f"logits must have at most {INT32_MAX} rows and {MAX_COLUMNS} columns, "
            f"got shape {tuple(logits.shape)}"
        )
    row_stride, column_stride = logits.stride()
    if column_stride != 1 and num_cols > 1 and num_rows > 0:
        raise ValueError(
            "logits must be contiguous in the last dimension (stride 1), "
            f"got strides {logits.stride()}"
        )
    if num_rows * row_stride * 4 >= 2**63:
        raise ValueError(
            f"logits must span less than 2**63 bytes, got {num_rows} rows of stride {row_stride}"
        )
    k = positive_int("k", k, INT32_MAX)
    next_n = positive_int("next_n", next_n, INT32_MAX)
    check_word("tie_break", tie_break, TIE_BREAKS)
    check_word("order", order, ORDERS)

    check_length_arguments(row_ends, row_starts, seq_lens, next_n)
    device = logits.device
    lengths, lengths_next_n = row_ends, 0
    if row_ends is not None:
        _check_lengths("row_ends", row_ends, device)
        check_per_row_shape("row_ends", tuple(row_ends.shape), num_rows)
    if row_starts is not None:
        _check_lengths("row_starts", row_starts, device)
        check_per_row_shape("row_starts", tuple(row_starts.shape), num_rows)
    if seq_lens is not None:
        _check_lengths("seq_lens", seq_lens, device)
        check_seq_lens_shape(tuple(seq_lens.shape), num_rows, next_n)
        lengths = seq_lens.view(-1)
        lengths_next_n = next_n if seq_lens.ndim == 1 else 0

    if out is not None:
        _check_output("out", out, "int32", device, num_rows, k)
    if values_out is not None:
        _check_output("values_out", values_out, "float32", device, num_rows, k)
    pages = None
    if page_table is not None:
        per_sequence = None
        if seq_lens is not None:
            per_sequence = next_n if seq_lens.ndim == 1 else seq_lens.shape[1]
        pages = _check_pages(page_table, page_size, device, num_rows, num_cols, per_sequence)
    elif page_size is not None or raw_out is not None:
        name = "raw_out" if page_size is None else "page_size"
        raise ValueError(f"{name} must come with page_table, got page_table=None")
    if raw_out is not None:
        _check_output("raw_out", raw_out, "int32", device, num_rows, k)
    if workspace is not None:
        check_tensor("workspace", workspace, "uint8", device)
        if workspace.ndim != 1 or not workspace.is_contiguous():
            raise ValueError(
                f"workspace must be 1-D and contiguous, got shape {tuple(workspace.shape)} "
                f"and strides {workspace.stride()}"
            )
    if not (out is values_out is workspace is raw_out is None or logits.is_meta):
        _check_disjoint(
            (
                ("out", out),
                ("values_out", values_out),
                ("raw_out", raw_out),
                ("workspace", workspace),
            ),
            (
                ("logits", logits),
                ("row_ends", row_ends),
                ("row_starts", row_starts),
                ("seq_lens", seq_lens),
                ("page_table", page_table),
            ),
        )
    return Call(
        num_rows,
        num_cols,
        k,
        row_stride,
        lengths_next_n,
        lengths,
        row_starts,
        out,
        values_out,
        tie_break,
        order,
        workspace,
        pages,
        raw_out,
    )


def check_pages_shape(
    shape: tuple[int, ...],
    page_size: int,
    num_rows: int,
    num_cols: int,
    per_sequence: int | None = None,
) -> tuple[int, int]:
    """Refuse a page table that does not serve the rows, or not all of their columns.

    Parameters
    ----------
    shape : tuple of int
        Of the table.
    page_size : int
        Columns of a page, a power of two.
    num_rows, num_cols : int
        Shape of the logits.
    per_sequence : int, optional
        Rows of a sequence, where the lengths say it.

    Returns
    -------
    bits, next_n : int
        A page holds ``2**bits`` columns, `next_n` rows share a row of the table.

    Raises
    ------
    TypeError
        A page size that is no int.
    ValueError
        Another shape or size; names both.
    """
    page_size = positive_int("page_size", page_size, GREATEST_PAGE)
    if page_size & (page_size - 1):
        raise ValueError(f"page_size must be a power of two, got {page_size}")
    if len(shape) != 2:
        raise ValueError(
            f"page_table must have shape (num_rows, pages) or (batch, pages), got {shape}"
        )
    table_rows, pages = shape
    shared = table_rows and num_rows % table_rows == 0 and num_rows > table_rows
    next_n = num_rows // table_rows if shared else 1
    # Compared, not looked up: symbolic sizes are equal to numbers, but not found among them.
    if table_rows != num_rows and (
        not shared or (per_sequence is not None and per_sequence != next_n)
    ):
        batch = num_rows // per_sequence if per_sequence else "batch"
        raise ValueError(
            f"page_table must have shape (num_rows, pages) = ({num_rows}, pages) or "
            f"({batch}, pages) for the rows of a sequence, got {shape}"
        )
    needed = -(-num_cols // page_size)
    if pages < needed:
        raise ValueError(
            f"page_table must have at least {needed} pages of {page_size} for {num_cols} columns, "
            f"got {pages} in shape {shape}"
        )
    return page_size.bit_length() - 1, next_n


def _check_pages(
    page_table: Any,
    page_size: Any,
    device: Any,
    num_rows: int,
    num_cols: int,
    per_sequence: int | None,
) -> Pages:
    check_tensor("page_table", page_table, "int32", device)
    shape = tuple(page_table.shape)
    bits, next_n = check_pages_shape(shape, page_size, num_rows, num_cols, per_sequence)
    if shape[1] > 1 and shape[0] > 0 and page_table.stride(1) != 1:
        raise ValueError(
            "page_table must be contiguous in the last dimension (stride 1), "
            f"got strides {page_table.stride()}"
        )
    return Pages(page_table, bits, next_n)


def check_workspace(workspace: torch.Tensor | None, required_bytes: int) -> None:
    """Refuse a workspace that is too small for its plan.

    Parameters
    ----------
    workspace : 1-D uint8 tensor or None
    required_bytes : int

    Raises
    ------
    ValueError
        Fewer than `required_bytes`, or none where some are required.
    """
    if required_bytes and workspace is None:
        raise ValueError(f"workspace must hold {required_bytes} bytes, got None")
    if workspace is not None and workspace.numel() < required_bytes:
        raise ValueError(
            f"workspace must hold at least {required_bytes} bytes, got {workspace.numel()}"
        )


def check_tensor(name: str, value: Any, dtype: str, device: Any = None) -> None:
    """Refuse what is no dense tensor of a dtype, or lies on another device."""
    import torch

    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type_name(value)}")
    if value.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {value.layout}")
    if value.dtype is not getattr(torch, dtype):
        raise TypeError(f"{name} must be {dtype}, got {dtype_name(value)}")
    if not torch.compiler.is_compiling() and value.is_neg():
        raise TypeError(f"{name} must hold its values in memory, got a lazily negated view")
    if device is not None and value.device != device:
        raise TypeError(f"{name} must be on the device of logits, {device}, got {value.device}")


def _check_lengths(name: str, value: Any, device: Any) -> None:
    check_tensor(name, value, "int32", device)
    if not value.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {value.stride()}")


def _check_output(name: str, value: Any, dtype: str, device: Any, num_rows: int, k: int) -> None:
    import torch

    check_tensor(name, value, dtype, device)
    if tuple(value.shape) != (num_rows, k):
        raise ValueError(
            f"{name} must have shape (num_rows, k) = ({num_rows}, {k}), got {tuple(value.shape)}"
        )
    if value.requires_grad:
        raise ValueError(f"{name} must not require a gradient, got one that does")
    eager = not torch.compiler.is_compiling()
    if eager and value.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(f"{name} must not be an inference tensor outside of inference mode")
    row_stride, column_stride = value.stride()
    if column_stride != 1 and k > 1 and num_rows > 0:
        raise ValueError(
            f"{name} must be contiguous in the last dimension (stride 1), "
            f"got strides {value.stride()}"
        )
    if row_stride < k and num_rows > 1:
        raise ValueError(
            f"{name} must have a row stride of at least k = {k}, got strides {value.stride()}"
        )


def _check_disjoint(
    written: Iterable[tuple[str, torch.Tensor | None]],
    read: Iterable[tuple[str, torch.Tensor | None]],
) -> None:
    """Refuse written memory that something else of the call uses too.

    Rows that interleave in one buffer are told apart when both have the same row stride.
    """
    import torch

    if torch.compiler.is_compiling():
        return  # tensors without addresses: what overlaps in a compiled graph goes unseen
    writes = _regions(written)
    others = writes + _regions(read)
    for position, (name, first, end, width, stride) in enumerate(writes, start=1):
        for other, other_first, other_end, other_width, other_stride in others[position:]:
            if end <= other_first or other_end <= first:
                continue
            if stride == other_stride > 0:
                offset = (other_first - first) % stride
                if offset >= width and offset + other_width <= stride:
                    continue
            raise ValueError(f"{name} must not share memory with {other}, got overlapping tensors")


def _regions(
    tensors: Iterable[tuple[str, torch.Tensor | None]],
) -> list[tuple[str, int, int, int, int]]:
    """Name, first byte, end, bytes of a row, bytes from row to row; a 1-D tensor is one row."""
    import torch

    regions = []
    for name, tensor in tensors:
        # A fake tensor is another subclass; it has no memory.
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.numel():
            continue
        size = tensor.element_size()
        first = tensor.data_ptr()
        shape = tensor.shape
        width = shape[-1] * size
        stride = tensor.stride(0) * size if len(shape) == 2 else 0
        regions.append((name, first, first + (shape[0] - 1) * stride + width, width, stride))
    return regions
