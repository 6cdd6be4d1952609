"""What would users run instead, can it run here, and how is it called?

A peer is a selection of another package, run as that package ships it: checked exact, then timed
beside this package's variants. It is data, what the kernel needs and what it gives back, and one
small function that calls it. Whatever keeps a peer from running is said in one line: the package is
not installed, this version lacks the entry point, the device is another one, the shape is refused.
The line becomes the reason of a record with status skipped.

Every peer is called as in decode: row r is live in columns [0, row_ends[r]), and indices count from
the row's first column. A peer that takes row ends leaves -1 past them; one that doesn't, serves
rows that are live to their end only. Row ends must lie in [0, num_cols]: unlike this package's
variants, several peers read out of bounds where one doesn't.

Notes
-----
Interfaces as the packages state them: vLLM 0.33, SGLang 0.5.23 with its kernel package 0.4,
FlashInfer 0.7, AITER of August 2026, DeepSelect 1.0. What was renamed is looked for by both names.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from topk_lab.bench.device import Call, Device, Gpu
from topk_lab.bench.ratios import TORCH
from topk_lab.bench.timing import one_line
from topk_lab.environment import package_version

if TYPE_CHECKING:
    import torch

__all__ = [
    "PEERS",
    "PREFIX",
    "Archs",
    "EntryPoint",
    "Peer",
    "Returned",
    "Standing",
    "as_indices",
    "refusal",
    "survey",
]

PREFIX = "peer:"  # of a peer's variant; torch.topk, this package's baseline, has none
LOGIT_BYTES = 4
VLLM_WORKSPACE_BYTES = 2**20
SGLANG_PAGE_SIZE = 64

Tensor: TypeAlias = "torch.Tensor"


class Archs(NamedTuple):
    """Compute capabilities that a kernel was built for, 90 for sm_90: in words, and as a test."""

    words: str
    holds: Callable[[int], bool]


class EntryPoint(NamedTuple):
    """Functions of a module: its own, or operators that torch knows once it is imported."""

    module: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return " and ".join(
            name if name.startswith("torch.") else f"{self.module}.{name}" for name in self.names
        )

    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions; the module was imported before."""
        import torch

        module = sys.modules[self.module]
        return tuple(
            functools.reduce(getattr, name.split(".")[1:], torch)
            if name.startswith("torch.")
            else getattr(module, name)
            for name in self.names
        )


class _Refused(Exception):
    """The text says why a peer can't run, in one line."""


class Returned:
    """Stands for the output of a call that makes its own: what the last call returned.

    Captured, that is memory of the graph, which every replay writes anew.

    Parameters
    ----------
    shape : (int, int)
        Rows, and indices a row.
    dtype : torch.dtype
        Of the indices.
    """

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        self._due = shape, dtype
        self.tensor: torch.Tensor | None = None

    def keep(self, indices: torch.Tensor) -> None:
        """Keep what a call returned, or raise if it is not the tensor that is due."""
        if (tuple(indices.shape), indices.dtype) != self._due:
            shape, dtype = self._due
            raise ValueError(
                f"the answer must be {shape} {dtype}, got {tuple(indices.shape)} {indices.dtype}"
            )
        self.tensor = indices

    def fill_(self, value: float) -> None:
        """Write a value over what the last call returned."""
        self.tensor.fill_(value)


def as_indices(output: torch.Tensor | Returned) -> torch.Tensor:
    """The (num_rows, k) int32 indices of an output; what int32 can't hold stays out of range."""
    import torch

    indices = output.tensor if isinstance(output, Returned) else output
    int32 = torch.iinfo(torch.int32)
    return indices.clamp(int32.min, int32.max).to(torch.int32)


@dataclass(frozen=True)
class Peer:
    """A selection of another package: what it needs, and how it is called.

    Attributes
    ----------
    variant : str
        As records name it: ``"peer:vllm_persistent"``.
    package : str
        What is imported, and asked for its version.
    entry_points : tuple of EntryPoint
        Where its functions are, the newest place first.
    launch : callable
        From its functions, logits, row_ends, k and out: what queues a call. It fills `out`, or
        returns the indices.
    archs : mapping of str to (Archs or None)
        Target -> the devices that it was built for; None for all of the target.
    ks : tuple of int
        The only k that it serves; empty for any.
    max_k, max_rows, max_cols : int, optional
        The most that it serves; None for any.
    row_bytes : int
        What the distance of two rows must be a multiple of (bytes).
    takes_row_ends : bool
        Whether rows may be live in part.
    fills_out : bool
        Whether it writes to a tensor that it is given; else it returns one of its own.
    index_dtype : {"int32", "int64"}
        Of its indices.
    """

    variant: str
    package: str
    entry_points: tuple[EntryPoint, ...]
    launch: Callable[..., Callable[[], Any]] = field(repr=False)
    archs: Mapping[str, Archs | None] = field(repr=False)
    ks: tuple[int, ...] = ()
    max_k: int | None = None
    max_rows: int | None = None
    max_cols: int | None = None
    row_bytes: int = LOGIT_BYTES
    takes_row_ends: bool = True
    fills_out: bool = True
    index_dtype: str = "int32"

    def _entry(self, device: Device | Gpu | None) -> EntryPoint:
        """The entry point that is called here; the device is asked first, as imports take long."""
        if self.package not in sys.modules and importlib.util.find_spec(self.package) is None:
            raise _Refused(f"package {self.package} is not installed")
        self._check_device(device)
        release = f"{self.package} {package_version(self.package) or 'of unknown version'}"
        for entry in self.entry_points:
            try:
                importlib.import_module(entry.module)
            except Exception as error:  # built for another device, packages fail in many ways
                missing = error.name if isinstance(error, ModuleNotFoundError) else None
                # Without the module itself it is of another layout; any other is one it needs.
                if missing and f"{entry.module}.".startswith(f"{missing}."):
                    continue
                raise _Refused(f"{release} can't be imported: {one_line(error)}") from error
            with contextlib.suppress(AttributeError):
                entry.functions()
                return entry
        raise _Refused(f"{release} has no {', nor '.join(map(str, self.entry_points))}")

    def _check_device(self, device: Device | Gpu | None) -> None:
        due = " or ".join(
            f"{target} {archs.words}" if archs else target for target, archs in self.archs.items()
        )
        if device is None:
            raise _Refused(f"device must be {due}, torch sees none")
        if device.target in self.archs:
            archs = self.archs[device.target]
            if archs is None or archs.holds(int(device.arch.removeprefix("sm_"))):
                return
        raise _Refused(f"device must be {due}, got {device.target} {device.arch}")

    def _check_shape(
        self, num_rows: int, num_cols: int, k: int, lengths: tuple[int, int] | None
    ) -> None:
        if self.ks and k not in self.ks:
            raise _Refused(f"k must be {' or '.join(map(str, self.ks))}, got {k}")
        for name, value, most in (
            ("k", k, self.max_k),
            ("num_rows", num_rows, self.max_rows),
            ("num_cols", num_cols, self.max_cols),
        ):
            if most is not None and value > most:
                raise _Refused(f"{name} must be at most {most}, got {value}")
        if num_cols * LOGIT_BYTES % self.row_bytes:
            multiple = self.row_bytes // LOGIT_BYTES
            raise _Refused(f"num_cols must be a multiple of {multiple}, got {num_cols}")
        if not self.takes_row_ends and k > num_cols:
            raise _Refused(f"k must be at most num_cols = {num_cols}, got {k}")
        shortest, longest = lengths or (num_cols, num_cols)
        least = 0 if self.takes_row_ends else num_cols
        if shortest < least or longest > num_cols:
            raise _Refused(
                f"row_ends must lie in [{least}, {num_cols}], got {shortest} to {longest}"
            )

    def refusal(
        self,
        device: Device | Gpu | None,
        num_rows: int,
        num_cols: int,
        k: int,
        lengths: tuple[int, int] | None = None,
    ) -> str | None:
        """Why it can't select here from rows of a shape, in one line.

        Parameters
        ----------
        device : Device or Gpu, optional
            None for a torch that sees none.
        num_rows, num_cols, k : int
            Shape; the rows lie close to one another.
        lengths : (int, int), optional
            The least and the greatest row end; default: every row is live to its end.

        Returns
        -------
        str or None
            None if it can.
        """
        try:
            self._entry(device)
            self._check_shape(num_rows, num_cols, k, lengths)
        except _Refused as reason:
            return str(reason)
        return None

    def make(
        self, device: Device | Gpu, k: int, row_ends: torch.Tensor, logits: torch.Tensor
    ) -> tuple[Call, torch.Tensor | Returned]:
        """Prepare a call that was not refused.

        Parameters
        ----------
        device : Device or Gpu
        k : int
        row_ends : (num_rows,) int32 tensor
            Live columns.
        logits : (num_rows, num_cols) float32 tensor
            On the device.

        Returns
        -------
        callable
            Queues the call; whatever the package raises comes as a ValueError or RuntimeError.
        tensor or Returned
            The output, for `as_indices`.
        """
        import torch

        shape, dtype = (len(logits), k), getattr(torch, self.index_dtype)
        out = torch.empty(shape, dtype=dtype, device=logits.device) if self.fills_out else None
        returned = None if self.fills_out else Returned(shape, dtype)
        run = self.launch(*self._entry(device).functions(), logits, row_ends, k, out)

        def call() -> None:
            try:
                answer = run()
                if returned is not None:
                    returned.keep(answer)
            except (ValueError, RuntimeError):
                raise
            except Exception as error:  # an assert, no compiler, an argument of another version
                raise RuntimeError(one_line(error)) from error

        return call, returned or out


def _torch(topk: Callable, logits: Tensor, row_ends: Tensor, k: int, out: Tensor) -> Call:
    """torch.topk itself; unsorted, as the selections are, and as the published times were."""
    values = logits.new_empty(out.shape)
    return lambda: topk(logits, k, sorted=False, out=(values, out))


def _per_row(select: Callable, logits: Tensor, row_ends: Tensor, k: int, out: Tensor) -> Call:
    """Decode of vLLM and AITER with one token a sequence: a sequence's length is a row's end."""
    num_rows, strides = len(logits), logits.stride()
    return lambda: select(logits, 1, row_ends, out, num_rows, *strides, k)


def _with_workspace(
    select: Callable, logits: Tensor, row_ends: Tensor, k: int, out: Tensor
) -> Call:
    """Kernels of vLLM that need a workspace: not written before, as vLLM doesn't either."""
    import torch

    workspace = torch.empty(VLLM_WORKSPACE_BYTES, dtype=torch.uint8, device=logits.device)
    num_cols = logits.shape[1]
    return lambda: select(logits, row_ends, out, workspace, k, num_cols)


def _fast_topk(select: Callable, logits: Tensor, row_ends: Tensor, k: int, out: None) -> Callable:
    return lambda: select(logits, row_ends, k)


def _values_too(select: Callable, logits: Tensor, row_ends: Tensor, k: int, out: None) -> Callable:
    """What takes no row ends, and returns values and indices."""
    return lambda: select(logits, k)[1]


def _pages(logits: Tensor) -> Tensor:
    """Page tables that leave every column in its place, so that a slot is an index."""
    import torch

    count = -(-logits.shape[1] // SGLANG_PAGE_SIZE)
    pages = torch.arange(count, dtype=torch.int32, device=logits.device)
    return pages.repeat(len(logits), 1)


def _paged(select: Callable, logits: Tensor, row_ends: Tensor, k: int, out: Tensor) -> Call:
    pages = _pages(logits)
    return lambda: select(logits, row_ends, pages, out, SGLANG_PAGE_SIZE)


def _planned(
    plan: Callable, select: Callable, logits: Tensor, row_ends: Tensor, k: int, out: Tensor
) -> Call:
    """The plan is part of the call: it follows from row ends, which a replay may change."""
    pages = _pages(logits)
    return lambda: select(logits, row_ends, pages, out, SGLANG_PAGE_SIZE, plan(row_ends))


def _ragged(
    select: Callable, logits: Tensor, row_ends: Tensor, k: int, out: None, **more: Any
) -> Call:
    """Offsets of zero leave indices relative to their rows."""
    import torch

    offsets = torch.zeros_like(row_ends)
    return lambda: select(logits, offsets, row_ends, k, **more)


def _deep_select(select: Callable, logits: Tensor, row_ends: Tensor, k: int, out: None) -> Callable:
    """Unless told otherwise, it pads with 2^31 - 1 and ends the process at a NaN."""
    import torch

    return lambda: select(
        logits,
        k,
        end=row_ends,
        indices_type=torch.int32,
        idx_oob_fill_value=-1,
        return_value=False,
        abort_when_nan_found=False,
    )[1]


_ANY = {"cuda": None, "hip": None}
_CLUSTERS = Archs("sm_90 or newer", lambda arch: arch >= 90)
_COOPERATIVE = Archs("sm_90 to sm_119", lambda arch: 90 <= arch < 120)
_DEEP_SELECT_ARCHS = Archs("sm_90, sm_100 or sm_103", (90, 100, 103).__contains__)
_DEEP_SELECT_LIMITS: dict[str, Any] = {"max_k": 4096, "max_cols": 2**23 - 1, "row_bytes": 1024}
_VLLM_KS = (512, 1024, 2048)


def _vllm(name: str) -> tuple[EntryPoint]:
    """An operator of vLLM's, which importing this module registers."""
    return (EntryPoint("vllm._custom_ops", (f"torch.ops._C.{name}",)),)


PEERS: dict[str, Peer] = {
    peer.variant: peer
    for peer in (
        Peer(
            TORCH,
            "torch",
            (EntryPoint("torch", ("topk",)),),
            _torch,
            _ANY,
            takes_row_ends=False,
            index_dtype="int64",
        ),
        Peer("peer:vllm_top_k_per_row", "vllm", _vllm("top_k_per_row_decode"), _per_row, _ANY),
        Peer(
            "peer:vllm_persistent",
            "vllm",
            _vllm("persistent_topk"),
            _with_workspace,
            {"cuda": None},
            ks=_VLLM_KS,
        ),
        Peer(
            "peer:vllm_cooperative",
            "vllm",
            _vllm("cooperative_topk"),
            _with_workspace,
            {"cuda": _COOPERATIVE},
            ks=_VLLM_KS,
            max_rows=64,
            row_bytes=16,
        ),
        Peer(
            "peer:sglang_topk_v2",
            "sglang",
            tuple(
                EntryPoint(module, ("plan_topk_v2", name))
                for module, name in (
                    ("sglang.kernels.ops.attention.dsv4.topk", "topk_transform_paged_v2"),
                    ("sglang.kernels.ops.attention.dsv4.topk", "topk_transform_512_v2"),
                    ("sglang.jit_kernel.dsv4.topk", "topk_transform_512_v2"),
                )
            ),
            _planned,
            {"cuda": _CLUSTERS, "hip": None},
            max_k=2048,
            row_bytes=16,
        ),
        Peer(
            "peer:sgl_deepseek_v4_topk",
            "sgl_kernel",
            (EntryPoint("sgl_kernel", ("deepseek_v4_topk_transform_512",)),),
            _paged,
            {"hip": None},
            max_k=1024,
        ),
        Peer(
            "peer:sgl_fast_topk_v2",
            "sgl_kernel",
            (EntryPoint("sgl_kernel", ("fast_topk_v2",)),),
            _fast_topk,
            _ANY,
            ks=(2048,),
            fills_out=False,
        ),
        Peer(
            "peer:sgl_deepselect_fp32",
            "sgl_kernel",
            (EntryPoint("sgl_kernel", ("deepselect_topk_fp32",)),),
            _values_too,
            {"cuda": _DEEP_SELECT_ARCHS},
            **_DEEP_SELECT_LIMITS,
            takes_row_ends=False,
            fills_out=False,
        ),
        Peer(
            "peer:deep_select",
            "deep_select",
            (EntryPoint("deep_select", ("topk",)),),
            _deep_select,
            {"cuda": _DEEP_SELECT_ARCHS},
            **_DEEP_SELECT_LIMITS,
            fills_out=False,
        ),
        *(
            Peer(
                variant,
                "flashinfer",
                (EntryPoint("flashinfer", ("top_k_ragged_transform",)),),
                partial(_ragged, **options),
                {"cuda": None},
                fills_out=False,
            )
            for variant, options in (
                ("peer:flashinfer_ragged", {}),
                ("peer:flashinfer_ragged_graph_safe", {"dsa_graph_safe": True}),
            )
        ),
        Peer(
            "peer:flashinfer_top_k",
            "flashinfer",
            (EntryPoint("flashinfer", ("top_k",)),),
            _values_too,
            {"cuda": None},
            takes_row_ends=False,
            fills_out=False,
            index_dtype="int64",
        ),
        Peer(
            "peer:aiter_top_k_per_row",
            "aiter",
            (EntryPoint("aiter.ops.topk", ("top_k_per_row_decode",)),),
            _per_row,
            {"hip": None},
        ),
    )
}


def refusal(
    variant: str, device: Device | Gpu | None, num_rows: int, num_cols: int, k: int
) -> str | None:
    """Why a variant can't be timed here, in one line: None unless it is a peer that is refused.

    Parameters
    ----------
    variant : str
        A peer's or any other.
    device, num_rows, num_cols, k
        As for `Peer.refusal`.

    Returns
    -------
    str or None
    """
    peer = PEERS.get(variant)
    return None if peer is None else peer.refusal(device, num_rows, num_cols, k)


class Standing(NamedTuple):
    """Whether a peer can run here.

    Attributes
    ----------
    variant, package : str
        As `Peer` has them.
    version : str or None
        Of the package, from its metadata; None without any.
    entry_point : str or None
        What is called; None where nothing can be.
    reason : str or None
        Why not, in one line; None if it can.
    """

    variant: str
    package: str
    version: str | None
    entry_point: str | None
    reason: str | None


def survey(device: Device | Gpu | None) -> list[Standing]:
    """Say of every peer whether it can run here; what is installed for the device is imported.

    Parameters
    ----------
    device : Device or Gpu, optional
        None for a torch that sees none.

    Returns
    -------
    list of Standing
    """
    found = []
    for peer in PEERS.values():
        entry = reason = None
        try:
            entry = str(peer._entry(device))
        except _Refused as refused:
            reason = str(refused)
        version = package_version(peer.package)
        found.append(Standing(peer.variant, peer.package, version, entry, reason))
    return found
