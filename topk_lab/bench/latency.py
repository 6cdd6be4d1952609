"""Does the time of one block a row grow with the number of rows?

The SGLang selection with its page transform, over rows and row lengths, at several block sizes. One
block works on a row, so the time should hardly change before every compute unit has a block. On
one length blocks are also kept apart: each asks for so much LDS that a compute unit holds a given
number of them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from topk_lab import code_objects, plans
from topk_lab.bench.candidates import READS, Inputs, Make, PageTables, launched
from topk_lab.bench.cells import Cell
from topk_lab.bench.device import Call, Device
from topk_lab.bench.timing import Candidate
from topk_lab.models import DEVICES, resident_blocks

if TYPE_CHECKING:
    import torch

__all__ = ["latency_candidates", "latency_cells", "latency_counters"]

K = 1024
PAGE_SIZE = 64
LENGTHS = (2048, 8192, 16_384, 32_768)  # 8k, 32k, 64k and 128k tokens at 4 a column
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
COLD_ROWS = (8, 32, 128, 256, 512, 1024)
BLOCK_SIZES = ("sglang_block512", "sglang_block1024")
MORE_BLOCK_SIZES = ("sglang_block1024[block_size=256]", "sglang_block1024[block_size=768]")
HELD_BLOCKS = (1, 2)
HELD_ROWS = (64, 128, 256, 384, 512, 768, 1024)


def latency_cells() -> list[Cell]:
    """Every cell: warm and cold caches, and blocks held apart on the longest rows."""

    def cell(
        num_rows: int, num_cols: int, cache: str, variants: tuple[str, ...], **arguments: int
    ) -> Cell:
        return Cell(num_rows, num_cols, K, "normal", arguments, "graph", cache, variants)

    return [
        *(
            cell(num_rows, num_cols, "warm", (*READS, *BLOCK_SIZES, *MORE_BLOCK_SIZES))
            for num_cols in LENGTHS
            for num_rows in ROWS
        ),
        *(
            cell(num_rows, num_cols, "cold", (*READS, *BLOCK_SIZES))
            for num_cols in LENGTHS
            for num_rows in COLD_ROWS
        ),
        *(
            cell(num_rows, LENGTHS[-1], "warm", BLOCK_SIZES, blocks_per_unit=held)
            for held in HELD_BLOCKS
            for num_rows in HELD_ROWS
        ),
    ]


def _plan(variant: str, num_rows: int, num_cols: int) -> plans.Plan:
    pages = -(-num_cols // PAGE_SIZE)
    paging = plans.Paging(pages, K, PAGE_SIZE.bit_length() - 1)
    shape = plans.Shape(num_rows, num_cols, K, num_cols, None, paging=paging)
    return plans.plan(variant, shape)


def _resources(launch: plans.Launch, device: Device) -> dict[str, int]:
    """Registers and LDS of a launch's kernel, from the object that was built for the device."""
    target = device.arch if device.target == "hip" else "cuda"
    source = code_objects.kernel_source(launch.kernel)
    return code_objects.find(source, target).kernels[launch.kernel]


def _held(variant: str, cell: Cell, device: Device) -> plans.Plan:
    """A variant's plan, its block asking for a share of a compute unit's LDS."""
    made = _plan(variant, cell.num_rows, cell.num_cols)
    if device.arch not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {device.arch}")
    limits = DEVICES[device.arch]
    (launch,) = made.launches
    static = _resources(launch, device)["lds"]
    share = limits.lds_bytes // cell.workload_args["blocks_per_unit"]
    share = min(share - limits.lds_reserved, limits.lds_per_block)
    dynamic = share // limits.lds_granule * limits.lds_granule - static
    held = dataclasses.replace(launch, dynamic_lds=max(dynamic, launch.dynamic_lds))
    return dataclasses.replace(made, launches=(held,))


def _make_held(variant: str, cell: Cell, device: Device, pages: PageTables) -> Make:
    """What launches a plan whose blocks are kept apart, by the driver: the operator has no word."""

    def make(logits: torch.Tensor) -> tuple[Call, torch.Tensor]:
        import torch

        place = logits.device
        row_ends = torch.full((cell.num_rows,), cell.num_cols, dtype=torch.int32, device=place)
        out = torch.empty((cell.num_rows, K), dtype=torch.int32, device=place)
        tensors = {
            "logits": logits,
            "row_ends": row_ends,
            "page_table": pages.tables,
            "slots": out,
        }
        return launched(_held(variant, cell, device), tensors, device), out

    return make


def latency_candidates(cell: Cell, device: Device) -> dict[str, Candidate]:
    """What stands for the variants of a cell: the selection writes slots, page tables shuffled."""
    inputs = Inputs(cell.logits(), device, cell.cache)
    pages = PageTables(cell.num_rows, cell.num_cols, PAGE_SIZE, device.place)

    def stand_for(variant: str) -> Candidate:
        if variant in READS:
            return inputs.read(READS[variant])
        if "blocks_per_unit" in cell.workload_args:
            return inputs.selection(_make_held(variant, cell, device, pages), pages.columns)
        return inputs.selection(
            lambda logits: pages.operator(variant, cell.k, logits), pages.columns
        )

    return {variant: stand_for(variant) for variant in cell.variants}


def latency_counters(cell: Cell, variant: str, device: Device) -> dict[str, Any]:
    """How many blocks of the variant's kernel the device holds, where its limits are known."""
    if variant in READS or device.arch not in DEVICES:
        return {}
    made = (
        _held(variant, cell, device)
        if "blocks_per_unit" in cell.workload_args
        else _plan(variant, cell.num_rows, cell.num_cols)
    )
    (launch,) = made.launches
    found = resident_blocks(
        _resources(launch, device), launch.block, launch.dynamic_lds, device.arch
    )
    return {
        "blocks_per_unit": found.blocks_per_unit,
        "resident_blocks": found.resident_blocks,
        "units": DEVICES[device.arch].units,
    }
