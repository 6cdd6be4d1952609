"""How does machine code become instructions, with whichever LLVM is at hand?

Two routes give the same text: the program ``llvm-objdump``, and ``LLVMDisasmInstruction`` of a
shared library, the system's ``libLLVM`` or the one inside the PyPI package ``rocm-llvm-python``.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from topk_lab.emulator.code_object import CodeObject, Kernel
from topk_lab.emulator.errors import EmulationError, ToolNotFound

__all__ = ["Disassembler", "Instruction", "available", "disassemble", "find"]

_OBJDUMP_NAMES = ("llvm-objdump-22", "llvm-objdump")
_LIBRARY_PATTERNS = ("/usr/lib/*/libLLVM.so.2[2-9]*", "/usr/lib64/libLLVM.so.2[2-9]*")
_LISTING_LINE = re.compile(r"^\t(\S.*?)\s*// ([0-9A-F]{8,}):")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a kernel.

    Attributes
    ----------
    pc : int
        Byte offset from the start of the kernel.
    word : int
        First 32 bits of its encoding.
    text : str
        Assembly text, one blank between words.
    """

    pc: int
    word: int
    text: str

    @property
    def mnemonic(self) -> str:
        """The first word, with its encoding suffix (``_e32``, ``_dpp``, ...)."""
        return self.text.split(" ", 1)[0]

    @property
    def branch_target(self) -> int:
        """The pc that a branch goes to when taken."""
        distance = (self.word & 0xFFFF) - ((self.word & 0x8000) << 1)
        return self.pc + 4 + 4 * distance


class Disassembler(Protocol):
    """Turns a kernel's machine code into text."""

    name: str

    def lines(self, code_object: CodeObject, kernel: Kernel) -> list[tuple[int, str]]:
        """Image address and text of each instruction of `kernel`."""
        ...


@dataclass(frozen=True)
class ObjdumpDisassembler:
    """The program ``llvm-objdump`` at `path`."""

    path: str
    name: str

    def lines(self, code_object: CodeObject, kernel: Kernel) -> list[tuple[int, str]]:
        """Image address and text of each instruction of `kernel`."""
        with tempfile.NamedTemporaryFile(suffix=".hsaco") as file:
            file.write(code_object.content)
            file.flush()
            done = subprocess.run(
                [
                    self.path,
                    "-d",
                    f"--mcpu={code_object.target}",
                    f"--start-address={kernel.address}",
                    f"--stop-address={kernel.address + kernel.size}",
                    file.name,
                ],
                capture_output=True,
                text=True,
            )
        # A version that does not know the target says so and goes on with another one.
        if done.returncode != 0 or done.stderr.strip():
            raise EmulationError(f"{self.path}: {done.stderr.strip()}")
        found = (_LISTING_LINE.match(line) for line in done.stdout.splitlines())
        return [(int(match[2], 16), match[1]) for match in found if match]


class LibraryDisassembler:
    """LLVM's disassembler in the shared library at `path`."""

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name = path, name
        self._lock = threading.Lock()
        library = ctypes.CDLL(path)
        for part in ("TargetInfo", "TargetMC", "Disassembler"):
            getattr(library, f"LLVMInitializeAMDGPU{part}")()
        string, pointer, word = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint64
        self._create = library.LLVMCreateDisasmCPU
        self._create.restype = pointer
        self._create.argtypes = [string, string, pointer, ctypes.c_int, pointer, pointer]
        self._dispose = library.LLVMDisasmDispose
        self._dispose.argtypes = [pointer]
        self._decode = library.LLVMDisasmInstruction
        self._decode.restype = ctypes.c_size_t
        self._decode.argtypes = [pointer, pointer, word, word, string, ctypes.c_size_t]

    def lines(self, code_object: CodeObject, kernel: Kernel) -> list[tuple[int, str]]:
        """Image address and text of each instruction of `kernel`."""
        code = code_object.code(kernel)
        place = ctypes.create_string_buffer(code, len(code))
        begin = ctypes.addressof(place)
        text = ctypes.create_string_buffer(512)
        target = code_object.target.encode()
        found, at = [], 0
        with self._lock:
            context = self._create(b"amdgcn-amd-amdhsa", target, None, 0, None, None)
            if not context:
                raise EmulationError(f"{self.path} does not know {code_object.target}")
            try:
                while at < len(code):
                    address = kernel.address + at
                    size = self._decode(context, begin + at, len(code) - at, address, text, 512)
                    if size == 0:
                        raise EmulationError(f"{kernel.name}+{at:#x}: not an instruction")
                    found.append((address, text.value.decode()))
                    at += size
            finally:
                self._dispose(context)
        return found


def _objdump(path: str) -> ObjdumpDisassembler | None:
    said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"LLVM version (\d+)\.\S+", said)
    # gfx950 came with LLVM 20.
    if not version or int(version[1]) < 20 or "amdgcn" not in said:
        return None
    return ObjdumpDisassembler(path, f"{path} ({version[0]})")


def _libraries() -> Iterator[str]:
    for pattern in _LIBRARY_PATTERNS:
        yield from sorted(glob.glob(pattern))
    package = importlib.util.find_spec("rocm")
    for folder in package.submodule_search_locations if package else ():
        yield from glob.glob(os.path.join(folder, "llvm", "librocmllvm.so*"))


def available() -> Iterator[Disassembler]:
    """The disassemblers of this machine that know the targets, best first.

    Yields
    ------
    Disassembler
        ``llvm-objdump`` from ``PATH`` or ROCm, then shared libraries.
    """
    rocm = os.path.join(os.environ.get("ROCM_PATH", "/opt/rocm"), "llvm", "bin")
    for name in _OBJDUMP_NAMES:
        for folder in (None, rocm):
            path = shutil.which(name, path=folder)
            found = _objdump(path) if path else None
            if found:
                yield found
    for path in _libraries():
        try:
            yield LibraryDisassembler(path, path)
        except (OSError, AttributeError):
            continue


@functools.cache
def _find(path: str, rocm: str) -> Disassembler:
    for found in available():
        return found
    raise ToolNotFound(
        "no disassembler: install llvm-objdump 20 or newer, or pip install rocm-llvm-python"
    )


def find() -> Disassembler:
    """The first of the `available` disassemblers.

    Raises
    ------
    ToolNotFound
        There is none.
    """
    return _find(os.environ.get("PATH", ""), os.environ.get("ROCM_PATH", ""))


def _literal(code: bytes, pc: int, word: int) -> int | None:
    """The 32-bit literal that follows an instruction word whose source field is 255."""
    sources = ()
    if word >> 31 == 0:  # VOP1, VOP2, VOPC
        sources = (word & 511,)
    elif word >> 23 == 0x17D:  # SOP1
        sources = (word & 255,)
    elif word >> 23 == 0x17E or (word >> 30 == 2 and word >> 28 != 11):  # SOPC, SOP2
        sources = (word & 255, word >> 8 & 255)
    if 255 in sources:
        return int.from_bytes(code[pc + 4 : pc + 8], "little")
    return None


def _normalised(text: str, word: int, literal: int | None) -> str:
    """Text in one spelling, whatever the version of LLVM."""
    text = " ".join(text.split())
    if text.startswith(("s_branch ", "s_cbranch_")):
        # A label's name in one route, a number in the other.
        return f"{text.split(' ', 1)[0]} {word & 0xFFFF}"
    if literal is not None:
        # LLVM 22 marks a literal that could have been an inline constant, LLVM 20 does not. For
        # 64-bit operands the two mean different numbers.
        text = re.sub(r"lit\((\w+)\)", r"\1", text)
        signed = literal - ((literal & 0x80000000) << 1)
        text = re.sub(rf"(?<=, ){signed}(?=,|$)", f"{literal:#x}", text)
    return text


def disassemble(
    code_object: CodeObject, kernel: Kernel, disassembler: Disassembler | None = None
) -> list[Instruction]:
    """The instructions of a kernel.

    Parameters
    ----------
    code_object : CodeObject
    kernel : Kernel
        One of its kernels.
    disassembler : Disassembler, optional
        Default: `find`.

    Returns
    -------
    list of Instruction
        From the first to the last byte of the kernel, in order, in one spelling.
    """
    lines = (disassembler or find()).lines(code_object, kernel)
    code = code_object.code(kernel)
    found = []
    for address, text in lines:
        pc = address - kernel.address
        word = int.from_bytes(code[pc : pc + 4], "little")
        found.append(Instruction(pc, word, _normalised(text, word, _literal(code, pc, word))))
    if not found or found[0].pc != 0:
        raise EmulationError(f"{kernel.name}: the disassembler gave no first instruction")
    return found
