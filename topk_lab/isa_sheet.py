"""What does each compiled AMD kernel ask of a compute unit, and what is it made of?

The sheet has a row for every kernel of every code object: registers, LDS, scratch, how many blocks
a compute unit holds, and its instructions by kind. It is read from the machine code, so that it
changes with the kernels and with the compiler: `differences` compares strictly only what the same
compiler made.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from topk_lab import code_objects, plans, registry, results, schedules
from topk_lab.emulator import TARGETS, CodeObject
from topk_lab.emulator.disassembly import Instruction, disassemble
from topk_lab.models import DEVICES, resident_blocks

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COHERENT",
    "COMMAND",
    "KINDS",
    "NEAR",
    "differences",
    "kinds",
    "length_loads",
    "load",
    "make",
    "page",
    "write",
]

COMMAND = "topk-lab isa-sheet"
NAME = "isa_sheet"

# What an agent-scope load carries on each target: it goes past caches that are not coherent.
COHERENT = {"gfx90a": "glc", "gfx942": "sc1", "gfx950": "sc1"}

# Kind -> how its mnemonics begin; the first that fits.
KINDS = {
    "valu": ("v_",),
    "smem": ("s_load", "s_buffer_load", "s_dcache", "s_memtime"),
    "wait": ("s_waitcnt", "s_nop", "s_sleep", "s_setprio"),
    "barrier": ("s_barrier",),
    "branch": ("s_branch", "s_cbranch", "s_endpgm", "s_setpc", "s_swappc"),
    "salu": ("s_",),
    "global_load": ("global_load",),
    "global_store": ("global_store",),
    "global_atomic": ("global_atomic",),
    "cache": ("buffer_wb", "buffer_inv", "buffer_gl"),
    "lds_instructions": ("ds_",),
}
RESOURCES = ("vgpr", "agpr", "sgpr", "lds", "scratch", "waves_per_simd", "code_bytes")
COLUMNS = (
    *("target", "source", "kernel", "block", "vgpr", "agpr", "sgpr", "lds", "dynamic_lds"),
    *("scratch", "waves_per_simd", "blocks_per_cu", "limit", "instructions", *KINDS),
    *("other", "length_loads", "code_bytes"),
)
# How far another compiler's kernels may be from the sheet's: relative, and in units at least.
NEAR = {
    "vgpr": (0.25, 8),
    "agpr": (0.0, 0),
    "sgpr": (0.25, 16),
    "lds": (0.0, 0),
    "dynamic_lds": (0.0, 0),
    "scratch": (0.0, 0),
    "instructions": (0.15, 40),
    "barrier": (0.0, 0),
    "length_loads": (0.0, 0),
}
PLANNED_ROWS = (1, 8, 24, 128, 384)
PLANNED_COLUMNS = (2048, 12_287, 40_000, 262_144, 1_048_576)
PLANNED_K = (512, 1024, 2048, 4096)


def kinds(listing: Iterable[Instruction]) -> dict[str, int]:
    """Number of a kernel's instructions of each kind.

    Parameters
    ----------
    listing : iterable of Instruction

    Returns
    -------
    dict of str to int
        Keys of `KINDS`, and ``other``.
    """
    counted = collections.Counter(_kind(instruction.mnemonic) for instruction in listing)
    return {kind: counted[kind] for kind in (*KINDS, "other")}


@functools.cache
def _kind(mnemonic: str) -> str:
    return next((kind for kind, starts in KINDS.items() if mnemonic.startswith(starts)), "other")


def length_loads(listing: Iterable[Instruction], target: str) -> int:
    """Number of a kernel's loads of one word that replays may change, each past the scalar cache.

    Parameters
    ----------
    listing : iterable of Instruction
    target : {"gfx90a", "gfx942", "gfx950"}

    Returns
    -------
    int
    """
    return sum(
        bool(re.match(r"global_load_dword v\d+, ", instruction.text))
        and COHERENT[target] in instruction.text.split()
        for instruction in listing
    )


def _spelled() -> Iterator[str]:
    """Every variant that is launched from a plan, and its compiled policies."""
    for name, info in registry.VARIANTS.items():
        if info.graph_safe:
            yield name
    for name, ablations in schedules.ABLATIONS.items():
        for changes in ablations.values():
            fields = ",".join(f"{key}={str(value).lower()}" for key, value in changes.items())
            yield f"{name}[{fields}]"


@functools.cache
def _launched() -> dict[str, tuple[int, int]]:
    """Kernel -> threads of a block, and the most dynamic LDS, over calls of many shapes."""
    found: dict[str, tuple[int, int]] = {}
    shapes = itertools.product(PLANNED_ROWS, PLANNED_COLUMNS, PLANNED_K, (False, True))
    for (num_rows, num_cols, k, traced), variant in itertools.product(shapes, _spelled()):
        info = registry.resolve(variant)
        for tie_break, order in (*((tie, "any") for tie in info.tie_breaks), ("any", "index")):
            if order not in info.orders:
                continue
            shape = plans.Shape(
                num_rows, num_cols, k, num_cols, k, tie_break=tie_break, order=order
            )
            try:
                plan = plans.plan(variant, shape, study=True, traced=traced)
            except ValueError:
                continue  # outside of what the variant takes
            for launch in plan.launches:
                _, most = found.get(launch.kernel, (0, 0))
                found[launch.kernel] = launch.block, max(most, launch.dynamic_lds)
    return found


def _row(found: code_objects.CodeObjectFile, code: CodeObject, name: str) -> dict[str, object]:
    listing = disassemble(code, code.kernels[name])
    stated = found.kernels[name]
    block, dynamic = _launched().get(name, (stated["max_flat_workgroup_size"], 0))
    held = resident_blocks(stated, block, dynamic, DEVICES[found.target])
    return {
        "target": found.target,
        "source": found.source,
        "kernel": name,
        "block": block,
        **{key: stated[key] for key in RESOURCES},
        "dynamic_lds": dynamic,
        "blocks_per_cu": held.blocks_per_unit,
        "limit": held.limit,
        "instructions": len(listing),
        **kinds(listing),
        "length_loads": length_loads(listing, found.target),
    }


def make() -> tuple[pd.DataFrame, str]:
    """Read the sheet from the compiled code objects.

    Returns
    -------
    pandas.DataFrame
        A row a target, source and kernel; columns `COLUMNS`.
    str
        The compiler, by its first line.

    Raises
    ------
    topk_lab.code_objects.CodeObjectError
        A code object is missing or stale.
    topk_lab.emulator.EmulationError
        There is no disassembler.
    """
    import pandas as pd

    rows, compilers = [], set()
    for listed in code_objects.manifest():
        if listed.target not in TARGETS:
            continue
        found = code_objects.find(listed.source, listed.target)
        compilers.add(found.compiler)
        code = CodeObject.load(found.read())
        rows += [_row(found, code, name) for name in sorted(code.kernels)]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame = frame.sort_values(["target", "source", "kernel"], ignore_index=True)
    return frame, ", ".join(sorted(compilers))


def _folder() -> Path:
    return results.data_root() / "isa"


def load() -> tuple[pd.DataFrame, str]:
    """The committed sheet, as `make` returns it."""
    import pandas as pd

    about = tomllib.loads((_folder() / f"{NAME}.toml").read_text(encoding="utf-8"))
    return pd.read_csv(_folder() / f"{NAME}.csv"), about["compiler"]


def write(made: tuple[pd.DataFrame, str]) -> list[Path]:
    """Make a sheet the committed one.

    Parameters
    ----------
    made : tuple
        As `make` returns it.

    Returns
    -------
    list of Path
        The table, what is said of it, and its page.
    """
    frame, compiler = made
    paths = [_folder() / f"{NAME}.csv", _folder() / f"{NAME}.toml", _folder() / "ISA.md"]
    frame.to_csv(paths[0], index=False, lineterminator="\n")
    lines = [
        'title = "Resources and instructions of every compiled AMD kernel"',
        f'compiler = "{compiler}"',
        f'command = "{COMMAND}"',
    ]
    paths[1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    paths[2].write_text(page(frame, compiler), encoding="utf-8")
    return paths


def page(frame: pd.DataFrame, compiler: str) -> str:
    """The sheet's page: the kernels that serve calls; the table has the others too.

    Parameters
    ----------
    frame, compiler
        As `make` returns them.

    Returns
    -------
    str
        Markdown.
    """
    shown = frame[
        ~frame["kernel"].str.endswith("_traced")
        & ~frame["source"].isin(["vllm_ablations", "sglang_ablations", "vllm_splits"])
        & (frame["kernel"] != "policy_probe")
    ]
    names = (
        *("kernel", "block", "vgpr", "sgpr", "lds", "dynamic_lds", "waves_per_simd"),
        *("blocks_per_cu", "limit", "instructions", "valu", "salu", "smem", "global_load"),
        *("lds_instructions", "barrier", "length_loads"),
    )
    columns = [name if name != "lds_instructions" else "lds_ops" for name in names]
    lines = [
        "# Registers, LDS and instructions of the compiled kernels",
        "",
        f"Generated by `{COMMAND}` from the code objects of {compiler}. A kernel has at most "
        f"{frame['scratch'].max()} bytes of scratch. `{NAME}.csv` has every kernel, the traced "
        "ones and the ablations too, and more columns.",
        "",
        "`lds` are static bytes of a block, `dynamic_lds` the most that a call adds to them; "
        "`waves_per_simd` is what registers allow, `blocks_per_cu` how many blocks a compute unit "
        "holds and `limit` what keeps another one out (`topk_lab.models.resident_blocks`). "
        "`length_loads` are the loads of what may change between replays: coherent ones "
        "(`global_load_dword` with `sc1`, on gfx90a `glc`), none through the scalar cache.",
    ]
    for target, rows in shown.groupby("target", sort=False):
        lines += ["", f"## {target}: {DEVICES[str(target)].name}", ""]
        table = [columns, ["---"] * len(columns)]
        for row in rows.to_dict("records"):
            table.append([str(row[name]) for name in names])
        lines += [f"| {' | '.join(line)} |" for line in table]
    return "\n".join(lines) + "\n"


def differences(committed: tuple[pd.DataFrame, str], made: tuple[pd.DataFrame, str]) -> list[str]:
    """What differs between the committed sheet and another.

    Parameters
    ----------
    committed, made : tuple
        As `make` returns them.

    Returns
    -------
    list of str
        A line a kernel and column. Of another compiler the columns of `NEAR` alone, beyond their
        distance.
    """
    (before, compiler), (after, compiler_after) = committed, made
    keys = ["target", "source", "kernel"]
    then, now = (frame.set_index(keys) for frame in (before, after))
    lines = [f"{'.'.join(key)} is not in the sheet" for key in now.index.difference(then.index)]
    lines += [f"{'.'.join(key)} is not compiled" for key in then.index.difference(now.index)]
    same = compiler == compiler_after
    columns: Sequence[str] = [name for name in COLUMNS if name not in keys] if same else list(NEAR)
    for key in now.index.intersection(then.index):
        for name in columns:
            old, new = then.at[key, name], now.at[key, name]
            if same:
                differs = old != new
            else:
                relative, least = NEAR[name]
                differs = abs(new - old) > max(relative * abs(old), least)
            if differs:
                lines.append(f"{'.'.join(key)}: {name} is {new}, the sheet has {old}")
    return lines
