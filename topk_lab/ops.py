"""How is a selection called from PyTorch?

`topk` is the call for people; ``torch.ops.topk_lab.topk_out`` is the operator beneath it: it writes
to tensors that the caller owns, and is registered when this module is first imported. CPU tensors
go to Numba, tensors on a HIP or CUDA device to the compiled kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from topk_lab import driver, plans, registry, schedules
from topk_lab.contract import MAX_COLUMNS, Call, check_call, check_workspace, live_bounds
from topk_lab.contract.words import INT32_MAX, positive_int
from topk_lab.reference import exact, vllm

__all__ = ["topk", "torch_select", "workspace_size"]

SCHEMA = (
    "topk_out(Tensor logits, Tensor row_ends, Tensor? row_starts, int next_n, int k, str variant, "
    "str tie_break, str order, Tensor(a!) out, Tensor(b!)? values, Tensor(c!)? workspace) -> ()"
)

_library = torch.library.Library("topk_lab", "DEF")
_library.define(SCHEMA)


def _refuse_shape(variant: str, num_rows: int, num_cols: int, k: int) -> None:
    """Raise ValueError where a plan for the shape would; plans hold no symbolic sizes."""
    if variant.partition("[")[0] in schedules.POLICIES and not torch.compiler.is_compiling():
        plans.plan(variant, plans.Shape(num_rows, num_cols, k, num_cols, k))


def _workspace_bytes(variant: str, num_rows: int, num_cols: int, k: int) -> int:
    name = variant.partition("[")[0]
    if name not in schedules.POLICIES:
        return 0
    return plans.workspace_bytes(name, num_rows, num_cols, k)


def _default_variant(device: torch.device, num_rows: int, num_cols: int, k: int) -> str:
    return "reference" if device.type in ("cpu", "meta") else registry.gated(num_rows, num_cols, k)


def _refuse_variant(variant: str, device: torch.device, tie_break: str, order: str) -> None:
    """Raise where the variant does not promise what is asked, or does not run on the device."""
    info = registry.resolve(variant, tie_break=tie_break, order=order)
    wanted = ("numba", "torch") if device.type in ("cpu", "meta") else ("hip", "cuda")
    if not set(wanted) & set(info.targets):
        able = [
            other.name for other in registry.VARIANTS.values() if set(wanted) & set(other.targets)
        ]
        raise ValueError(f"variant must be one of {', '.join(able)} on {device}, got {variant!r}")


def _checked(
    logits, row_ends, row_starts, next_n, k, variant, tie_break, order, out, values, workspace
) -> Call:
    """Everything that is checked before a variant runs, for real and for fake tensors."""
    lengths = {"row_ends": row_ends} if next_n == 0 else {"seq_lens": row_ends, "next_n": next_n}
    call = check_call(
        logits,
        k,
        row_starts=row_starts,
        out=out,
        values_out=values,
        workspace=workspace,
        tie_break=tie_break,
        order=order,
        **lengths,
    )
    _refuse_variant(variant, logits.device, tie_break, order)
    check_workspace(workspace, _workspace_bytes(variant, call.num_rows, call.num_cols, call.k))
    return call


def _bounds(call: Call) -> tuple[np.ndarray, np.ndarray]:
    lengths = {}
    if call.lengths is not None:
        name = "seq_lens" if call.next_n else "row_ends"
        lengths[name] = call.lengths.numpy()
    if call.row_starts is not None:
        lengths["row_starts"] = call.row_starts.numpy()
    return live_bounds(call.num_rows, call.num_cols, next_n=max(call.next_n, 1), **lengths)


def torch_select(
    logits: torch.Tensor, k: int, starts: np.ndarray, ends: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.topk over order keys, so that masked columns can't tie with -inf logits."""
    num_rows, num_cols = logits.shape
    kept = min(k, num_cols)
    indices = torch.full((num_rows, k), -1, dtype=torch.int32)
    values = torch.full((num_rows, k), -torch.inf)
    bits = (logits + 0.0).view(torch.int32)  # -0.0 becomes +0.0
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys.masked_fill_(logits.isnan(), 0x7FFFFFFF)
    columns = torch.arange(num_cols)
    first, last = torch.from_numpy(starts)[:, None], torch.from_numpy(ends)[:, None]
    keys.masked_fill_((columns < first) | (columns >= last), -(2**31))
    best, where = torch.topk(keys, kept, dim=1)
    live = best > -(2**31)
    indices[:, :kept] = torch.where(live, where - first, -1).to(torch.int32)
    values[:, :kept] = torch.where(live, logits.gather(1, where), -torch.inf)
    return indices, values


def _topk_out_cpu(
    logits, row_ends, row_starts, next_n, k, variant, tie_break, order, out, values, workspace
) -> None:
    call = _checked(
        logits, row_ends, row_starts, next_n, k, variant, tie_break, order, out, values, workspace
    )
    _refuse_shape(variant, call.num_rows, call.num_cols, call.k)
    starts, ends = _bounds(call)
    live = logits.detach()
    if variant == "torch":
        indices, chosen = torch_select(live, k, starts, ends)
    elif variant == "reference":
        indices, chosen = map(
            torch.from_numpy, exact.select(live.numpy(), k, starts, ends, order=order)
        )
    else:
        selection = vllm.select(variant, live.numpy(), k, starts, ends)
        indices, chosen = map(torch.from_numpy, (selection.indices, selection.values))
    out.copy_(indices)
    if values is not None:
        values.copy_(chosen)


class _DeviceCall(NamedTuple):
    """A call that was checked and planned; valid for the same tensors at the same addresses."""

    prepared: driver.Prepared
    addresses: tuple[int, ...]  # of the prepared plan's buffers
    index: int  # of the device


def _place(logits: torch.Tensor) -> tuple[str, int]:
    """Platform and index of the device that holds the logits."""
    return driver.platform(), logits.device.index


def _stream(index: int) -> int:
    # torch.cuda.current_stream(index).cuda_stream without the object that it makes.
    return torch._C._cuda_getCurrentRawStream(index)


# Repeated calls on the same memory, as a decode loop makes them, skip the checks: they take longer
# than a launch. A table is dropped as a whole when it is full.
_MOST_CALLS = 4096
_MEMORY_TYPES = (torch.Tensor, torch.nn.Parameter)


def _memory(tensor: torch.Tensor | None) -> tuple | None:
    """All of a tensor that a check looks at, but for whether it is negated lazily."""
    if tensor is None:
        return None
    return (
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.get_device(),
    )


def _remember(table: dict[tuple, Any], key: tuple, value: Any) -> None:
    if len(table) >= _MOST_CALLS:
        table.clear()
    table[key] = value


_device_calls: dict[tuple, _DeviceCall] = {}


def _plan_device_call(*arguments) -> _DeviceCall:
    call = _checked(*arguments)
    logits, row_ends, row_starts, _, _, variant, _, _, out, values, workspace = arguments
    if workspace is not None and workspace.data_ptr() % 4:
        raise ValueError("workspace must be 4-byte aligned, got an odd slice")
    shape = plans.Shape(
        num_rows=call.num_rows,
        num_cols=call.num_cols,
        k=call.k,
        row_stride=call.row_stride,
        indices_stride=out.stride(0),
        values_stride=None if values is None else values.stride(0),
        next_n=call.next_n,
        has_row_starts=row_starts is not None,
    )
    platform, index = _place(logits)
    tensors = {
        "logits": logits,
        "row_ends": row_ends,
        "row_starts": row_starts,
        "indices": out,
        "values": values,
        "workspace": workspace,
    }
    prepared = driver.prepare(
        plans.plan(variant, shape), driver.open_device(platform, index), _stream(index)
    )
    return _DeviceCall(
        prepared, tuple(tensors[name].data_ptr() for name in prepared.buffers), index
    )


def _topk_out_device(
    logits, row_ends, row_starts, next_n, k, variant, tie_break, order, out, values, workspace
) -> None:
    key = (
        _memory(logits),
        _memory(row_ends),
        _memory(row_starts),
        *(next_n, k, variant, tie_break, order),
        _memory(out),
        _memory(values),
        _memory(workspace),
    )
    call = _device_calls.get(key)
    if call is None:
        call = _plan_device_call(
            *(logits, row_ends, row_starts, next_n, k, variant, tie_break, order),
            *(out, values, workspace),
        )
        _remember(_device_calls, key, call)
    call.prepared.launch(call.addresses, _stream(call.index))


def _topk_out_fake(*arguments) -> None:
    _checked(*arguments)


_library.impl("topk_out", _topk_out_cpu, "CPU")
_library.impl("topk_out", _topk_out_device, "CUDA")  # PyTorch's name for HIP devices too
torch.library.register_fake("topk_lab::topk_out", _topk_out_fake, lib=_library)


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
        A name of `topk_lab.variants`. "auto" is ``reference`` for CPU tensors; on a device
        ``vllm_k512`` inside its gate, else ``vllm_generic``.
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
    arguments = (
        *(logits, k, row_ends, row_starts, seq_lens, next_n, variant, tie_break, order),
        *(out, values_out, return_values, workspace),
    )
    key = None if torch.compiler.is_compiling() else _call_key(*arguments)
    resolved = _resolved.get(key)
    if resolved is None:
        resolved = _resolve(*arguments)
        if key is not None:
            _remember(_resolved, key, resolved)
    if resolved.device_call and not is_in_torch_dispatch_mode():
        # What the operator would come to, without PyTorch's dispatcher, which nobody listens to.
        call = resolved.device_call
        call.prepared.launch(call.addresses, _stream(call.index))
        return out if values_out is None else (values_out, out)
    device = logits.device
    num_rows, num_cols = logits.shape
    lengths = row_ends
    if seq_lens is not None:
        lengths = seq_lens.view(-1)
    elif lengths is None:
        lengths = torch.full((num_rows,), num_cols, dtype=torch.int32, device=device)
    with_values = return_values or values_out is not None
    if out is None:
        out = torch.empty((num_rows, resolved.k), dtype=torch.int32, device=device)
    if with_values and values_out is None:
        values_out = torch.empty((num_rows, resolved.k), dtype=torch.float32, device=device)
    if resolved.workspace_bytes and workspace is None:
        workspace = torch.empty(resolved.workspace_bytes, dtype=torch.uint8, device=device)
    torch.ops.topk_lab.topk_out(
        logits,
        lengths,
        row_starts,
        resolved.next_n,
        resolved.k,
        resolved.variant,
        tie_break,
        order,
        out,
        values_out,
        workspace,
    )
    return (values_out, out) if with_values else out


def _call_key(
    logits, k, row_ends, row_starts, seq_lens, next_n, variant, tie_break, order,
    out, values_out, return_values, workspace,
) -> tuple | None:  # fmt: skip
    """What names a call; None where the next one's tensors could not be told from its own."""
    tensors = (logits, row_ends, row_starts, seq_lens, out, values_out, workspace)
    if any(type(tensor) not in _MEMORY_TYPES for tensor in tensors if tensor is not None):
        return None
    try:
        if logits.is_neg() or (values_out is not None and values_out.is_neg()):
            return None
        key = (
            *map(_memory, tensors),
            *(type(k), k, type(next_n), next_n, variant, tie_break, order, bool(return_values)),
        )
        hash(key)
    except (TypeError, RuntimeError):  # unhashable, or a tensor without memory
        return None
    return key


class _Resolved(NamedTuple):
    """What `topk` makes of a call that was checked."""

    variant: str
    next_n: int
    k: int
    workspace_bytes: int
    device_call: _DeviceCall | None  # where nothing is left to allocate


_resolved: dict[tuple, _Resolved] = {}


def _resolve(
    logits, k, row_ends, row_starts, seq_lens, next_n, variant, tie_break, order,
    out, values_out, return_values, workspace,
) -> _Resolved:  # fmt: skip
    call = check_call(
        logits,
        k,
        row_ends=row_ends,
        row_starts=row_starts,
        seq_lens=seq_lens,
        next_n=next_n,
        out=out,
        values_out=values_out,
        workspace=workspace,
        tie_break=tie_break,
        order=order,
    )
    if variant == "auto":
        variant = _default_variant(logits.device, call.num_rows, call.num_cols, call.k)
    _refuse_variant(variant, logits.device, tie_break, order)
    _refuse_shape(variant, call.num_rows, call.num_cols, call.k)
    required = _workspace_bytes(variant, call.num_rows, call.num_cols, call.k)
    if workspace is not None:
        check_workspace(workspace, required)
    complete = out is not None and call.lengths is not None
    complete &= (workspace is not None or not required) and (
        values_out is not None or not return_values
    )
    device_call = None
    real = type(logits) in _MEMORY_TYPES and not torch.compiler.is_compiling()
    if complete and real and logits.is_cuda:
        device_call = _plan_device_call(
            logits, call.lengths, row_starts, call.next_n, call.k, variant, tie_break, order,
            out, values_out, workspace,
        )  # fmt: skip
    return _Resolved(variant, call.next_n, call.k, required, device_call)


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
    if variant == "auto":
        variant = _default_variant(place, num_rows, num_cols, k)
    _refuse_variant(variant, place, "any", "any")
    _refuse_shape(variant, num_rows, num_cols, k)
    return _workspace_bytes(variant, num_rows, num_cols, k)
