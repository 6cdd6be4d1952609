"""Where can a selection run, and what did one leave behind?

A target is ``numba`` (the twins), ``torch`` (the baseline), an AMD target such as ``gfx950`` (its
compiled code object, run by the emulator), or a device: ``hip`` or ``cuda``. `run` is what
verification, the command line and the notebooks call: poisoned outputs and workspace go in, and
what a launch really wrote comes out.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from topk_lab import code_objects, plans, registry, schedules
from topk_lab.contract import UNWRITTEN, check_pages_shape, live_bounds
from topk_lab.contract.words import INT32_MAX, dtype_name, positive_int, type_name
from topk_lab.driver import DriverError

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from topk_lab import driver
    from topk_lab.emulator import Emulator, LaunchCount

__all__ = [
    "AMD_TARGETS",
    "DEVICE_TARGETS",
    "TARGETS",
    "Outcome",
    "Status",
    "aligned",
    "code_of",
    "emulate",
    "require_device",
    "run",
    "status",
    "variants",
]

AMD_TARGETS = registry.EMULATED_TARGETS
DEVICE_TARGETS = registry.DEVICE_TARGETS
TARGETS = ("numba", "torch", *AMD_TARGETS, *DEVICE_TARGETS)


READ_ONLY = ("logits", "row_ends", "row_starts", "page_table")


@dataclass(frozen=True)
class Status:
    """Whether a target can be used.

    Attributes
    ----------
    target : str
        Name of the target.
    usable : bool
    detail : str
        What would run: versions, code objects and the compiler that made them.
    reason, fix : str
        Why not, and what to do about it; empty if usable.
    """

    target: str
    usable: bool
    detail: str
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a selection left behind.

    Attributes
    ----------
    variant : str
        What ran, as `topk_lab.schedules.parse_variant` reads it.
    indices : (num_rows, k) int32 array
        -777 where slots alone were asked for.
    values : (num_rows, k) float32 array or None
        None unless asked for.
    slots : (num_rows, k) int32 array or None
        Of a paged cache; None without a page table.
    splits : (num_rows,) int array
        Blocks that the workspace shows to have worked on the row; 0 where it was never split.
    steps : (num_rows, blocks a row, steps a block) TRACE_STEP array or None
        Only of a traced run.
    plan : Plan or None
        What was launched; None for the twins.
    code : str
        Hash of the code object that ran; empty for the twins.
    counts : tuple of LaunchCount
        One a launch; empty for the twins.
    """

    variant: str
    indices: np.ndarray
    values: np.ndarray | None
    splits: np.ndarray
    steps: np.ndarray | None = None
    slots: np.ndarray | None = None
    plan: plans.Plan | None = None
    code: str = ""
    counts: tuple[LaunchCount, ...] = field(default=(), repr=False)


def status(target: str) -> Status:
    """Find out whether a target is usable here.

    Parameters
    ----------
    target : str
        One of `TARGETS`.

    Returns
    -------
    Status

    Raises
    ------
    ValueError
        No such target.
    """
    if target == "numba":
        import numba

        return Status(target, True, f"numba {numba.__version__}, {numba.get_num_threads()} threads")
    if target == "torch":
        import torch

        return Status(target, True, f"torch {torch.__version__}")
    if target in DEVICE_TARGETS:
        from topk_lab import driver

        return Status(target, *driver.status(target))
    if target not in AMD_TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    from topk_lab import emulator

    try:
        found = code_objects.find("vllm", target)
        found.read()
    except code_objects.CodeObjectError as error:
        return Status(target, False, "", str(error), "make build")
    tools = emulator.toolchain_report()
    missing = [name for name, tool in tools.items() if tool is None]
    if missing:
        return Status(
            target,
            False,
            found.compiler,
            f"the emulator found no {' and no '.join(missing)}",
            "pip install 'topk-lab[emulator]'",
        )
    detail = f"{found.path.name} {found.sha256[:12]} by {found.toolchain} ({found.compiler})"
    return Status(target, True, detail)


def require_device(target: str) -> None:
    """Raise DriverError, with the reason and the fix, unless a device target can be used here."""
    state = status(target)
    if not state.usable:
        raise DriverError(state.reason, state.fix)


def variants() -> pd.DataFrame:
    """The variants and whether each can run here.

    Returns
    -------
    pandas.DataFrame
        Columns variant, description, target, usable, why_not, max_k, tie_breaks, orders,
        graph_safe; a row for each variant and target.
    """
    import pandas as pd

    states = {name: status(name) for name in TARGETS}
    return pd.DataFrame(
        {
            "variant": info.name,
            "description": info.description,
            "target": target,
            "usable": states[target].usable,
            "why_not": states[target].reason,
            "max_k": info.max_k,
            "tie_breaks": ", ".join(info.tie_breaks),
            "orders": ", ".join(info.orders),
            "graph_safe": info.graph_safe,
        }
        for info in registry.VARIANTS.values()
        for target in info.targets
    )


@functools.lru_cache(maxsize=16)
def _emulator(source: str, target: str, sha256: str) -> Emulator:
    from topk_lab import emulator

    image = code_objects.find(source, target).read()
    return emulator.Emulator(emulator.CodeObject.load(image))


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins where a device's allocation would, at 256 bytes.

    What a kernel does at the ends of a row, and which lines it touches, depends on that.

    Parameters
    ----------
    array : ndarray
        Of 4-byte items.

    Returns
    -------
    ndarray
        C-contiguous.
    """
    copied = _filled(array.shape, 0, array.dtype.type)
    copied[...] = array
    return copied


def _filled(shape: tuple[int, ...], value: float, dtype: type[np.generic]) -> np.ndarray:
    """An array full of `value` that begins at 256 bytes."""
    count = int(np.prod(shape))
    room = np.full(count + 64, value, dtype)
    begin = -room.ctypes.data % 256 // room.itemsize
    return room[begin : begin + count].reshape(shape)


def _span(array: np.ndarray) -> int:
    """Bytes from the first element to the end of the last one, whatever the strides."""
    if array.size == 0:
        return 0
    return array.itemsize + sum(
        (length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)
    )


def emulate(
    target: str,
    plan: plans.Plan,
    arrays: dict[str, np.ndarray],
    seed: int | None = None,
    count: str = "basic",
) -> tuple[str, list[LaunchCount]]:
    """Run a plan's compiled kernels on the emulator, in arrays.

    Parameters
    ----------
    target : str
        One of `AMD_TARGETS`.
    plan : Plan
    arrays : dict of str to ndarray
        Buffer name -> memory; inputs can't be written.
    seed, count
        As for `run`.

    Returns
    -------
    str, list of LaunchCount
        Hash of the code object that ran last, and a count a launch.

    Raises
    ------
    topk_lab.code_objects.CodeObjectError, topk_lab.emulator.EmulationFault
        As for `run`.
    """
    from topk_lab.emulator import MemoryRegion

    regions = [
        MemoryRegion(
            name, array.__array_interface__["data"][0], _span(array), name not in READ_ONLY
        )
        for name, array in arrays.items()
    ]
    addresses = {region.name: region.address for region in regions}
    code, counts = "", []
    for number, launch in enumerate(plan.launches):
        found = code_objects.find(code_objects.kernel_source(launch.kernel), target)
        code = found.sha256
        counts.append(
            _emulator(found.source, target, found.sha256).launch(
                launch.kernel,
                launch.grid,
                launch.block,
                launch.params(addresses),
                regions,
                dynamic_lds=launch.dynamic_lds,
                seed=None if seed is None else seed + number,
                count=count,
            )
        )
    return code, counts


def _on_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copy an array to a device with its strides, rows that overlap included."""
    import torch

    if array.size == 0:
        return torch.empty(array.shape, dtype=torch.int32, device=device)
    span = np.lib.stride_tricks.as_strided(array, (_span(array) // 4,), (4,))
    words = torch.from_numpy(span.view(np.int32).copy()).to(device)
    return words.as_strided(array.shape, [stride // 4 for stride in array.strides])


def _launch(target: str, plan: plans.Plan, arrays: dict[str, np.ndarray]) -> str:
    """Run a plan on the current device; what it wrote is copied back into the arrays."""
    from topk_lab import driver

    memory = driver.open_memory(target)
    strided = ("logits", "page_table")
    words = {
        name: _on_device(array.view(np.int32) if name in strided else _words(array), memory.place)
        for name, array in arrays.items()
    }
    memory.launch(plan, words)
    memory.synchronize()
    for name, tensor in words.items():
        if name not in READ_ONLY:
            _words(arrays[name])[...] = tensor.cpu().numpy()
    return code_of(plan, memory.opened)


def code_of(plan: plans.Plan, opened: driver.Device) -> str:
    """Hashes of the code objects that a plan's kernels come from, on an opened device."""
    from topk_lab.driver.device import code_target

    built_for = code_target(opened.platform, opened.arch, opened.name)
    sources = {code_objects.kernel_source(launch.kernel) for launch in plan.launches}
    return " ".join(code_objects.find(source, built_for).sha256 for source in sorted(sources))


def _words(array: np.ndarray) -> np.ndarray:
    """A contiguous array's memory as (n,) int32."""
    return array.reshape(-1).view(np.int32)


def run(
    target: str,
    variant: str,
    logits: np.ndarray,
    k: int,
    *,
    row_ends: np.ndarray | None = None,
    row_starts: np.ndarray | None = None,
    seq_lens: np.ndarray | None = None,
    next_n: int = 1,
    tie_break: str = "any",
    order: str = "any",
    page_table: np.ndarray | None = None,
    page_size: int | None = None,
    slots_only: bool = False,
    values: bool = False,
    traced: bool = False,
    study: bool = False,
    seed: int | None = None,
    count: str = "basic",
) -> Outcome:
    """Run one selection on a target.

    Parameters
    ----------
    target : str
        One of `TARGETS`.
    variant : str
        A variant that runs there; policy fields in brackets allowed.
    logits : (num_rows, num_cols) float32 array
        Last dimension contiguous, any row stride (views that overlap included).
    k : int
        Indices a row.
    row_ends, row_starts : (num_rows,) int32 array, optional
    seq_lens : (batch,) or (batch, next_n) int32 array, optional
    next_n : int, default 1
    tie_break, order : str, default "any"
        As in `topk_lab.topk`.
    page_table : (num_rows, pages) or (batch, pages) int32 array, optional
    page_size : int, optional
        As in `topk_lab.topk_paged`: ask for slots too.
    slots_only : bool, default False
        With a page table: ask for no indices; the outcome's are then as they were poisoned.
    values : bool, default False
        Ask for the selected logits too.
    traced : bool, default False
        Record every radix step.
    study : bool, default False
        Accept policies that are not exact on every input.
    seed : int, optional
        Emulator only: waves and blocks in an order drawn from it.
    count : {"basic", "full"}, default "basic"
        Emulator only: what its launches count (`topk_lab.emulator.LaunchCount`).

    Returns
    -------
    Outcome
        A device target runs on torch's current device and stream.

    Raises
    ------
    ValueError, TypeError
        As `topk_lab.topk`; also a variant that does not run on the target.
    topk_lab.code_objects.CodeObjectError
        The target's code object is missing or stale.
    topk_lab.emulator.EmulationFault
        The kernel did something that a device would not survive, or would get wrong.
    topk_lab.driver.DriverError
        The device can't be used, or refused.
    """
    info = registry.resolve(variant, tie_break=tie_break, order=order)
    _check_logits(logits)
    k = positive_int("k", k, INT32_MAX)
    if seed is not None:
        seed = positive_int("seed", seed, least=0)
    for name, lengths in (
        ("row_ends", row_ends),
        ("row_starts", row_starts),
        ("seq_lens", seq_lens),
    ):
        if lengths is not None and getattr(lengths, "dtype", None) != np.int32:
            raise TypeError(f"{name} must be an int32 ndarray, got {dtype_name(lengths)}")
    # Refuses shapes and combinations; what runs on a target clamps for itself.
    starts, ends = live_bounds(
        *logits.shape, row_ends=row_ends, row_starts=row_starts, seq_lens=seq_lens, next_n=next_n
    )
    paging = _paging(page_table, page_size, logits.shape, k, seq_lens, next_n)
    if slots_only and (paging is None or values):
        raise ValueError("slots_only must come with page_table and without values")
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    if target not in info.targets:
        raise ValueError(
            f"target must be one of {', '.join(info.targets)} for {info.name}, got {target!r}"
        )
    if target in ("numba", "torch"):
        outcome = _run_twin(
            variant, logits, k, starts, ends, tie_break, order, values, traced, study
        )
        if paging is None:
            return outcome
        from topk_lab.reference import paging as paging_twin

        slots = paging_twin.slots(outcome.indices, page_table, paging.bits)
        if slots_only:
            outcome = replace(outcome, indices=np.full_like(outcome.indices, UNWRITTEN))
        return replace(outcome, slots=slots)
    num_rows, num_cols = logits.shape
    lengths, lengths_next_n = _lengths(num_rows, num_cols, row_ends, seq_lens, next_n)
    shape = plans.Shape(
        num_rows=num_rows,
        num_cols=num_cols,
        k=k,
        row_stride=logits.strides[0] // 4 if logits.size else 0,
        indices_stride=None if slots_only else k,
        values_stride=k if values else None,
        next_n=lengths_next_n,
        has_row_starts=row_starts is not None,
        tie_break=tie_break,
        order=order,
        paging=paging,
    )
    plan = plans.plan(variant, shape, study=study, traced=traced)
    indices = _filled((num_rows, k), UNWRITTEN, np.int32)
    arrays = {"logits": logits, "row_ends": lengths, "indices": indices}
    workspace = _filled((plan.workspace_bytes // 4,), UNWRITTEN, np.int32)
    if row_starts is not None:
        arrays["row_starts"] = np.ascontiguousarray(row_starts, np.int32)
    if values:
        arrays["values"] = _filled((num_rows, k), UNWRITTEN, np.float32)
    if paging is not None:
        arrays["page_table"] = page_table
        arrays["slots"] = _filled((num_rows, k), UNWRITTEN, np.int32)
    if plan.workspace_bytes:
        arrays["workspace"] = workspace
    steps = None
    if traced:
        from topk_lab.reference.trace_record import empty_trace

        steps = arrays["trace"] = empty_trace(*plan.trace_shape)
    if target in DEVICE_TARGETS:
        require_device(target)
        code, counts = _launch(target, plan, arrays), []
    else:
        code, counts = emulate(target, plan, arrays, seed, count)
    splits = np.zeros(num_rows, np.int64)
    if plan.workspace_bytes:
        splits = plans.observed_splits(plan, workspace, UNWRITTEN)
    return Outcome(
        variant=str(plan.variant),
        indices=indices,
        values=arrays.get("values"),
        splits=splits,
        steps=steps,
        slots=arrays.get("slots"),
        plan=plan,
        code=code,
        counts=tuple(counts),
    )


def _paging(
    page_table: np.ndarray | None,
    page_size: int | None,
    shape: tuple[int, int],
    k: int,
    seq_lens: np.ndarray | None,
    next_n: int,
) -> plans.Paging | None:
    """What a page table asks for; slots are written k to a row."""
    if page_table is None:
        if page_size is not None:
            raise ValueError("page_size must come with page_table, got page_table=None")
        return None
    if not isinstance(page_table, np.ndarray) or page_table.dtype != np.int32:
        raise TypeError(f"page_table must be an int32 ndarray, got {dtype_name(page_table)}")
    per_sequence = None
    if seq_lens is not None:
        per_sequence = next_n if seq_lens.ndim == 1 else seq_lens.shape[1]
    bits, rows_a_table = check_pages_shape(page_table.shape, page_size, *shape, per_sequence)
    row_stride, column_stride = page_table.strides
    if page_table.size and (
        (column_stride != 4 and page_table.shape[1] > 1)
        or row_stride < 0
        or row_stride % 4
        or not page_table.flags.aligned
    ):
        raise ValueError(
            "page_table must be aligned, contiguous in the last dimension, with a row stride of "
            f"whole elements that is not negative, got strides {page_table.strides} bytes"
        )
    return plans.Paging(page_table.strides[0] // 4, k, bits, rows_a_table)


def _check_logits(logits: np.ndarray) -> None:
    """Refuse what a kernel can't walk: rows are float32, whole elements apart, and go forward."""
    if not isinstance(logits, np.ndarray):
        raise TypeError(f"logits must be an ndarray, got {type_name(logits)}")
    if logits.dtype != np.float32:
        raise TypeError(f"logits must be float32, got {logits.dtype}")
    if logits.ndim != 2:
        raise ValueError(f"logits must have shape (num_rows, num_cols), got {logits.shape}")
    row_stride, column_stride = logits.strides
    if logits.size and (
        (column_stride != 4 and logits.shape[1] > 1)
        or row_stride < 0
        or row_stride % 4
        or not logits.flags.aligned
    ):
        raise ValueError(
            "logits must be aligned, contiguous in the last dimension, with a row stride of whole "
            f"elements that is not negative, got strides {logits.strides} bytes"
        )


def _lengths(
    num_rows: int,
    num_cols: int,
    row_ends: np.ndarray | None,
    seq_lens: np.ndarray | None,
    next_n: int,
) -> tuple[np.ndarray, int]:
    """The lengths as a kernel reads them, and the next_n that tells it how."""
    if seq_lens is not None:
        flat = np.ascontiguousarray(seq_lens, np.int32).reshape(-1)
        return flat, next_n if seq_lens.ndim == 1 else 0
    if row_ends is None:
        return np.full(num_rows, num_cols, np.int32), 0
    return np.ascontiguousarray(row_ends, np.int32), 0


def _run_twin(
    variant: str,
    logits: np.ndarray,
    k: int,
    starts: np.ndarray,
    ends: np.ndarray,
    tie_break: str,
    order: str,
    values: bool,
    traced: bool,
    study: bool,
) -> Outcome:
    num_rows = logits.shape[0]
    splits = np.zeros(num_rows, np.int64)
    steps = None
    if variant == "reference":
        from topk_lab.reference import exact

        indices, chosen = exact.select(logits, k, starts, ends, order=order)
    elif variant == "cpu_delegate":
        from topk_lab import cpu

        indices, chosen = cpu.select(logits, k, starts, ends, order=order)
    elif variant == "torch":
        import torch

        from topk_lab import ops

        rows = torch.from_numpy(np.ascontiguousarray(logits))
        indices, chosen = (part.numpy() for part in ops.torch_select(rows, k, starts, ends))
    else:
        from topk_lab.reference import twins

        chosen_variant = schedules.parse_variant(variant)
        chosen_variant.refuse_unsound(study)
        selection = twins.select(
            chosen_variant,
            logits,
            k,
            starts,
            ends,
            tie_break=tie_break,
            order=order,
            trace=traced,
        )
        indices, chosen, steps = selection.indices, selection.values, selection.trace
        if selection.split_indices.size:
            splits = (selection.split_indices != UNWRITTEN).any(axis=2).sum(axis=1)
        elif isinstance(chosen_variant.policy, schedules.SharedHistogramPolicy):
            splits = np.where(ends - starts > k, selection.active_splits, 0)
    return Outcome(
        variant=variant,
        indices=indices,
        values=chosen if values else None,
        splits=splits,
        steps=steps,
    )
