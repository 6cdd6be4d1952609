"""Does a call that was captured once stay right, whatever it is given later?

`capture` fixes a call's launches, grids and addresses, as a graph does: on a device it is a graph,
on an emulated target the plan with its buffers. `Captured.replay` then runs it on whatever the
buffers hold. What a host decides from lengths before a capture stays as it was: `HOST_POLICIES` are
the ways to get that wrong, or slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from topk_lab import plans, registry, schedules, targets
from topk_lab.contract.lengths import check_per_row_shape
from topk_lab.contract.words import INT32_MAX, NO_INDEX, UNWRITTEN, dtype_name, positive_int

if TYPE_CHECKING:
    import torch

__all__ = ["HOST_POLICIES", "PATTERNS", "Captured", "Replay", "capture", "lengths_of", "replays"]

K = 512
KIBI = schedules.KIBI
# On both sides of which a length decides something.
BOUNDS = (
    *(K, schedules.GENERIC_RANK_COUNT_COLUMNS, schedules.GENERIC_SPLIT_COLUMNS),
    *(KIBI * columns for columns in (16, 64, 128, 256, 512, 1024)),
)
SPECIAL = (-(2**31), -1, 0, 1, 2**31 - 1)

HOST_POLICIES = {
    "host-lengths": "the live lengths are copied into the graph",
    "host-path": "rows that are no longer than k are answered without a kernel",
    "host-splits": "the split count is that of the live length",
}
PATTERNS = ("normal", "masked", "all masked", "one value", "few values", "last bits")


@dataclass(frozen=True)
class Replay:
    """What one replay is given.

    Attributes
    ----------
    number : int
    pattern : str
        One of `PATTERNS`.
    row_ends : (num_rows,) int32 ndarray
        Negative ones and ones beyond the width among them.
    """

    number: int
    pattern: str
    row_ends: np.ndarray


def lengths_of(num_cols: int) -> list[int]:
    """Lengths on both sides of every bound that a buffer reaches, its own width included.

    Parameters
    ----------
    num_cols : int
        Width of the buffer.

    Returns
    -------
    list of int
        Rising, int32.

    Raises
    ------
    TypeError, ValueError
        Not a width that an int32 length can name.
    """
    positive_int("num_cols", num_cols, INT32_MAX, least=0)
    bounds = [*(bound for bound in BOUNDS if bound < num_cols), num_cols]
    near = {bound + step for bound in bounds for step in (-1, 0, 1)}
    return sorted({min(length, INT32_MAX) for length in near | {num_cols + 17, *SPECIAL}})


def replays(num_rows: int, num_cols: int, count: int) -> Iterator[Replay]:
    """What a captured call is given, one after the other.

    Parameters
    ----------
    num_rows, num_cols : int
        Shape of the buffer.
    count : int
        How many.

    Yields
    ------
    Replay
        The rows go through all lengths of `lengths_of` in random order, and again in another one.

    Raises
    ------
    TypeError, ValueError
        A number that is negative or none.
    """
    positive_int("num_rows", num_rows, least=0)
    positive_int("count", count, least=0)
    rng = np.random.default_rng(0)
    lengths = lengths_of(num_cols)
    rounds = -(-count * num_rows // len(lengths))
    drawn = [rng.permutation(lengths) for _ in range(rounds)]
    ends = np.concatenate([*drawn, []])[: count * num_rows].astype(np.int32)
    for number, of_replay in enumerate(ends.reshape(count, num_rows)):
        yield Replay(number, PATTERNS[number % len(PATTERNS)], of_replay)


def _fill(logits: torch.Tensor, replay: Replay) -> None:
    """Write a replay's pattern: row by row the same, whatever the lengths."""
    import torch

    place = logits.device
    generator = torch.Generator(place).manual_seed(replay.number)
    if replay.pattern == "all masked":
        logits.fill_(-torch.inf)
    elif replay.pattern == "one value":
        logits.fill_(replay.number)
    elif replay.pattern == "last bits":
        low = torch.randint(0, 1024, logits.shape, generator=generator, device=place)
        logits.copy_((low.to(torch.int32) | 0x3F900000).view(torch.float32))
    else:
        logits.normal_(generator=generator)
        if replay.pattern == "few values":
            logits.mul_(2).round_()
        if replay.pattern == "masked":
            blocks = -(-logits.shape[1] // 8)
            drawn = torch.rand(len(logits), blocks, generator=generator, device=place)
            masked = (drawn < 0.875).repeat_interleave(8, dim=1)[:, : logits.shape[1]]
            logits.masked_fill_(masked, -torch.inf)


class Captured:
    """A call whose launches and addresses are fixed.

    Attributes
    ----------
    plan : Plan
        What is launched.
    code : str
        Hashes of the code objects that ran; empty before the first replay.
    """

    def __init__(
        self,
        target: str,
        plan: plans.Plan,
        shape: plans.Shape,
        host: str | None,
        row_ends: np.ndarray,
        direct: bool = False,
    ) -> None:
        import torch

        self.target, self.plan, self.code = target, plan, ""
        self._memory = None
        if target in targets.DEVICE_TARGETS:
            from topk_lab import driver

            self._memory = driver.open_memory(target)
        place = "cpu" if self._memory is None else self._memory.place
        sizes = {
            "logits": (shape.num_rows, shape.num_cols),
            "row_ends": (shape.num_rows,),
            "indices": (shape.num_rows, shape.k),
            "workspace": (plan.workspace_bytes // 4,),
        }
        self._buffers = {
            name: torch.zeros(
                size, dtype=torch.float32 if name == "logits" else torch.int32, device=place
            )
            for name, size in sizes.items()
        }
        # Where a replay's lengths are written: into what the kernel reads, or beside it.
        self.live = (
            self._buffers["row_ends"]
            if direct
            else torch.zeros(shape.num_rows, dtype=torch.int32, device=place)
        )
        self._host, self._direct = host, direct
        self._kept = torch.from_numpy(row_ends.astype(np.int32)).to(place)
        self._run = self._queue if self._memory is None else self._capture()

    def _around(self) -> None:
        """What is captured beside the launches: the lengths, as they are or as they once were."""
        import torch

        if not self._direct:
            self._buffers["row_ends"].copy_(
                self._kept if self._host == "host-lengths" else self.live
            )
        if self._host == "host-path":
            slots = torch.arange(self._buffers["indices"].shape[1], device=self._kept.device)
            answer = torch.where(slots < self._kept[:, None], slots, NO_INDEX)
            self._buffers["indices"].copy_(answer)

    def _launch(self) -> None:
        if self._host == "host-path":
            return
        if self._memory is not None:
            self._memory.launch(self.plan, self._buffers)
            self.code = targets.code_of(self.plan, self._memory.opened)
        else:
            arrays = {name: buffer.numpy() for name, buffer in self._buffers.items()}
            if not self.plan.workspace_bytes:
                del arrays["workspace"]
            self.code, _ = targets.emulate(self.target, self.plan, arrays)

    def _queue(self) -> None:
        self._around()
        self._launch()

    def _capture(self) -> Callable[[], None]:
        self._queue()
        self._memory.synchronize()
        return self._memory.capture(self._queue)

    def _poison(self) -> None:
        self._buffers["indices"].fill_(UNWRITTEN)
        self._buffers["workspace"].fill_(UNWRITTEN)

    def back_to_back(self, row_ends: np.ndarray) -> torch.Tensor:
        """Replay on one drawing of logits, each time with lengths written just before.

        Nothing waits for the device: the lengths of a replay are queued behind the one before.

        Parameters
        ----------
        row_ends : (count, num_rows) int32 ndarray
            Lengths of each replay.

        Returns
        -------
        (count, num_rows, k) int32 tensor
            The answers, where they are written; `wrong_with` judges one.
        """
        import torch

        _fill(self._buffers["logits"], Replay(0, PATTERNS[0], row_ends[0]))
        written = torch.from_numpy(row_ends).to(self.live.device)
        indices = self._buffers["indices"]
        answers = torch.empty((len(row_ends), *indices.shape), dtype=torch.int32).to(indices.device)
        for answer, ends in zip(answers, written, strict=True):
            self._poison()
            self.live.copy_(ends)
            self._run()
            answer.copy_(indices)
        if self._memory is not None:
            self._memory.synchronize()
        return answers

    def wrong_with(self, answer: torch.Tensor, row_ends: np.ndarray) -> str | None:
        """What an answer breaks of the contract for these lengths; None if nothing."""
        import torch

        from topk_lab.contract import first_fault

        ends = torch.from_numpy(row_ends).to(self.live.device)
        return first_fault(self._buffers["logits"], answer, ends)

    def replay(self, given: Replay) -> torch.Tensor:
        """Write the inputs, garbage to output and workspace, and run what was captured.

        Parameters
        ----------
        given : Replay

        Returns
        -------
        (num_rows, k) int32 tensor
            The answer, where it is written.
        """
        import torch

        _fill(self._buffers["logits"], given)
        self.live.copy_(torch.from_numpy(given.row_ends))
        self._poison()
        self._run()
        if self._memory is not None:
            self._memory.synchronize()
        return self._buffers["indices"]

    def wrong(self) -> str | None:
        """What the last replay broke of the contract, in one line; None if nothing."""
        from topk_lab.contract import first_fault

        return first_fault(self._buffers["logits"], self._buffers["indices"], self.live)

    def splits(self) -> np.ndarray:
        """Splits of each row that the last replay wrote to: (num_rows,) int64, 0 where none."""
        if not self.plan.workspace_bytes:
            return np.zeros(len(self.live), np.int64)
        seen = plans.observed_splits(self.plan, self._buffers["workspace"], UNWRITTEN)
        return seen.cpu().numpy()


def capture(
    target: str,
    variant: str,
    num_rows: int,
    num_cols: int,
    *,
    k: int = K,
    host: str | None = None,
    row_ends: np.ndarray | None = None,
    direct: bool = False,
) -> Captured:
    """Fix a call's launches and addresses.

    Parameters
    ----------
    target : str
        An AMD target (emulated), or a device.
    variant : str
        One that claims to be safe in graphs.
    num_rows, num_cols, k : int
        Shape of the call.
    host : str, optional
        Let the host decide something from the lengths: a key of `HOST_POLICIES`.
    row_ends : (num_rows,) int32 ndarray, optional
        What the host sees of the lengths when the call is captured; default whole rows.
    direct : bool, default False
        The kernel reads the very memory that the lengths are written to between replays. Otherwise
        the graph copies them there first.

    Returns
    -------
    Captured

    Raises
    ------
    TypeError, ValueError
        A target, variant or shape that can't be captured, a host policy that is not known or that
        the variant has no use for, lengths that are not one int32 a row.
    topk_lab.code_objects.CodeObjectError, topk_lab.driver.DriverError
        The target can't be used.
    """
    info = registry.resolve(variant)
    if not info.graph_safe:
        able = [other.name for other in registry.VARIANTS.values() if other.graph_safe]
        raise ValueError(f"variant must be one of {', '.join(able)}, got {variant!r}")
    places = (*targets.AMD_TARGETS, *targets.DEVICE_TARGETS)
    if target not in places:
        raise ValueError(f"target must be one of {', '.join(places)}, got {target!r}")
    if direct and host is not None:
        raise ValueError(f"direct must come without host, got host={host!r}")
    if host is not None and host not in HOST_POLICIES:
        raise ValueError(f"host must be one of {', '.join(HOST_POLICIES)}, got {host!r}")
    num_rows = positive_int("num_rows", num_rows, least=0)
    num_cols = positive_int("num_cols", num_cols, INT32_MAX, least=0)
    k = positive_int("k", k, INT32_MAX)
    if row_ends is None:
        row_ends = np.full(num_rows, num_cols, np.int32)
    if not isinstance(row_ends, np.ndarray) or row_ends.dtype != np.int32:
        raise TypeError(f"row_ends must be an int32 ndarray, got {dtype_name(row_ends)}")
    check_per_row_shape("row_ends", row_ends.shape, num_rows)
    if host == "host-splits":
        variant = _with_splits_of(variant, num_rows, num_cols, row_ends)
    shape = plans.Shape(num_rows, num_cols, k, num_cols, k)
    plan = plans.plan(variant, shape)
    if target in targets.DEVICE_TARGETS:
        targets.require_device(target)
    return Captured(target, plan, shape, host, row_ends, direct)


def _with_splits_of(variant: str, num_rows: int, num_cols: int, row_ends: np.ndarray) -> str:
    """The variant with the split count that it would give the longest row, fixed at launch."""
    chosen = schedules.parse_variant(variant)
    if getattr(chosen.policy, "split_schedule", "generic") == "generic":
        raise ValueError(f"variant must choose splits by length for host-splits, got {variant!r}")
    limit = schedules.max_splits(chosen, num_rows, num_cols)
    longest = int(np.clip(row_ends, 0, num_cols).max(initial=0))
    count = schedules.active_splits(chosen, num_rows, longest, limit)
    policy = replace(chosen.policy, splits=f"fixed_{count}")
    return str(schedules.Variant(chosen.name, policy))
