"""What stands for a selection or a read kernel when it is timed, and is its answer right?

A maker takes logits on the device and returns a call and the output that it fills; all else that
the call needs is made before. `Inputs` turns a maker into a candidate that poisons the output,
writes the logits, and holds what a replay left behind against the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from topk_lab.bench.cells import Cell
from topk_lab.bench.device import Call, Device
from topk_lab.bench.device_logits import draw
from topk_lab.bench.peers import PEERS, PREFIX, Peer, as_indices
from topk_lab.bench.timing import COLD_CACHES, Candidate
from topk_lab.contract import UNWRITTEN, find_violations, first_fault

if TYPE_CHECKING:
    import torch

    from topk_lab.plans import Plan

__all__ = [
    "READS",
    "Inputs",
    "Make",
    "PageTables",
    "drawn_candidates",
    "launched",
    "operator",
    "stand_for",
]

MOST_COPIES = 20  # of an input that a cold graph reads; small ones don't fill a cache

Make: TypeAlias = "Callable[[torch.Tensor], tuple[Call, torch.Tensor]]"
Turned: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"


class Inputs:
    """Logits on a device: one copy, or as many as keep caches cold.

    Until a candidate is prepared the copies hold other logits: the same columns in reverse.

    Parameters
    ----------
    logits : (num_rows, num_cols) float32 ndarray or tensor
        What is timed. Answers are judged where it is: an array on the host, a tensor on its device.
    device : Device
        Where to.
    cache : str
        As `topk_lab.bench.measure` takes it.
    row_ends : (num_rows,) int32 ndarray, optional
        Live columns; default all.
    """

    def __init__(
        self,
        logits: np.ndarray | torch.Tensor,
        device: Device,
        cache: str,
        row_ends: np.ndarray | None = None,
    ) -> None:
        import torch

        self.on_host = isinstance(logits, np.ndarray)
        self.logits = torch.from_numpy(logits) if self.on_host else logits
        num_rows, num_cols = self.logits.shape
        ends = np.full(num_rows, num_cols, np.int32) if row_ends is None else row_ends
        self.device, self.lengths = device, (int(ends.min()), int(ends.max()))
        self.row_ends = torch.from_numpy(ends).to(device.place)
        self.live_bytes = 4 * int(np.clip(ends, 0, num_cols).sum(dtype=np.int64))
        count = 1
        if cache == "cold":
            enough = math.ceil(COLD_CACHES * device.cache_bytes / max(self.live_bytes, 1))
            count += min(enough, MOST_COPIES - 1)
        self.copies = [
            torch.empty(self.logits.shape, dtype=torch.float32, device=device.place)
            for _ in range(count)
        ]
        self._fill(self.logits.flip(1))

    def _fill(self, logits: torch.Tensor) -> None:
        for copy in self.copies:
            copy.copy_(logits)

    def _candidate(
        self, make: Make, poison: float, check: Callable[[torch.Tensor], str | None]
    ) -> Candidate:
        calls, outputs = zip(*map(make, self.copies), strict=True)

        def prepare() -> None:
            self._fill(self.logits)
            for output in outputs:
                output.fill_(poison)

        def check_all() -> str | None:
            return next(filter(None, map(check, outputs)), None)

        return Candidate(calls, prepare, check_all, input_bytes=self.live_bytes)

    def selection(self, make: Make, columns: Turned | None = None) -> Candidate:
        """Stand for a selection: its output is (num_rows, k) indices, held against the oracle.

        Where it is something else, `columns` turns it into indices.
        """
        import torch

        def check(output: torch.Tensor) -> str | None:
            indices = output.to(torch.int32) if columns is None else columns(output)
            asked = (self.logits, indices, self.row_ends)
            if not self.on_host:  # too much for the host
                return first_fault(*asked)
            seen, answer, ends = (part.cpu() for part in asked)
            violations = find_violations(seen, answer, row_ends=ends)
            return f"{len(violations)} violations; {violations[0]}" if violations else None

        return self._candidate(make, UNWRITTEN, check)

    def read(
        self, make: Make, as_maxima: Turned | None = None, poison: float = math.nan
    ) -> Candidate:
        """Stand for a read kernel: its output is (num_rows, parts) maxima of parts of the rows.

        Where it is something else, `as_maxima` turns it into these, `poison` into NaN.
        """
        greatest = self.logits.amax(dim=1).cpu().numpy()

        def check(output: torch.Tensor) -> str | None:
            maxima = output if as_maxima is None else as_maxima(output)
            wrong = np.flatnonzero(maxima.amax(dim=1).cpu().numpy() != greatest)
            if not wrong.size:
                return None
            return f"{wrong.size} rows; row {wrong[0]}: its greatest logit was not found"

        return self._candidate(make, poison, check)


def operator(
    variant: str, k: int, row_ends: torch.Tensor, logits: torch.Tensor
) -> tuple[Call, torch.Tensor]:
    """Call a variant of this package, with all that it needs made before."""
    import torch

    from topk_lab import ops

    num_rows, num_cols = logits.shape
    place = logits.device
    out = torch.empty((num_rows, k), dtype=torch.int32, device=place)
    needed = ops.workspace_size(num_rows, num_cols, k, variant, place)
    workspace = torch.empty(needed, dtype=torch.uint8, device=place) if needed else None

    def call() -> None:
        ops.topk(logits, k, row_ends=row_ends, variant=variant, out=out, workspace=workspace)

    return call, out


def launched(plan: Plan, tensors: Mapping[str, torch.Tensor], device: Device) -> Call:
    """What launches a plan by the driver, for what the operator has no word for.

    Parameters
    ----------
    plan : Plan
    tensors : mapping of str to tensor
        Buffer name -> memory on the device.
    device : Device

    Returns
    -------
    callable
    """
    import torch

    from topk_lab import driver

    place = tensors["logits"].device
    opened = driver.open_device(device.target, place.index)

    def call() -> None:
        # Taken anew: the call keeps the tensors themselves alive, not their addresses alone.
        addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        driver.launch(plan, addresses, opened, torch.cuda.current_stream(place).cuda_stream)

    return call


class PageTables:
    """Page tables that name every page of a pool once, in random order.

    Parameters
    ----------
    num_rows, num_cols : int
        Shape of the logits.
    page_size : int
        A power of two.
    place : str
        Where torch puts the tables.
    """

    def __init__(self, num_rows: int, num_cols: int, page_size: int, place: str) -> None:
        import torch

        self.page_size = page_size
        pages = -(-num_cols // page_size)
        self._host = np.random.default_rng(0).permutation(num_rows * pages)
        self.tables = torch.from_numpy(self._host.reshape(num_rows, pages).astype(np.int32)).to(
            place
        )

    def operator(self, variant: str, k: int, logits: torch.Tensor) -> tuple[Call, torch.Tensor]:
        """Call a variant of this package for slots, with all that it needs made before."""
        import torch

        from topk_lab import ops

        num_rows, num_cols = logits.shape
        place = logits.device
        row_ends = torch.full((num_rows,), num_cols, dtype=torch.int32, device=place)
        out = torch.empty((num_rows, k), dtype=torch.int32, device=place)

        def call() -> None:
            ops.topk_paged(
                logits, k, self.tables, self.page_size, row_ends=row_ends, variant=variant, out=out
            )

        return call, out

    def columns(self, slots: torch.Tensor) -> torch.Tensor:
        """The columns that slots stand for, (num_rows, k) int32; -2 for a slot of another row.

        They are on the host, as the tables' pages are.
        """
        import torch

        found = slots.cpu().numpy()
        num_rows, pages = self.tables.shape
        place = np.full(self._host.size, -1, np.int64)
        place[self._host] = np.arange(self._host.size)
        page = np.clip(found // self.page_size, 0, self._host.size - 1)
        row, column_page = np.divmod(place[page], pages)
        columns = column_page * self.page_size + found % self.page_size
        own = (
            (found >= 0) & (row == np.arange(num_rows)[:, None]) & (page == found // self.page_size)
        )
        held = np.where(own, columns, np.where(found == -1, -1, -2)).astype(np.int32)
        return torch.from_numpy(held)


def _amax(most: int, logits: torch.Tensor) -> tuple[Call, torch.Tensor]:
    """Maxima of parts of a row, of at most so many columns each."""
    import torch

    num_rows, num_cols = logits.shape
    parts = logits.view(num_rows, -1, math.gcd(num_cols, most) if most else num_cols)
    maxima = torch.empty(parts.shape[:2], device=logits.device)
    return lambda: torch.amax(parts, dim=2, out=maxima), maxima


# The floor is the best of these at each shape. A read kernel reads every logit once and leaves
# (num_rows, parts) maxima, so that it can be checked.
READS: dict[str, Make] = {
    "read_amax": partial(_amax, 0),
    **{f"read_amax_{most}": partial(_amax, most) for most in (256, 1024, 4096, 16384)},
}


def _peer(peer: Peer, k: int, inputs: Inputs) -> Candidate:
    reason = peer.refusal(inputs.device, *inputs.logits.shape, k, inputs.lengths)
    if reason is not None:
        return Candidate.skip(reason)
    return inputs.selection(partial(peer.make, inputs.device, k, inputs.row_ends), as_indices)


def stand_for(variant: str, k: int, inputs: Inputs) -> Candidate:
    """What stands for a name: a read kernel, a peer or a variant of this package."""
    if variant in READS:
        return inputs.read(READS[variant])
    if variant in PEERS:
        return _peer(PEERS[variant], k, inputs)
    if variant.startswith(PREFIX):
        raise ValueError(f"variant must be one of {', '.join(PEERS)}, got {variant!r}")
    return inputs.selection(partial(operator, variant, k, inputs.row_ends))


def drawn_candidates(cell: Cell, device: Device, row_ends: np.ndarray) -> dict[str, Candidate]:
    """What stands for the variants of a cell whose logits are made on the device.

    Parameters
    ----------
    cell : Cell
        Its workload is one that `topk_lab.bench.device_logits.draw` knows.
    device : Device
    row_ends : (num_rows,) int32 ndarray
        Live columns, in [0, num_cols].

    Returns
    -------
    dict of str to Candidate
    """
    logits = draw(cell.workload, row_ends, cell.num_cols, device.place, seed=cell.seed)
    inputs = Inputs(logits, device, cell.cache, row_ends=row_ends)
    return {variant: stand_for(variant, cell.k, inputs) for variant in cell.variants}
