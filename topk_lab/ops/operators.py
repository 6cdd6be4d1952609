"""What do the PyTorch operators do, on each kind of device?

``torch.ops.topk_lab.topk_out`` and ``topk_paged_out`` write to tensors that the caller owns, and
are registered when this module is first imported. CPU tensors go to Numba, tensors on a HIP or CUDA
device to the compiled kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from topk_lab import cpu, driver, plans, registry, schedules
from topk_lab.contract import Call, check_call, check_workspace, live_bounds
from topk_lab.reference import exact, paging, twins

__all__ = [
    "MEMORY_TYPES",
    "DeviceCall",
    "current_stream",
    "default_variant",
    "memory_of",
    "plan_device_call",
    "refuse_shape",
    "refuse_variant",
    "remember",
    "select_directly",
    "serves_directly",
    "torch_select",
    "workspace_bytes",
]

SCHEMAS = (
    "topk_out(Tensor logits, Tensor row_ends, Tensor? row_starts, int next_n, int k, str variant, "
    "str tie_break, str order, Tensor(a!) out, Tensor(b!)? values, Tensor(c!)? workspace) -> ()",
    "topk_paged_out(Tensor logits, Tensor row_ends, int next_n, int k, Tensor page_table, "
    "int page_size, str variant, str tie_break, str order, Tensor(a!) out, Tensor(b!)? raw_out, "
    "Tensor(c!)? workspace) -> ()",
)

_library = torch.library.Library("topk_lab", "DEF")
for _schema in SCHEMAS:
    _library.define(_schema)


def refuse_shape(variant: str, num_rows: int, num_cols: int, k: int) -> None:
    """Raise ValueError where a plan for the shape would; plans hold no symbolic sizes."""
    if variant.partition("[")[0] in schedules.POLICIES and not torch.compiler.is_compiling():
        plans.plan(variant, plans.Shape(num_rows, num_cols, k, num_cols, k))


def workspace_bytes(variant: str, num_rows: int, num_cols: int, k: int) -> int:
    """Bytes of workspace that a variant needs for a shape."""
    if variant.partition("[")[0] not in schedules.POLICIES:
        return 0
    return plans.workspace_bytes(variant, num_rows, num_cols, k)


def default_variant(
    device: torch.device, num_rows: int, num_cols: int, k: int, tie_break: str, order: str
) -> str:
    """What "auto" stands for."""
    platform = "cpu" if device.type in ("cpu", "meta") else "hip" if torch.version.hip else "cuda"
    chosen = registry.auto(platform, num_rows, num_cols, k, tie_break=tie_break, order=order)
    return chosen.variant


def refuse_variant(variant: str, device: torch.device, tie_break: str, order: str) -> None:
    """Raise where the variant does not promise what is asked, or does not run on the device."""
    info = registry.resolve(variant, tie_break=tie_break, order=order)
    wanted = ("numba", "torch") if device.type in ("cpu", "meta") else ("hip", "cuda")
    if not set(wanted) & set(info.targets):
        able = [
            other.name for other in registry.VARIANTS.values() if set(wanted) & set(other.targets)
        ]
        raise ValueError(f"variant must be one of {', '.join(able)} on {device}, got {variant!r}")


def _checked(
    logits, row_ends, next_n, k, variant, tie_break, order, out, workspace, **arguments
) -> Call:
    """Everything that is checked before a variant runs, for real and for fake tensors."""
    lengths = {"row_ends": row_ends} if next_n == 0 else {"seq_lens": row_ends, "next_n": next_n}
    call = check_call(
        logits,
        k,
        out=out,
        workspace=workspace,
        tie_break=tie_break,
        order=order,
        **lengths,
        **arguments,
    )
    refuse_variant(variant, logits.device, tie_break, order)
    check_workspace(workspace, workspace_bytes(variant, call.num_rows, call.num_cols, call.k))
    return call


def _checked_topk(
    logits, row_ends, row_starts, next_n, k, variant, tie_break, order, out, values, workspace
) -> Call:
    return _checked(
        *(logits, row_ends, next_n, k, variant, tie_break, order, out, workspace),
        row_starts=row_starts,
        values_out=values,
    )


def _checked_paged(
    logits, row_ends, next_n, k, page_table, page_size, variant, tie_break, order, out, raw_out,
    workspace,
) -> Call:  # fmt: skip
    return _checked(
        *(logits, row_ends, next_n, k, variant, tie_break, order, out, workspace),
        page_table=page_table,
        page_size=page_size,
        raw_out=raw_out,
    )


def _bounds(
    logits: torch.Tensor,
    lengths: torch.Tensor | None,
    row_starts: torch.Tensor | None,
    next_n: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Live columns of the rows of a checked call."""
    given = {}
    if lengths is not None:
        given["seq_lens" if next_n else "row_ends"] = lengths.numpy()
    if row_starts is not None:
        given["row_starts"] = row_starts.numpy()
    return live_bounds(*logits.shape, next_n=max(next_n, 1), **given)


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


def serves_directly(variant: str, logits: torch.Tensor) -> bool:
    """Whether `select_directly` is what the operator would come to."""
    return variant == "cpu_delegate" and logits.device.type == "cpu"


def select_directly(
    logits: torch.Tensor,
    lengths: torch.Tensor | None,
    row_starts: torch.Tensor | None,
    next_n: int,
    k: int,
    order: str,
    indices: torch.Tensor,
    values: torch.Tensor | None,
) -> None:
    """Write what ``cpu_delegate`` selects, for a call that was checked.

    Parameters
    ----------
    logits, lengths, row_starts, next_n, k, order
        As in `topk_lab.contract.Call`.
    indices : (num_rows, k) int32 tensor
        Written.
    values : (num_rows, k) float32 tensor or None
        Written.
    """
    num_rows, num_cols = logits.shape
    row_stride = logits.stride(0) if num_rows > 1 else 0
    span = (num_rows - 1) * row_stride + num_cols if logits.numel() else 0
    # One dimension, whose stride is known to be 1: what is compiled for it is vectorised.
    bits = logits.detach().as_strided((span,), (1,)).numpy().view(np.uint32)
    cpu.select_into(
        cpu.Rows(bits, num_rows, num_cols, row_stride),
        k,
        *_bounds(logits, lengths, row_starts, next_n),
        order,
        indices.numpy(),
        None if values is None else values.numpy(),
        torch.get_num_threads(),
    )


def _select_on_cpu(
    call: Call,
    logits: torch.Tensor,
    variant: str,
    indices: torch.Tensor,
    values: torch.Tensor | None = None,
) -> None:
    """Write indices and values of a call, selected by what a variant is on the CPU."""
    refuse_shape(variant, call.num_rows, call.num_cols, call.k)
    if variant == "cpu_delegate":
        select_directly(
            *(logits, call.lengths, call.row_starts, call.next_n, call.k, call.order),
            *(indices, values),
        )
        return
    starts, ends = _bounds(logits, call.lengths, call.row_starts, call.next_n)
    live = logits.detach()
    if variant == "torch":
        chosen = torch_select(live, call.k, starts, ends)
    elif variant == "reference":
        chosen = exact.select(live.numpy(), call.k, starts, ends, order=call.order)
    else:
        promises = {"tie_break": call.tie_break, "order": call.order}
        twin = twins.select(variant, live.numpy(), call.k, starts, ends, **promises)
        chosen = twin.indices, twin.values
    for target, found in zip((indices, values), chosen, strict=True):
        if target is not None:
            target.copy_(torch.as_tensor(found))


def _topk_out_cpu(*arguments) -> None:
    call = _checked_topk(*arguments)
    logits, _, _, _, _, variant, *_ = arguments
    _select_on_cpu(call, logits, variant, call.out, call.values_out)


def _topk_paged_out_cpu(*arguments) -> None:
    call = _checked_paged(*arguments)
    logits, _, _, _, _, _, variant, *_ = arguments
    indices = call.raw_out
    if indices is None:
        indices = torch.empty((call.num_rows, call.k), dtype=torch.int32)
    _select_on_cpu(call, logits, variant, indices)
    table = call.pages.table.detach().numpy()
    call.out.copy_(torch.from_numpy(paging.slots(indices.numpy(), table, call.pages.bits)))


class DeviceCall(NamedTuple):
    """A call that was checked and planned; valid for the same tensors at the same addresses."""

    prepared: driver.Prepared
    addresses: tuple[int, ...]  # of the prepared plan's buffers
    index: int  # of the device

    def launch(self) -> None:
        """Launch it on the device's current stream."""
        self.prepared.launch(self.addresses, current_stream(self.index))


def _place(logits: torch.Tensor) -> tuple[str, int]:
    """Platform and index of the device that holds the logits."""
    return driver.platform(), logits.device.index


def current_stream(index: int) -> int:
    """Raw handle of the current stream of a device."""
    # torch.cuda.current_stream(index).cuda_stream without the object that it makes.
    return torch._C._cuda_getCurrentRawStream(index)


# Repeated calls on the same memory, as a decode loop makes them, skip the checks: they take longer
# than a launch.
_MOST_CALLS = 4096
MEMORY_TYPES = (torch.Tensor, torch.nn.Parameter)


def memory_of(tensor: torch.Tensor | None) -> tuple | None:
    """All of a tensor that a check looks at."""
    if tensor is None:
        return None
    return (
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.get_device(),
        tensor.is_neg(),
    )


def remember(table: dict[tuple, Any], key: tuple, value: Any) -> None:
    """Put a value into a table that is dropped as a whole when it is full."""
    if len(table) >= _MOST_CALLS:
        table.clear()
    table[key] = value


_device_calls: dict[tuple, DeviceCall] = {}


def plan_device_call(call: Call, logits: torch.Tensor, variant: str) -> DeviceCall:
    """Plan a call that was checked, all of whose outputs are there, and load its kernels.

    Parameters
    ----------
    call : Call
        With lengths, `out`, and a workspace where one is needed.
    logits : (num_rows, num_cols) float32 tensor
        On a device.
    variant : str
        One that runs there.

    Returns
    -------
    DeviceCall

    Raises
    ------
    ValueError
        A shape that the variant does not take, or a workspace that starts between words.
    topk_lab.driver.DriverError, topk_lab.code_objects.CodeObjectError
        The device or its code object can't be used.
    """
    if call.workspace is not None and call.workspace.data_ptr() % 4:
        raise ValueError("workspace must be 4-byte aligned, got an odd slice")
    indices, paging_shape = call.out, None
    if call.pages is not None:
        indices = call.raw_out
        paging_shape = plans.Paging(
            call.pages.table.stride(0), call.out.stride(0), call.pages.bits, call.pages.next_n
        )
    shape = plans.Shape(
        num_rows=call.num_rows,
        num_cols=call.num_cols,
        k=call.k,
        row_stride=call.row_stride,
        indices_stride=None if indices is None else indices.stride(0),
        values_stride=None if call.values_out is None else call.values_out.stride(0),
        next_n=call.next_n,
        has_row_starts=call.row_starts is not None,
        tie_break=call.tie_break,
        order=call.order,
        paging=paging_shape,
    )
    platform, index = _place(logits)
    tensors = {
        "logits": logits,
        "row_ends": call.lengths,
        "row_starts": call.row_starts,
        "indices": indices,
        "values": call.values_out,
        "workspace": call.workspace,
        "page_table": call.pages and call.pages.table,
        "slots": call.pages and call.out,
    }
    prepared = driver.prepare(
        plans.plan(variant, shape), driver.open_device(platform, index), current_stream(index)
    )
    return DeviceCall(prepared, tuple(tensors[name].data_ptr() for name in prepared.buffers), index)


def _topk_out_device(
    logits, row_ends, row_starts, next_n, k, variant, tie_break, order, out, values, workspace
) -> None:
    key = (
        memory_of(logits),
        memory_of(row_ends),
        memory_of(row_starts),
        *(next_n, k, variant, tie_break, order),
        memory_of(out),
        memory_of(values),
        memory_of(workspace),
    )
    call = _device_calls.get(key)
    if call is None:
        checked = _checked_topk(
            *(logits, row_ends, row_starts, next_n, k, variant, tie_break, order),
            *(out, values, workspace),
        )
        call = plan_device_call(checked, logits, variant)
        remember(_device_calls, key, call)
    call.launch()


def _topk_paged_out_device(
    logits, row_ends, next_n, k, page_table, page_size, variant, tie_break, order, out, raw_out,
    workspace,
) -> None:  # fmt: skip
    key = (
        memory_of(logits),
        memory_of(row_ends),
        *(next_n, k, page_size, variant, tie_break, order),
        memory_of(page_table),
        memory_of(out),
        memory_of(raw_out),
        memory_of(workspace),
    )
    call = _device_calls.get(key)
    if call is None:
        checked = _checked_paged(
            *(logits, row_ends, next_n, k, page_table, page_size, variant, tie_break, order),
            *(out, raw_out, workspace),
        )
        call = plan_device_call(checked, logits, variant)
        remember(_device_calls, key, call)
    call.launch()


def _topk_out_fake(*arguments) -> None:
    _checked_topk(*arguments)


def _topk_paged_out_fake(*arguments) -> None:
    _checked_paged(*arguments)


for _name, _on_cpu, _on_device, _fake in (
    ("topk_out", _topk_out_cpu, _topk_out_device, _topk_out_fake),
    ("topk_paged_out", _topk_paged_out_cpu, _topk_paged_out_device, _topk_paged_out_fake),
):
    _library.impl(_name, _on_cpu, "CPU")
    _library.impl(_name, _on_device, "CUDA")  # PyTorch's name for HIP devices too
    torch.library.register_fake(f"topk_lab::{_name}", _fake, lib=_library)
