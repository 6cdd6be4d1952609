"""How is a selection called from PyTorch? `topk` and `topk_paged` are the calls for people."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from topk_lab.contract import MAX_COLUMNS, check_call, check_workspace
from topk_lab.contract.words import INT32_MAX, TIE_BREAKS, positive_int
from topk_lab.ops.operators import (
    MEMORY_TYPES,
    DeviceCall,
    default_variant,
    memory_of,
    plan_device_call,
    refuse_shape,
    refuse_variant,
    remember,
    select_directly,
    serves_directly,
    workspace_bytes,
)

__all__ = ["topk", "topk_paged", "workspace_size"]


def topk(
    logits: torch.Tensor,
    k: int,
    *,
    row_ends: torch.Tensor | None = None,
    row_starts: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    next_n: int = 1,
    variant: str = "auto",
    tie_break: str = "any",
    order: str = "any",
    out: torch.Tensor | None = None,
    values_out: torch.Tensor | None = None,
    return_values: bool = False,
    workspace: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Select the k greatest live logits of each row, exactly.

    Parameters
    ----------
    logits : (num_rows, num_cols) float32 tensor
        Scores. Last dimension contiguous, any row stride.
    k : int
        At least 1; what a variant takes at most is in `topk_lab.variants`.
    row_ends : (num_rows,) int32 tensor, optional
        Row r is live in columns [0, row_ends[r]); a negative end is an empty row, one above
        num_cols is clamped. Default: whole rows.
    row_starts : (num_rows,) int32 tensor, optional
        With `row_ends`: row r is live in [row_starts[r], row_ends[r]); indices count from the
        start.
    seq_lens : (batch,) or (batch, next_n) int32 tensor, optional
        In place of `row_ends`. 1-D: row r ends at
        ``seq_lens[r // next_n] - next_n + r % next_n + 1``. 2-D: as given.
    next_n : int, default 1
        Rows of a sequence, for 1-D `seq_lens`.
    variant : str, default "auto"
        A name of `topk_lab.variants`. "auto" chooses by shape and promises
        (`topk_lab.registry.auto` says what and why): ``cpu_delegate`` for CPU tensors, on a CUDA
        device ``delegate`` or ``vllm_k512``, whichever was faster.
    tie_break : {"any", "lowest"}
        Which of several equal logits at the cutoff are kept.
    order : {"any", "index", "value"}
        "index": rising; "value": descending, equal values by index.
    out : (num_rows, k) int32 tensor, optional
        Written and returned.
    values_out : (num_rows, k) float32 tensor, optional
        Written and returned; implies `return_values`.
    return_values : bool, default False
        Return the selected logits too.
    workspace : 1-D uint8 tensor, optional
        `workspace_size` bytes or more; allocated if absent.

    Returns
    -------
    indices : (num_rows, k) int32 tensor
        With m = min(k, live columns): m distinct columns, then -1.
    values : (num_rows, k) float32 tensor
        Only with `return_values`, and before the indices: their logits, then -inf.

    Raises
    ------
    TypeError
        A wrong type, dtype or device.
    ValueError
        A wrong shape, stride or number, or a promise that the variant does not make. Nothing has
        been written then.
    topk_lab.driver.DriverError, topk_lab.code_objects.CodeObjectError
        The device or its code object can't be used; the message names the fix.

    Notes
    -----
    The contract is stated in `topk_lab.contract`. NaN of either sign is the greatest value; -inf is
    an ordinary one. On a device the call waits for nothing, and allocates nothing if `out` (and
    `workspace` where one is needed) is given: it may be captured in a graph, which stays right for
    all later lengths and contents. Call once before capturing, so that the kernels are loaded.

    Examples
    --------
    >>> import torch, topk_lab
    >>> logits = torch.tensor([[0.5, 2.0, float("-inf"), 2.0, 1.0]])
    >>> topk_lab.topk(logits, 2).tolist()
    [[1, 3]]
    """
    key = _call_key(
        (logits, row_ends, row_starts, seq_lens, out, values_out, workspace),
        (type(k), k, type(next_n), next_n, variant, tie_break, order, bool(return_values)),
    )
    resolved = _resolved.get(key)
    if resolved is None:
        resolved = _resolve(
            key,
            _Question(
                *(logits, k, row_ends, row_starts, seq_lens, next_n, variant, tie_break, order),
                *(out, values_out, return_values, workspace),
            ),
        )
    if resolved.device_call and not is_in_torch_dispatch_mode():
        # What the operator would come to, without PyTorch's dispatcher, which nobody listens to.
        resolved.device_call.launch()
        return out if values_out is None else (values_out, out)
    device, num_rows = logits.device, logits.shape[0]
    if out is None:
        out = torch.empty((num_rows, resolved.k), dtype=torch.int32, device=device)
    with_values = return_values or values_out is not None
    if with_values and values_out is None:
        values_out = torch.empty((num_rows, resolved.k), dtype=torch.float32, device=device)
    if resolved.direct and not is_in_torch_dispatch_mode():
        # As above; with the dispatcher, a short row would take several times as long.
        select_directly(
            *(logits, row_ends if seq_lens is None else seq_lens.view(-1), row_starts),
            *(resolved.next_n, resolved.k, order, out, values_out),
        )
        return (values_out, out) if with_values else out
    torch.ops.topk_lab.topk_out(
        logits,
        _lengths(logits, row_ends, seq_lens),
        row_starts,
        resolved.next_n,
        resolved.k,
        resolved.variant,
        tie_break,
        order,
        out,
        values_out,
        _workspace(logits, workspace, resolved),
    )
    return (values_out, out) if with_values else out


def topk_paged(
    logits: torch.Tensor,
    k: int,
    page_table: torch.Tensor,
    page_size: int,
    *,
    row_ends: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    next_n: int = 1,
    variant: str = "auto",
    tie_break: str = "any",
    order: str = "any",
    out: torch.Tensor | None = None,
    raw_out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> torch.Tensor:
    """Select the k greatest live logits of each row, as slots of a paged cache.

    Parameters
    ----------
    logits : (num_rows, num_cols) float32 tensor
        Scores. Last dimension contiguous, any row stride.
    k : int
        At least 1; what a variant takes at most is in `topk_lab.variants`.
    page_table : (num_rows, pages) or (batch, pages) int32 tensor
        Page ids. A row of it serves one row of the logits, or the num_rows / batch rows of a
        sequence. Last dimension contiguous; pages * page_size is at least num_cols.
    page_size : int
        Logit columns a page, a power of two.
    row_ends, seq_lens, next_n
        As in `topk`. Lengths and pages count logit columns: where a column stands for several
        tokens, divide before (`row_ends_from`).
    variant : str, default "auto"
        As in `topk`. The SGLang and AITER variants write slots themselves; behind the others a
        second kernel transforms their indices.
    tie_break : {"any", "lowest"}
        Which of several equal logits at the cutoff are kept.
    order : {"any", "index", "value"}
        Of the columns whose slots are written: "index": rising.
    out : (num_rows, k) int32 tensor, optional
        Written and returned.
    raw_out : (num_rows, k) int32 tensor, optional
        Takes the columns that the slots stand for, as `topk` would return them.
    workspace : 1-D uint8 tensor, optional
        `workspace_size` bytes or more; allocated if absent.

    Returns
    -------
    slots : (num_rows, k) int32 tensor
        ``page_table[row, i // page_size] * page_size + i % page_size`` for each selected column i,
        then -1. -1 also where the page id is negative, or the slot passes int32.

    Raises
    ------
    TypeError
        A wrong type, dtype or device.
    ValueError
        A wrong shape, stride or number, a page size that is no power of two, a table narrower than
        the logits, or a promise that the variant does not make. Nothing has been written then.
    topk_lab.driver.DriverError, topk_lab.code_objects.CodeObjectError
        The device or its code object can't be used; the message names the fix.

    Notes
    -----
    The contract is stated in `topk_lab.contract`; the transform is that of SGLang's
    ``deepseek_v4_topk_transform_512``. As for `topk`, a call on a device may be captured, and reads
    lengths and table anew at every replay.

    Examples
    --------
    >>> import torch, topk_lab
    >>> logits = torch.tensor([[0.5, 2.0, float("-inf"), 2.0, 1.0]])
    >>> pages = torch.tensor([[7, 3, 5]], dtype=torch.int32)
    >>> topk_lab.topk_paged(logits, 3, pages, 2, order="index").tolist()
    [[15, 7, 10]]
    """
    key = _call_key(
        (logits, row_ends, seq_lens, page_table, out, raw_out, workspace),
        (type(k), k, type(next_n), next_n, variant, tie_break, order, type(page_size), page_size),
    )
    resolved = _resolved.get(key)
    if resolved is None:
        if page_table is None:
            raise TypeError("page_table must be a torch.Tensor, got None")
        resolved = _resolve(
            key,
            _Question(
                *(logits, k, row_ends, None, seq_lens, next_n, variant, tie_break, order),
                *(out, None, False, workspace, page_table, page_size, raw_out),
            ),
        )
    if resolved.device_call and not is_in_torch_dispatch_mode():
        resolved.device_call.launch()
        return out
    if out is None:
        shape = (logits.shape[0], resolved.k)
        out = torch.empty(shape, dtype=torch.int32, device=logits.device)
    torch.ops.topk_lab.topk_paged_out(
        logits,
        _lengths(logits, row_ends, seq_lens),
        resolved.next_n,
        resolved.k,
        page_table,
        page_size,
        resolved.variant,
        tie_break,
        order,
        out,
        raw_out,
        _workspace(logits, workspace, resolved),
    )
    return out


class _Question(NamedTuple):
    """The arguments of a call, as they came."""

    logits: Any
    k: Any
    row_ends: Any
    row_starts: Any
    seq_lens: Any
    next_n: Any
    variant: Any
    tie_break: Any
    order: Any
    out: Any
    values_out: Any
    return_values: Any
    workspace: Any
    page_table: Any = None
    page_size: Any = None
    raw_out: Any = None


class _Resolved(NamedTuple):
    """What is made of a call that was checked."""

    variant: str
    next_n: int
    k: int
    workspace_bytes: int
    device_call: DeviceCall | None  # where nothing is left to allocate
    direct: bool  # whether `select_directly` serves it


_resolved: dict[tuple, _Resolved] = {}


def _call_key(tensors: tuple, words: tuple) -> tuple | None:
    """What names a call; None where the next one's tensors could not be told from its own."""
    if torch.compiler.is_compiling():
        return None
    memory = []
    for tensor in tensors:
        if tensor is not None and type(tensor) not in MEMORY_TYPES:
            return None
        try:
            memory.append(memory_of(tensor))
        except RuntimeError:  # a tensor without memory
            return None
    key = (*memory, *words)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _resolve(key: tuple | None, question: _Question) -> _Resolved:
    """What a call comes to, remembered under its key."""
    logits, variant = question.logits, question.variant
    tie_break, order = question.tie_break, question.order
    call = check_call(
        logits,
        question.k,
        row_ends=question.row_ends,
        row_starts=question.row_starts,
        seq_lens=question.seq_lens,
        next_n=question.next_n,
        out=question.out,
        values_out=question.values_out,
        workspace=question.workspace,
        tie_break=tie_break,
        order=order,
        page_table=question.page_table,
        page_size=question.page_size,
        raw_out=question.raw_out,
    )
    if variant == "auto":
        variant = default_variant(
            logits.device, call.num_rows, call.num_cols, call.k, tie_break, order
        )
    refuse_variant(variant, logits.device, tie_break, order)
    refuse_shape(variant, call.num_rows, call.num_cols, call.k)
    required = workspace_bytes(variant, call.num_rows, call.num_cols, call.k)
    if call.workspace is not None:
        check_workspace(call.workspace, required)
    complete = call.out is not None and call.lengths is not None
    complete &= (call.workspace is not None or not required) and (
        call.values_out is not None or not question.return_values
    )
    device_call = None
    real = type(logits) in MEMORY_TYPES and not torch.compiler.is_compiling()
    if complete and real and logits.is_cuda:
        device_call = plan_device_call(call, logits, variant)
    direct = key is not None and real and serves_directly(variant, logits)
    resolved = _Resolved(variant, call.next_n, call.k, required, device_call, direct)
    if key is not None:
        remember(_resolved, key, resolved)
    return resolved


def _lengths(
    logits: torch.Tensor, row_ends: torch.Tensor | None, seq_lens: torch.Tensor | None
) -> torch.Tensor:
    """The lengths as the operators take them, 1-D; made where every column is live."""
    if seq_lens is not None:
        return seq_lens.view(-1)
    if row_ends is not None:
        return row_ends
    num_rows, num_cols = logits.shape
    return torch.full((num_rows,), num_cols, dtype=torch.int32, device=logits.device)


def _workspace(
    logits: torch.Tensor, workspace: torch.Tensor | None, resolved: _Resolved
) -> torch.Tensor | None:
    if workspace is not None or not resolved.workspace_bytes:
        return workspace
    return torch.empty(resolved.workspace_bytes, dtype=torch.uint8, device=logits.device)


def _size(name: str, value: object) -> int:
    """A dimension of the logits."""
    return positive_int(name, value, MAX_COLUMNS) if value != 0 else 0


def workspace_size(
    num_rows: int, num_cols: int, k: int, variant: str = "auto", device: object = None
) -> int:
    """Bytes of workspace that a call needs, whatever its lengths.

    Parameters
    ----------
    num_rows, num_cols, k : int
        Shape of the call.
    variant : str, default "auto"
        As in `topk`.
    device : torch.device or str, optional
        Where the logits will be; default CPU.

    Returns
    -------
    int

    Raises
    ------
    TypeError, ValueError
        Not a size, a device or a variant, or a shape that the variant does not take.
    """
    num_rows, num_cols = (
        _size(name, value) for name, value in (("num_rows", num_rows), ("num_cols", num_cols))
    )
    k = positive_int("k", k, INT32_MAX)
    try:
        place = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must name a torch device, got {device!r}") from error
    # "auto" may stand for one variant or another, as promises are asked for.
    chosen = (
        {default_variant(place, num_rows, num_cols, k, promise, "any") for promise in TIE_BREAKS}
        if variant == "auto"
        else {variant}
    )
    for name in chosen:
        refuse_variant(name, place, "any", "any")
        refuse_shape(name, num_rows, num_cols, k)
    return max(workspace_bytes(name, num_rows, num_cols, k) for name in chosen)
