"""Which LDS atomics does a compiled kernel hold, and are lanes that share an address served as one?

Read from the machine code: the AMD code object through the emulator's disassembler, the NVIDIA fat
binary through ``cuobjdump``, where the CUDA toolkit is. Two habits of compilers decide what a
crowded bin costs, and neither shows in the source:

- An atomic on an address that is the same for all lanes is done by one lane for its wave: clang and
  nvcc both count the lanes first. So slots are handed out wave by wave already.
- nvcc turns an increment whose old value nobody wants into ``ATOMS.POPC.INC``, which adds up the
  lanes that share an address, whatever it is. AMD's LDS has no such instruction.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from topk_lab import code_objects

__all__ = ["LdsAtomics", "count_listing", "cuobjdump", "lds_atomics"]

COMPILED_TARGETS = ("gfx90a", "gfx942", "gfx950", "cuda")
CUDA_ARCH = "sm_90"
SASS_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?P<text>.*?)\s*;")
# By platform: an LDS atomic, whether it returns the old value, and what counts the lanes before it.
AMD_ATOMIC = re.compile(r"(?P<name>ds_(?:add|sub|inc|dec|min|max|and|or)_(?P<returns>rtn_)?\w+)")
CUDA_ATOMIC = re.compile(r"(?:@!?U?P\d+ )?(?P<name>ATOMS\.[\w.]+) (?P<to>\w+),")
LANES_COUNTED = re.compile(r"v_mbcnt_hi|(?:@!?U?P\d+ )?U?POPC ")
WINDOW = 16  # instructions between counting the lanes and the atomic
SUMS_EQUAL_ADDRESSES = "ATOMS.POPC.INC.32"


@dataclass(frozen=True)
class LdsAtomics:
    """The LDS atomics in the machine code of a kernel: instructions, not how often they run.

    Attributes
    ----------
    mnemonics : dict of str to int
        All of them.
    increments : int
        Those that want no old value back: they add to a bin, one or what a thread counted.
    summing_increments : int
        Of these, instructions that add up the lanes that share an address.
    returning : int
        Those that want the old value: they hand out slots.
    shared_returning : int
        Of these, instructions that one lane executes for its wave.
    """

    mnemonics: dict[str, int]
    increments: int
    summing_increments: int
    returning: int
    shared_returning: int


def cuobjdump() -> str | None:
    """Path of the CUDA toolkit's disassembler, from ``TOPK_LAB_CUOBJDUMP`` or ``PATH``, if any."""
    return os.environ.get("TOPK_LAB_CUOBJDUMP") or shutil.which("cuobjdump")


def count_listing(listing: Sequence[str]) -> LdsAtomics:
    """Count the LDS atomics of a listing.

    Parameters
    ----------
    listing : sequence of str
        Instructions of one kernel, in order, AMD's or NVIDIA's.

    Returns
    -------
    LdsAtomics

    Raises
    ------
    TypeError
        A text in place of its lines.
    """
    if isinstance(listing, str):
        raise TypeError("listing must be a sequence of instructions, got one str")
    mnemonics: Counter[str] = Counter()
    returning = shared = 0
    for place, text in enumerate(listing):
        amd, cuda = AMD_ATOMIC.match(text), CUDA_ATOMIC.match(text)
        found = amd or cuda
        if not found:
            continue
        mnemonics[found["name"]] += 1
        if (amd and amd["returns"]) or (cuda and cuda["to"] != "RZ"):
            returning += 1
            shared += _lanes_counted_before(listing, place)
    return LdsAtomics(
        mnemonics=dict(sorted(mnemonics.items())),
        increments=mnemonics.total() - returning,
        summing_increments=mnemonics[SUMS_EQUAL_ADDRESSES],
        returning=returning,
        shared_returning=shared,
    )


def _lanes_counted_before(listing: Sequence[str], place: int) -> bool:
    """Whether lanes were counted shortly before an atomic, and behind the one before it."""
    for earlier in reversed(listing[max(place - WINDOW, 0) : place]):
        if AMD_ATOMIC.match(earlier) or CUDA_ATOMIC.match(earlier):
            return False
        if LANES_COUNTED.match(earlier):
            return True
    return False


def lds_atomics(kernel: str, target: str) -> LdsAtomics:
    """Count the LDS atomics in a kernel's machine code.

    Parameters
    ----------
    kernel : str
        Kernel name, such as ``vllm_k512_select``.
    target : {"gfx90a", "gfx942", "gfx950", "cuda"}
        Of the fat binary, the code for sm_90.

    Returns
    -------
    LdsAtomics

    Raises
    ------
    ValueError
        Another target.
    topk_lab.code_objects.CodeObjectError
        The target's code object is missing or stale, or no object holds the kernel.
    FileNotFoundError
        Target cuda without cuobjdump.
    """
    if target not in COMPILED_TARGETS:
        raise ValueError(f"target must be one of {', '.join(COMPILED_TARGETS)}, got {target!r}")
    found = code_objects.find(code_objects.kernel_source(kernel), target)
    if target != "cuda":
        from topk_lab.emulator import CodeObject
        from topk_lab.emulator.disassembly import disassemble

        code = CodeObject.load(found.read())
        return count_listing([one.text for one in disassemble(code, code.kernels[kernel])])
    tool = cuobjdump()
    if tool is None:
        raise FileNotFoundError("cuobjdump must be on PATH or in TOPK_LAB_CUOBJDUMP, found neither")
    found.read()
    command = [tool, "-sass", "-arch", CUDA_ARCH, "-fun", kernel, str(found.path)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return count_listing(
        [match["text"] for match in map(SASS_LINE.match, listed.splitlines()) if match]
    )
