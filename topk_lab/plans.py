"""What is launched for a call, with which arguments, and how much workspace does it need?

A plan is data: it depends on shapes alone, so that a captured graph stays right for all later
lengths and contents. Runners (emulator, device drivers, tests) bind its buffer names to addresses.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topk_lab.contract.words import TIE_BREAKS, check_word
from topk_lab.schedules import (
    DELEGATE_OVERLAP_ROWS,
    GENERIC_RANK_COUNT_COLUMNS,
    DelegateChoice,
    OneBlockPolicy,
    SharedHistogramPolicy,
    StashPolicy,
    TopKPolicy,
    Variant,
    delegate_blocks,
    delegate_parts,
    gate_refusal,
    max_splits,
    parse_variant,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "NUM_DELEGATE_PASSES",
    "NUM_DIGIT_PASSES",
    "NUM_PASSES",
    "NUM_SHARED_STEPS",
    "NUM_STEPS",
    "POINTER_OFFSETS",
    "Buffer",
    "DelegateParams",
    "Launch",
    "PagedParams",
    "Paging",
    "Plan",
    "Shape",
    "SharedHistogramParams",
    "TopKParams",
    "observed_splits",
    "plan",
    "workspace_bytes",
]

# Records of a traced block: radix steps (vLLM lineage), passes (SGLang), passes of digits (AITER);
# half bins and passes of digits (shared histogram); passes over delegates and logits (delegate).
NUM_STEPS = 4
NUM_PASSES = 5
NUM_DIGIT_PASSES = 3
NUM_SHARED_STEPS = 4
NUM_DELEGATE_PASSES = 23

# A row's part of the workspace where blocks share its histogram.
NUM_HALF_BINS = 4096
COUNTER_WORDS = 32
ARRIVED_COUNTER = 1  # blocks of the row that have written all they have

PAGE_TRANSFORM_BLOCK_SIZE = 256
REDUCE_BLOCK_SIZE = 256
ORDER_BLOCK_SIZE = 512
ORDERS = ("any", "index", "value")  # as the kernels' Order

# Grids count threads in 32 bits on AMD devices, and blocks have up to 1024 of them.
MAX_ROWS = 2**32 // 1024 - 1


class TopKParams(ctypes.Structure):
    """The kernels' one argument (``kernels/include/topk_lab/params.hpp``), field by field."""

    _fields_ = (
        ("logits", ctypes.c_uint64),
        ("row_ends", ctypes.c_uint64),
        ("row_starts", ctypes.c_uint64),
        ("indices", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
        ("split_indices", ctypes.c_uint64),
        ("split_logits", ctypes.c_uint64),
        ("trace", ctypes.c_uint64),
        ("row_stride", ctypes.c_int64),
        ("indices_stride", ctypes.c_int64),
        ("values_stride", ctypes.c_int64),
        ("num_rows", ctypes.c_int32),
        ("num_cols", ctypes.c_int32),
        ("next_n", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("max_splits", ctypes.c_int32),
    )


class PagedParams(ctypes.Structure):
    """The argument of kernels with a page transform: `TopKParams`, and behind it the pages."""

    _fields_ = (
        *TopKParams._fields_,
        ("page_table", ctypes.c_uint64),
        ("slots", ctypes.c_uint64),
        ("page_table_stride", ctypes.c_int64),
        ("slots_stride", ctypes.c_int64),
        ("page_bits", ctypes.c_int32),
        ("table_next_n", ctypes.c_int32),
        ("order", ctypes.c_int32),
    )


class SharedHistogramParams(ctypes.Structure):
    """The argument of kernels that share a histogram: `PagedParams`, and behind it the workspace.

    Of ``kernels/include/topk_lab/shared_histogram_storage.hpp``.
    """

    _fields_ = (
        *PagedParams._fields_,
        ("histograms", ctypes.c_uint64),
        ("counters", ctypes.c_uint64),
        ("tie_logits", ctypes.c_uint64),
        ("tie_positions", ctypes.c_uint64),
    )


class DelegateParams(ctypes.Structure):
    """The argument of the delegate selection's kernels: `PagedParams`, and behind it the delegates.

    Of ``kernels/include/topk_lab/params.hpp``.
    """

    _fields_ = (
        *PagedParams._fields_,
        ("delegates", ctypes.c_uint64),
        ("delegates_stride", ctypes.c_int64),
        ("blocks_per_row", ctypes.c_int32),
        ("whole_columns", ctypes.c_int32),
        ("least_length", ctypes.c_int32),
        ("most_length", ctypes.c_int32),
    )


# Where each pointer is: the structs begin alike, and what two of them hold lies in the same place.
POINTER_OFFSETS = {
    name: getattr(struct, name).offset
    for struct in (TopKParams, PagedParams, SharedHistogramParams, DelegateParams)
    for name, kind in struct._fields_
    if kind is ctypes.c_uint64
}


@dataclass(frozen=True)
class Paging:
    """All of a page transform that the launches depend on.

    Attributes
    ----------
    table_stride, slots_stride : int
        Elements from one row to the next, of the page table and of the slots.
    bits : int
        A page holds ``2**bits`` columns.
    next_n : int
        Rows that share a row of the table.
    """

    table_stride: int
    slots_stride: int
    bits: int
    next_n: int = 1


@dataclass(frozen=True)
class Shape:
    """All of a call that its launches depend on.

    Attributes
    ----------
    num_rows, num_cols, k : int
        Shape of the logits, and indices a row.
    row_stride : int
        Elements from one row to the next.
    indices_stride : int or None
        None where slots alone are wanted.
    values_stride : int or None
        None where no values are wanted.
    next_n : int
        0 where every row has its own end, else the rows that share a sequence length.
    has_row_starts : bool
        Whether rows begin at columns of their own.
    tie_break : {"any", "lowest"}
        Which of equal logits are kept.
    order : {"any", "index", "value"}
        Of a row's answer.
    paging : Paging or None
        Whether slots of a paged cache are wanted.
    """

    num_rows: int
    num_cols: int
    k: int
    row_stride: int
    indices_stride: int | None
    values_stride: int | None = None
    next_n: int = 0
    has_row_starts: bool = False
    tie_break: str = "any"
    order: str = "any"
    paging: Paging | None = None


@dataclass(frozen=True)
class Buffer:
    """A place in a named buffer: the address that a pointer field is given.

    Attributes
    ----------
    name : str
        Which buffer: logits, row_ends, row_starts, indices, values, workspace, page_table, slots or
        trace.
    offset : int
        Bytes from its start.
    """

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes
    ----------
    kernel : str
        Name in the code object.
    grid : tuple of int
        Blocks in x and y.
    block : int
        Threads of a block.
    dynamic_lds : int
        Bytes beyond the kernel's static LDS.
    scalars : bytes
        The struct that the kernel takes, with null pointers.
    pointers : tuple of (str, Buffer)
        Which field points where.
    overlaps : bool
        Whether it may begin before the launch ahead of it has ended: its kernel waits for that.
    """

    kernel: str
    grid: tuple[int, int]
    block: int
    dynamic_lds: int
    scalars: bytes
    pointers: tuple[tuple[str, Buffer], ...]
    overlaps: bool = False

    def params(self, addresses: Mapping[str, int]) -> bytes:
        """The kernel's argument with every pointer filled in.

        Parameters
        ----------
        addresses : mapping of str to int
            Buffer name -> address.

        Returns
        -------
        bytes
            The struct of `scalars`, as the kernel takes it.
        """
        params = bytearray(self.scalars)
        for field, place in self.pointers:
            address = addresses[place.name] + place.offset
            ctypes.c_uint64.from_buffer(params, POINTER_OFFSETS[field]).value = address
        return bytes(params)


@dataclass(frozen=True)
class Plan:
    """The launches of a call, in order.

    Attributes
    ----------
    variant : Variant
        Which selection, under which policy.
    launches : tuple of Launch
        Empty for a call without rows.
    max_splits : int
        Blocks that a row is given: the splits that the workspace holds of it, or those that share
        its histogram; 1 where one selects.
    workspace_bytes : int
        As the function `workspace_bytes` says.
    trace_shape : tuple of int
        Records of a traced plan: rows, blocks a row, steps a block.
    """

    variant: Variant
    launches: tuple[Launch, ...]
    max_splits: int
    workspace_bytes: int
    trace_shape: tuple[int, int, int]


def workspace_bytes(variant: str | Variant, num_rows: int, num_cols: int, k: int) -> int:
    """Bytes that a call needs beside its outputs.

    Where splits are merged: two (num_rows, max_splits, k) arrays of 4-byte items, indices, then
    logits. Where blocks share a histogram: histograms, counters and lists, so many for each row.
    Where rows have delegates that leave LDS: these.

    Parameters
    ----------
    variant : str or Variant
        As `topk_lab.schedules.parse_variant` reads it.
    num_rows, num_cols, k : int
        Shape of the call; symbolic sizes are taken too.

    Returns
    -------
    int
        0 where rows are never split, and have no delegates, and no histogram is shared.
    """
    chosen = variant if isinstance(variant, Variant) else parse_variant(variant)
    if isinstance(chosen.policy, DelegateChoice):
        parts = delegate_parts(chosen, num_rows, num_cols, k)
        strides = [one.policy.delegates_stride(num_cols) for one in parts if one.form != "fused"]
        return 4 * num_rows * sum(strides)
    if isinstance(chosen.policy, SharedHistogramPolicy):
        return 4 * num_rows * sum(words for _, words in _shared_workspace(chosen.policy))
    splits = max_splits(chosen, num_rows, num_cols)
    return 8 * num_rows * splits * k if splits > 1 else 0


def _shared_workspace(policy: SharedHistogramPolicy) -> tuple[tuple[str, int], ...]:
    """The arrays that share the workspace, in order, with their words a row."""
    return (
        ("histograms", NUM_HALF_BINS),
        ("counters", COUNTER_WORDS),
        ("tie_logits", policy.tie_capacity),
        ("tie_positions", policy.tie_capacity),
    )


def observed_splits(planned: Plan, workspace: Any, unwritten: int) -> Any:
    """Blocks that worked on each row, by what they left in the workspace.

    Parameters
    ----------
    planned : Plan
        With a workspace.
    workspace : (workspace_bytes / 4,) int32 array or tensor
        What the launches left in it.
    unwritten : int
        What it held before them, everywhere.

    Returns
    -------
    (num_rows,) int array or tensor
        Splits of the row that something was written to, or blocks that counted themselves among
        those that have shared it, or 1 if the row has delegates; 0 where it was never split.
    """
    num_rows = planned.trace_shape[0]
    policy = planned.variant.policy
    if isinstance(policy, DelegateChoice):
        return (workspace.reshape(num_rows, 1, -1) != unwritten).any(axis=2).sum(axis=1)
    if isinstance(policy, SharedHistogramPolicy):
        begin = num_rows * NUM_HALF_BINS
        counters = workspace[begin : begin + num_rows * COUNTER_WORDS]
        return counters.reshape(num_rows, COUNTER_WORDS)[:, ARRIVED_COUNTER]
    indices = workspace[: len(workspace) // 2].reshape(num_rows, planned.max_splits, -1)
    return (indices != unwritten).any(axis=2).sum(axis=1)


@functools.lru_cache(maxsize=1024)
def plan(variant: str, shape: Shape, *, study: bool = False, traced: bool = False) -> Plan:
    """Plan a call.

    Parameters
    ----------
    variant : str
        As `topk_lab.schedules.parse_variant` reads it.
    shape : Shape
        The call's shape.
    study : bool, default False
        Accept policies that are not exact on every input.
    traced : bool, default False
        Launch the kernels that record every radix step.

    Returns
    -------
    Plan

    Raises
    ------
    ValueError
        A shape that the variant does not take, a policy that is not compiled, or, outside studies,
        one that is not exact.
    """
    chosen = parse_variant(variant)
    refusal = gate_refusal(chosen.name, shape.num_rows, shape.num_cols, shape.k)
    if refusal:
        raise ValueError(refusal)
    if shape.num_rows > MAX_ROWS:
        raise ValueError(f"num_rows must be at most {MAX_ROWS}, got {shape.num_rows}")
    chosen.refuse_unsound(study)
    if chosen.ablation is None:
        raise ValueError(f"variant {chosen} is not compiled; it runs on target numba only")

    splits = max_splits(chosen, shape.num_rows, shape.num_cols)
    lineage = _LINEAGES[type(chosen.policy)]
    check_word("tie_break", shape.tie_break, lineage.tie_breaks)
    check_word("order", shape.order, lineage.orders)
    launches: tuple[Launch, ...] = ()
    if shape.num_rows:
        launches = lineage.launches(chosen, shape, traced)
    return Plan(
        variant=chosen,
        launches=launches,
        max_splits=splits,
        workspace_bytes=workspace_bytes(chosen, shape.num_rows, shape.num_cols, shape.k),
        trace_shape=(shape.num_rows, splits + lineage.merges, lineage.passes),
    )


def _prefix(chosen: Variant) -> str:
    """What the names of a variant's kernels begin with."""
    return f"{chosen.name}_{chosen.ablation}" if chosen.ablation else chosen.name


def _params(shape: Shape, splits: int) -> bytes:
    """The scalars of a launch."""
    alone = shape.indices_stride is None
    return bytes(
        TopKParams(
            row_stride=shape.row_stride,
            # Slots alone: the indices stand in their place until the transform.
            indices_stride=shape.paging.slots_stride if alone else shape.indices_stride,
            values_stride=shape.values_stride or 0,
            num_rows=shape.num_rows,
            num_cols=shape.num_cols,
            next_n=shape.next_n,
            k=shape.k,
            max_splits=splits,
        )
    )


def _paged_params(shape: Shape, splits: int = 1) -> bytes:
    """The scalars of a launch with a page transform."""
    params = PagedParams.from_buffer_copy(
        _params(shape, splits).ljust(ctypes.sizeof(PagedParams), b"\0")
    )
    params.table_next_n = 1
    params.order = ORDERS.index(shape.order)
    paging = shape.paging
    if paging:
        params.page_table_stride = paging.table_stride
        params.slots_stride = paging.slots_stride
        params.page_bits = paging.bits
        params.table_next_n = paging.next_n
    return bytes(params)


def _read_pointers(shape: Shape) -> list[tuple[str, Buffer]]:
    names = ["logits", "row_ends", *(["row_starts"] if shape.has_row_starts else [])]
    return [(name, Buffer(name)) for name in names]


def _written_pointers(shape: Shape) -> list[tuple[str, Buffer]]:
    """What a kernel with a fused page transform writes, and the table that it looks slots up in."""
    names = ["indices"] if shape.indices_stride is not None else []
    names += ["values"] if shape.values_stride is not None else []
    names += ["page_table", "slots"] if shape.paging else []
    return [(name, Buffer(name)) for name in names]


def _row_launch(kernel: str, block: int, lds: int, shape: Shape, traced: bool) -> Launch:
    """A launch of a block a row, the page transform fused."""
    trace = [("trace", Buffer("trace"))] if traced else []
    return Launch(
        kernel + ("_traced" if traced else ""),
        (shape.num_rows, 1),
        block,
        lds,
        _paged_params(shape),
        (*_read_pointers(shape), *_written_pointers(shape), *trace),
    )


def _stash_launches(chosen: Variant, shape: Shape, traced: bool) -> tuple[Launch, ...]:
    """One launch, whose order is an argument."""
    policy = chosen.policy
    kernel = f"{_prefix(chosen)}_select"
    return (_row_launch(kernel, policy.block_size, policy.stash_kib * 1024, shape, traced),)


def _one_block_launches(chosen: Variant, shape: Shape, traced: bool) -> tuple[Launch, ...]:
    """One launch: any promise is kept by the kernel whose answer is stable."""
    stable = shape.tie_break == "lowest" or shape.order == "index"
    kernel = f"{_prefix(chosen)}_{'stable_' if stable else ''}select"
    return (_row_launch(kernel, chosen.policy.block_size, 0, shape, traced),)


def _shared_launches(chosen: Variant, shape: Shape, traced: bool) -> tuple[Launch, ...]:
    """Clear, count and select, whatever the number of blocks a row."""
    policy = chosen.policy
    splits = max_splits(chosen, shape.num_rows, shape.num_cols)
    places = {}
    begin = 0
    for name, words in _shared_workspace(policy):
        places[name] = (name, Buffer("workspace", 4 * begin))
        begin += shape.num_rows * words
    scalars = _paged_params(shape, splits).ljust(ctypes.sizeof(SharedHistogramParams), b"\0")
    written = _written_pointers(shape)
    trace = [("trace", Buffer("trace"))] if traced else []
    suffix = "_traced" if traced else ""
    prefix = _prefix(chosen)

    def launch(kernel: str, blocks: int, lds: int, *pointers: tuple[str, Buffer]) -> Launch:
        grid = (shape.num_rows, blocks)
        return Launch(f"{prefix}_{kernel}", grid, policy.block_size, lds, scalars, pointers)

    reads = _read_pointers(shape)
    return (
        launch("clear", 1, 0, places["histograms"], places["counters"]),
        launch(f"count{suffix}", splits, 0, *reads, places["histograms"], *trace),
        launch(f"select{suffix}", splits, 4 * shape.k, *reads, *written, *places.values(), *trace),
    )


def _split_launches(chosen: Variant, shape: Shape, traced: bool) -> tuple[Launch, ...]:
    """Select, merge where rows are split, and a page transform where one is wanted."""
    policy = chosen.policy
    splits = max_splits(chosen, shape.num_rows, shape.num_cols)
    indices = Buffer("slots" if shape.indices_stride is None else "indices")
    pointers = [*_read_pointers(shape), ("indices", indices)]
    if shape.values_stride is not None:
        pointers.append(("values", Buffer("values")))
    if splits > 1:
        pointers.append(("split_indices", Buffer("workspace")))
        split_slots = shape.num_rows * splits * shape.k
        pointers.append(("split_logits", Buffer("workspace", 4 * split_slots)))
    if traced:
        pointers.append(("trace", Buffer("trace")))

    prefix = _prefix(chosen)
    select = prefix
    if chosen.name == "vllm_generic" and shape.num_cols < GENERIC_RANK_COUNT_COLUMNS:
        select = "vllm_generic_rank_count"
    suffix = "_traced" if traced else ""
    bits_kept = shape.values_stride is not None
    scalars = _params(shape, splits)

    def launch(kernel: str, grid: tuple[int, int], block: int, keeps_bits: bool) -> Launch:
        return Launch(
            kernel + suffix,
            grid,
            block,
            (8 if keeps_bits else 4) * shape.k,
            scalars,
            tuple(pointers),
        )

    launches = [
        launch(
            f"{select}_select", (shape.num_rows, splits), policy.block_size, bits_kept or splits > 1
        )
    ]
    if splits > 1:
        launches.append(
            launch(f"{prefix}_merge", (shape.num_rows, 1), policy.merge_block_size, bits_kept)
        )
    if shape.paging:
        tail = [("indices", indices), ("page_table", Buffer("page_table"))]
        tail.append(("slots", Buffer("slots")))
        launches.append(
            Launch(
                "page_transform",
                (shape.num_rows, 1),
                PAGE_TRANSFORM_BLOCK_SIZE,
                0,
                _paged_params(shape),
                tuple(tail),
            )
        )
    return tuple(launches)


def _delegate_launches(chosen: Variant, shape: Shape, traced: bool) -> tuple[Launch, ...]:
    """Reduce and select, in one launch or two; and put in order where one is wanted."""
    ordered = shape.order != "any"
    reads = _read_pointers(shape)
    written = _written_pointers(shape)
    # Before they are in order, the indices stand where the answer's will, or its slots.
    unordered = ("indices", Buffer("slots" if shape.indices_stride is None else "indices"))
    trace = [("trace", Buffer("trace"))] if traced else []
    overlaps = shape.num_rows <= DELEGATE_OVERLAP_ROWS
    launches = []
    for part in delegate_parts(chosen, shape.num_rows, shape.num_cols, shape.k):
        policy = part.policy
        widest = min(shape.num_cols, part.most_length)
        stride = policy.delegates_stride(widest)
        params = DelegateParams.from_buffer_copy(
            _paged_params(shape).ljust(ctypes.sizeof(DelegateParams), b"\0")
        )
        params.delegates_stride = stride
        params.blocks_per_row = delegate_blocks(shape.num_rows, widest)
        params.whole_columns = policy.whole_columns
        params.least_length, params.most_length = part.least_length, part.most_length
        in_memory = stride > 0 and part.form != "fused"
        delegates = [("delegates", Buffer("workspace"))] if in_memory else []
        if in_memory and part.form == "two":
            dies = chosen.policy.dies
            rows = -(-shape.num_rows // dies) * dies if shape.num_rows >= dies else shape.num_rows
            launches.append(
                Launch(
                    f"{chosen.name}_reduce_{policy.segment}",
                    (rows, params.blocks_per_row),
                    REDUCE_BLOCK_SIZE,
                    0,
                    bytes(params),
                    (*reads, *delegates),
                    overlaps,
                )
            )
        form = "select" if part.form == "two" else part.form
        launches.append(
            Launch(
                f"{chosen.name}_{part.member}_{form}" + ("_traced" if traced else ""),
                (shape.num_rows, 1),
                policy.block_size,
                4 * stride if part.form == "fused" else 0,
                bytes(params),
                (*reads, *delegates, *([unordered] if ordered else written), *trace),
                overlaps,
            )
        )
    if ordered:
        launches.append(
            Launch(
                f"{chosen.name}_order",
                (shape.num_rows, 1),
                ORDER_BLOCK_SIZE,
                8 << (shape.k - 1).bit_length(),
                _paged_params(shape),
                (*reads, *written),
                overlaps,
            )
        )
    return tuple(launches)


@dataclass(frozen=True)
class _Lineage:
    """What the plans of a kind of policy have in common."""

    launches: Callable[[Variant, Shape, bool], tuple[Launch, ...]]
    merges: int  # traced blocks a row beside those that select
    passes: int  # records of a traced block
    tie_breaks: tuple[str, ...]
    orders: tuple[str, ...]


_LINEAGES = {
    TopKPolicy: _Lineage(_split_launches, 1, NUM_STEPS, TIE_BREAKS[:1], ORDERS[:1]),
    StashPolicy: _Lineage(_stash_launches, 0, NUM_PASSES, TIE_BREAKS[:1], ORDERS[:2]),
    OneBlockPolicy: _Lineage(_one_block_launches, 0, NUM_DIGIT_PASSES, TIE_BREAKS, ORDERS[:2]),
    SharedHistogramPolicy: _Lineage(
        _shared_launches, 1, NUM_SHARED_STEPS, TIE_BREAKS[:1], ORDERS[:1]
    ),
    DelegateChoice: _Lineage(_delegate_launches, 0, NUM_DELEGATE_PASSES, TIE_BREAKS, ORDERS),
}
