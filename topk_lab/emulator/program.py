"""What is a translated kernel in memory, and how is it kept between processes?"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from topk_lab.emulator import native
from topk_lab.emulator.code_object import CodeObject, Kernel
from topk_lab.emulator.counts import KINDS
from topk_lab.emulator.disassembly import Instruction, disassemble
from topk_lab.emulator.errors import UnsupportedKernel
from topk_lab.emulator.translation import (
    SCALAR_REGISTERS,
    SPREAD,
    VECTOR,
    Translation,
    translate,
)

__all__ = ["BoundProgram", "Program", "aligned_copy", "aligned_empty", "check_supported", "prepare"]

_LANE_BYTES = 4 * 64
_LANE_MOVES = ("step_move_lanes", "ds_swizzle_b32")  # their target is a lane map
_CACHE_LINE = 64


@dataclass(frozen=True)
class Program:
    """A translated kernel, free of addresses: what the cache keeps.

    Attributes
    ----------
    operations : (num_operations,) `native.OPERATION` array
        ``run`` is the handler's number; ``target`` is the place of a branch's target, or of a lane
        map, plus one (0 where there is neither).
    constants : (num_constants,) uint32 array
    lane_maps : (num_lane_maps,) `native.LANE_MAP` array
    layout : (2,) int64 array
        Vector registers of a wave, and the byte offset of the first one from the wave.
    block_of, mnemonic_of, times : int64 arrays
        Sparse table: basic block, mnemonic, instructions.
    mnemonics, kinds : str arrays
        Mnemonics by number, and what each counts as.
    pcs : int64 array
        Byte offset of each instruction.
    texts : (num_bytes,) uint8 array
        Their text, UTF-8, a line each.
    """

    operations: np.ndarray
    constants: np.ndarray
    lane_maps: np.ndarray
    layout: np.ndarray
    block_of: np.ndarray
    mnemonic_of: np.ndarray
    times: np.ndarray
    mnemonics: np.ndarray
    kinds: np.ndarray
    pcs: np.ndarray
    texts: np.ndarray

    def text_at(self, pc: int) -> str:
        """Text of the instruction at byte offset `pc`."""
        place = int(np.searchsorted(self.pcs, pc, side="right")) - 1
        return self.texts.tobytes().decode().splitlines()[max(place, 0)]

    def executed_kinds(self, visits: np.ndarray) -> dict[str, np.ndarray]:
        """Wave instructions by kind, for each of several counts.

        Parameters
        ----------
        visits : (n, num_blocks) uint64 array
            Executions of each basic block.

        Returns
        -------
        dict of str to (n,) int64 array
        """
        in_block = np.zeros((visits.shape[1], len(KINDS)), np.int64)
        numbers = np.array([KINDS.index(kind) for kind in self.kinds])
        np.add.at(in_block, (self.block_of, numbers[self.mnemonic_of]), self.times)
        return dict(zip(KINDS, (visits.astype(np.int64) @ in_block).T, strict=True))

    def executed(self, visits: np.ndarray) -> dict[str, int]:
        """Wave instructions by mnemonic.

        Parameters
        ----------
        visits : (num_blocks,) uint64 array
            Executions of each basic block.

        Returns
        -------
        dict of str to int
        """
        totals = np.zeros(len(self.mnemonics), np.int64)
        np.add.at(totals, self.mnemonic_of, visits[self.block_of].astype(np.int64) * self.times)
        return {
            str(name): int(total)
            for name, total in zip(self.mnemonics, totals, strict=True)
            if total
        }


def check_supported(kernel: Kernel) -> None:
    """Refuse a kernel that needs what no instruction shows.

    Raises
    ------
    UnsupportedKernel
        Scratch memory, or another floating-point mode than round-to-nearest with subnormals.
    """
    if kernel.scratch or kernel.resources2 & 1 or kernel.properties >> 11 & 1:
        raise UnsupportedKernel(
            f"{kernel.name} needs scratch memory ({kernel.scratch} bytes a lane), which is not "
            "emulated: make it use fewer registers until nothing spills"
        )
    if kernel.resources1 >> 12 & 0xFF != 0xF0 or not kernel.resources1 >> 23 & 1:
        raise UnsupportedKernel(
            f"{kernel.name} must use IEEE mode, round to nearest and subnormals, got "
            f"compute_pgm_rsrc1 {kernel.resources1:#x}"
        )


def _encode(
    translation: Translation, instructions: list[Instruction], runtime: native.Runtime
) -> Program:
    wave_end = runtime.wave_header + 4 * len(translation.constants)
    vectors_at = -(-wave_end // _CACHE_LINE) * _CACHE_LINE
    scalars_at = runtime.wave_header - 4 * SCALAR_REGISTERS
    vectors = np.array(sorted(translation.vectors))

    operations = np.zeros(len(translation.operations), native.OPERATION)
    codes = np.zeros((len(operations), 6), np.int64)
    for i, operation in enumerate(translation.operations):
        codes[i, : len(operation.dst)] = operation.dst
        codes[i, 2 : 2 + len(operation.src)] = operation.src
        row = operations[i]
        row["run"] = operation.handler
        row["pc"] = operation.pc
        row["immediate"] = operation.immediate
        row["extra"] = operation.extra
        row["target"] = max(operation.branch_target, operation.lane_map) + 1
    kinds, numbers = codes & 3, codes >> 2
    vector_offsets = vectors_at + _LANE_BYTES * np.searchsorted(vectors, numbers)
    scalar_offsets = scalars_at + 4 * numbers + (kinds == SPREAD)
    offsets = np.where(kinds == VECTOR, vector_offsets, scalar_offsets)
    offsets[codes == 0] = 0
    operations["dst"], operations["src"] = offsets[:, :2], offsets[:, 2:]

    lane_maps = np.zeros(len(translation.lane_maps), native.LANE_MAP)
    for row, lane_map in zip(lane_maps, translation.lane_maps, strict=True):
        row["source"] = lane_map.source
        row["writable"], row["zero_fill"] = lane_map.writable, lane_map.zero_fill

    mnemonics = sorted({name for block in translation.blocks for name in block})
    places = {name: place for place, name in enumerate(mnemonics)}
    table = [
        (number, places[name], times)
        for number, block in enumerate(translation.blocks)
        for name, times in block.items()
    ]
    block_of, mnemonic_of, times = np.array(table, np.int64).reshape(-1, 3).T
    return Program(
        operations=operations,
        constants=np.array(translation.constants, np.uint32),
        lane_maps=lane_maps,
        layout=np.array([len(vectors), vectors_at], np.int64),
        block_of=block_of,
        mnemonic_of=mnemonic_of,
        times=times,
        mnemonics=np.array(mnemonics),
        kinds=np.array([_kind(name, runtime) for name in mnemonics]),
        pcs=np.array([instruction.pc for instruction in instructions], np.int64),
        texts=np.frombuffer("\n".join(i.text for i in instructions).encode(), np.uint8),
    )


def _kind(mnemonic: str, runtime: native.Runtime) -> str:
    """What an instruction counts as; ``other`` where it has no effect in the emulator."""
    handler = runtime.handlers.get(mnemonic.replace("v_cmpx_", "v_cmp_", 1))
    return handler.kind if handler else "other"


def prepare(
    code_object: CodeObject, kernel: Kernel, runtime: native.Runtime, folder: Path
) -> Program:
    """The translated kernel, from the cache where it is there.

    Parameters
    ----------
    code_object : CodeObject
    kernel : Kernel
    runtime : native.Runtime
    folder : Path
        Cache folder.

    Returns
    -------
    Program

    Raises
    ------
    UnsupportedKernel, UnsupportedInstruction
        The kernel needs what the emulator does not have.
    ToolNotFound
        It is not in the cache and there is no disassembler.
    """
    check_supported(kernel)
    parts = (native.source_digest().encode(), code_object.target.encode(), kernel.name.encode())
    key = hashlib.sha256(b"\0".join((*parts, code_object.code(kernel)))).hexdigest()[:32]
    path = folder / f"program-{key}.npz"
    kept = _kept(path)
    if kept is not None:
        return kept
    instructions = disassemble(code_object, kernel)
    translation = translate(kernel.name, instructions, runtime.handlers)
    program = _encode(translation, instructions, runtime)
    _store(program, path)
    return program


def _kept(path: Path) -> Program | None:
    """What the cache holds; a file that was damaged there counts as none, and is made anew."""
    try:
        with path.open("rb") as file, np.load(file) as stored:
            return Program(**{name: stored[name] for name in stored.files})
    except (OSError, EOFError, ValueError, TypeError, KeyError, zipfile.BadZipFile):
        return None


def _store(program: Program, path: Path) -> None:
    content = io.BytesIO()
    np.savez(content, **{entry.name: getattr(program, entry.name) for entry in fields(program)})
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content.getbuffer())
    os.replace(file.name, path)


class BoundProgram:
    """A program with the addresses of this process.

    Attributes
    ----------
    program : Program
    operations : (num_operations,) `native.OPERATION` array
        Ready to run.
    num_vectors, vectors_at, wave_bytes : int
        Vector registers of a wave, where they begin in it, and its bytes.
    num_blocks : int
        Basic blocks.
    kinds : dict of str to str
        What each mnemonic counts as.
    """

    def __init__(self, program: Program, runtime: native.Runtime, code_address: int) -> None:
        self.program = program
        self.operations = aligned_empty(program.operations.nbytes).view(native.OPERATION)
        self.operations[:] = program.operations
        handlers = program.operations["run"]
        targets = program.operations["target"]
        self.operations["run"] = runtime.addresses[handlers]
        numbers = [runtime.handlers[name].number for name in _LANE_MOVES]
        moves = np.isin(handlers, numbers)
        begins = np.where(moves, program.lane_maps.ctypes.data, self.operations.ctypes.data)
        sizes = np.where(moves, native.LANE_MAP.itemsize, native.OPERATION.itemsize)
        self.operations["target"] = np.where(targets, begins + (targets - 1) * sizes, 0)
        here = handlers == runtime.handlers["s_getpc_b64"].number
        following = code_address + self.operations["pc"][here].astype(np.uint64) + 4
        self.operations["extra"][here] = following.view(np.uint32).reshape(-1, 2)
        self.num_vectors, self.vectors_at = map(int, program.layout)
        self.wave_bytes = self.vectors_at + _LANE_BYTES * self.num_vectors
        self.num_blocks = int(program.block_of.max()) + 1
        self.kinds = dict(zip(map(str, program.mnemonics), map(str, program.kinds), strict=True))


def aligned_empty(nbytes: int) -> np.ndarray:
    """Bytes that begin on a cache line, not initialised."""
    room = np.empty(nbytes + _CACHE_LINE, np.uint8)
    begin = -room.ctypes.data % _CACHE_LINE
    return room[begin : begin + nbytes]


def aligned_copy(content: bytes | bytearray) -> np.ndarray:
    """A copy of `content` that begins on a cache line."""
    room = aligned_empty(len(content))
    room[:] = np.frombuffer(content, np.uint8)
    return room
