"""Given a compiled kernel and its buffers, what does a launch of it do?"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from topk_lab.emulator import disassembly, native
from topk_lab.emulator.code_object import CodeObject, Kernel
from topk_lab.emulator.counts import COUNTS, KINDS, LaunchCount
from topk_lab.emulator.errors import EmulationFault, ToolNotFound
from topk_lab.emulator.program import (
    BoundProgram,
    Program,
    aligned_copy,
    aligned_empty,
    prepare,
)

__all__ = ["DEFAULT_STEP_LIMIT", "Emulator", "MemoryRegion", "toolchain_report"]

DEFAULT_STEP_LIMIT = 200_000_000  # wave instructions a block; a second or two
_LDS_LIMIT = {"gfx90a": 65536, "gfx942": 65536, "gfx950": 163840}
_LDS_READ_BANKS = {"gfx90a": 32, "gfx942": 32, "gfx950": 64}
_LANES = 64
_FAULT_KINDS = {
    1: "global out of bounds",
    2: "write to read-only buffer",
    3: "lds out of bounds",
    4: "misaligned",
    5: "unreached barrier",
    6: "step limit",
    7: "trap",
    8: "read of unwritten lds",
    9: "lds data race",
}
_GARBAGE = 0xA5


@dataclass(frozen=True)
class MemoryRegion:
    """Host memory that a kernel may touch.

    Attributes
    ----------
    name : str
        For messages.
    address : int
        Of the first byte.
    nbytes : int
        Bytes; may be 0.
    writable : bool
    """

    name: str
    address: int
    nbytes: int
    writable: bool = True

    @classmethod
    def of(cls, name: str, array: np.ndarray, writable: bool = True) -> MemoryRegion:
        """The memory of a contiguous array.

        Raises
        ------
        ValueError
            `array` is not contiguous.
        """
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} must be contiguous, got strides {array.strides}")
        return cls(name, array.ctypes.data, array.nbytes, writable)


def _three(name: str, size: int | tuple[int, ...]) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, int | np.integer) else tuple(size)
    whole = all(isinstance(n, int | np.integer) for n in sizes)
    if not whole or not 1 <= len(sizes) <= 3 or any(n < 1 for n in sizes):
        raise ValueError(f"{name} must be one to three positive sizes, got {size}")
    return (*map(int, sizes), 1, 1)[:3]


def _argument_block(
    kernel: Kernel,
    params: bytes,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    dynamic_lds: int,
) -> np.ndarray:
    """Given and hidden arguments; what no argument covers, or no launch sets, is garbage."""
    content = bytearray([_GARBAGE]) * max(kernel.kernarg_size, 8)
    content[: len(params)] = params
    threads = [g * b for g, b in zip(grid, block, strict=True)]
    values = {
        "hidden_grid_dims": 3 if threads[2] > 1 else 2 if threads[1] > 1 else 1,
        "hidden_dynamic_lds_size": dynamic_lds,
    }
    for axis, blocks, size in zip("xyz", grid, block, strict=True):
        values[f"hidden_block_count_{axis}"] = blocks
        values[f"hidden_group_size_{axis}"] = size
        values[f"hidden_remainder_{axis}"] = 0
        values[f"hidden_global_offset_{axis}"] = 0
    for argument in kernel.arguments:
        if argument.kind in values:
            value = values[argument.kind].to_bytes(argument.size, "little")
            content[argument.offset : argument.offset + argument.size] = value
    return aligned_copy(content)


def _dispatch_packet(
    grid: tuple[int, int, int], block: tuple[int, int, int], kernarg: int
) -> np.ndarray:
    """The HSA kernel dispatch packet, which kernels read sizes from."""
    threads = [g * b for g, b in zip(grid, block, strict=True)]
    packet = struct.pack("<HHHHHHIIIIIQQQQ", 0, 3, *block, 0, *threads, 0, 0, 0, kernarg, 0, 0)
    return aligned_copy(packet)


def _user_scalars(kernel: Kernel, dispatch_packet: int, kernarg: int) -> list[int]:
    """The scalar registers that a wave starts with, as the descriptor asks for them."""
    garbage = 0xA5A5A5A5A5A5A5A5
    pairs = []
    for bit, count, value in (
        (0, 2, garbage),  # scratch descriptor
        (1, 1, dispatch_packet),
        (2, 1, garbage),  # queue
        (3, 1, kernarg),
        (4, 1, garbage),  # dispatch id
        (5, 1, garbage),  # flat scratch
    ):
        pairs += [value] * count if kernel.properties >> bit & 1 else []
    words = [word for pair in pairs for word in (pair & 0xFFFFFFFF, pair >> 32)]
    wanted = kernel.resources2 >> 1 & 31
    return (words + [garbage & 0xFFFFFFFF] * 16)[:wanted]


def _default_threads() -> int:
    return int(os.environ.get("TOPK_LAB_THREADS", 0)) or len(os.sched_getaffinity(0))


class Emulator:
    """Runs the kernels of one code object on the CPU.

    Parameters
    ----------
    code_object : CodeObject
    cache_dir : path, optional
        Where compiled and translated results are kept; default: the environment variable
        ``TOPK_LAB_CACHE``, else the user's cache folder.
    threads : int, optional
        Host threads that run blocks; default: the environment variable ``TOPK_LAB_THREADS``, else
        the processors of this process.

    Notes
    -----
    Registers and LDS start as garbage. Memory is coherent: a missing fence, or data that one die
    does not see of another, does not show. Without a seed a wave runs until it waits or ends; with
    one, waves take turns in random order, change at memory operations, conflicting lanes of one
    instruction act in random order, and blocks come in random order, one at a time.

    Examples
    --------
    >>> emulator = Emulator(CodeObject.load(path))                            # doctest: +SKIP
    >>> region = MemoryRegion.of("out", out)                                  # doctest: +SKIP
    >>> params = struct.pack("<Qi", region.address, n)                        # doctest: +SKIP
    >>> emulator.launch("fill", 4, 256, params, [region]).wave_instructions   # doctest: +SKIP
    """

    def __init__(
        self,
        code_object: CodeObject,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        threads: int | None = None,
    ) -> None:
        self.code_object = code_object
        self.threads = threads or _default_threads()
        self._folder = native.cache_folder(cache_dir)
        self._programs: dict[str, BoundProgram] = {}
        self._image = aligned_copy(code_object.image)
        for place, target in code_object.relocations:
            word = np.array([self._image.ctypes.data + target], np.uint64)
            self._image[place : place + 8] = word.view(np.uint8)
        self._image_regions = [
            MemoryRegion(
                "code object data",
                self._image.ctypes.data + segment.begin,
                segment.end - segment.begin,
                segment.writable,
            )
            for segment in code_object.segments
            if not segment.executable
        ]

    @functools.cached_property
    def _runtime(self) -> native.Runtime:
        return native.load(self._folder)

    def prepare(self, kernels: Iterable[str] | None = None, jobs: int = 2) -> None:
        """Translate kernels before their first launch.

        Parameters
        ----------
        kernels : iterable of str, optional
            Default: all of the code object.
        jobs : int, default 2
            Host threads.

        Raises
        ------
        UnsupportedKernel, UnsupportedInstruction
            A kernel needs what the emulator does not have.
        """
        _ = self._runtime
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self._program, kernels or self.code_object.kernels))

    def _program(self, name: str) -> BoundProgram:
        if name not in self._programs:
            kernel = self.code_object.kernels.get(name)
            if kernel is None:
                known = ", ".join(self.code_object.kernels)
                raise ValueError(f"kernel must be one of {known}, got {name!r}")
            program = prepare(self.code_object, kernel, self._runtime, self._folder)
            address = self._image.ctypes.data + kernel.address
            self._programs[name] = BoundProgram(program, self._runtime, address)
        return self._programs[name]

    def launch(
        self,
        kernel: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        params: bytes,
        buffers: Sequence[MemoryRegion],
        *,
        dynamic_lds: int = 0,
        seed: int | None = None,
        step_limit: int | None = None,
        count: str = "basic",
        races: bool | None = None,
    ) -> LaunchCount:
        """Run a kernel to its end.

        Parameters
        ----------
        kernel : str
        grid, block : int or tuple of int
            Blocks of the grid and threads of a block; up to three axes.
        params : bytes
            The arguments that the caller gives, laid out as the kernel reads them.
        buffers : sequence of MemoryRegion
            All memory that the kernel may touch besides its arguments and constants.
        dynamic_lds : int, default 0
            Bytes of LDS behind the kernel's static ones.
        seed : int, optional
            Draw the order of waves, lanes and blocks from it.
        step_limit : int, optional
            Wave instructions that a block may execute; default: `DEFAULT_STEP_LIMIT`.
        count : {"basic", "full"}, default "basic"
            ``full`` adds lines, bank conflicts and the counts of each block.
        races : bool, optional
            Watch LDS: a word that two waves touch between barriers, one of them writing and not
            both by atomics, and a read of a word that the block has not written, are faults. Waves
            that hand data over by flags instead of barriers look like races. Default: with a seed.

        Returns
        -------
        LaunchCount

        Raises
        ------
        EmulationFault
            The kernel did what it must not. The buffers are then in an undefined state.
        ValueError
            An argument that a device would refuse.
        UnsupportedKernel, UnsupportedInstruction
            The kernel needs what the emulator does not have.
        """
        bound = self._program(kernel)
        described = self.code_object.kernels[kernel]
        grid, block = _three("grid", grid), _three("block", block)
        lds_bytes = described.lds + dynamic_lds
        self._check(described, block, params, dynamic_lds)
        if math.prod(grid) * math.prod(block) >= 2**32:
            raise ValueError(f"grid must hold fewer than 2**32 threads, got {grid} of {block}")
        if step_limit is not None and not 0 < step_limit < 2**63:
            raise ValueError(f"step_limit must be positive and below 2**63, got {step_limit}")
        if seed is not None and seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        if count not in COUNTS:
            raise ValueError(f"count must be one of {', '.join(COUNTS)}, got {count!r}")

        arguments = _argument_block(described, params, grid, block, dynamic_lds)
        packet = _dispatch_packet(grid, block, arguments.ctypes.data)
        regions = [
            *buffers,
            MemoryRegion.of("kernel arguments", arguments, writable=False),
            MemoryRegion.of("dispatch packet", packet, writable=False),
            *self._image_regions,
        ]
        num_blocks = grid[0] * grid[1] * grid[2]
        num_waves = -(-block[0] * block[1] * block[2] // _LANES)
        order = None
        if seed is not None:
            order = np.random.default_rng(seed).permutation(num_blocks).astype(np.uint64)
        block_counters = block_visits = None
        if count == "full":
            counters = len(self._runtime.counter_names)
            block_counters = np.zeros((num_blocks, counters), np.uint64)
            block_visits = np.zeros((num_blocks, bound.num_blocks), np.uint64)
        scalars = _user_scalars(described, packet.ctypes.data, arguments.ctypes.data)
        region_array = (native.Region * len(regions))(
            *((r.address, r.address + r.nbytes, r.writable) for r in regions)
        )
        shared = native.Launch(
            program=bound.operations.ctypes.data,
            constants=bound.program.constants.ctypes.data,
            regions=ctypes.addressof(region_array),
            block_order=None if order is None else order.ctypes.data,
            num_constants=len(bound.program.constants),
            num_vectors=bound.num_vectors,
            vectors_at=bound.vectors_at,
            wave_bytes=bound.wave_bytes,
            num_regions=len(regions),
            num_blocks=num_blocks,
            lds_bytes=lds_bytes,
            step_limit=DEFAULT_STEP_LIMIT if step_limit is None else step_limit,
            seed=0 if seed is None else seed % 2**63 + 1,
            grid=grid,
            block=block,
            user_scalars=tuple(scalars),
            num_user_scalars=len(scalars),
            block_id_scalars=described.resources2 >> 7 & 7,
            lds_read_banks=_LDS_READ_BANKS[self.code_object.target],
            block_counters=None if block_counters is None else block_counters.ctypes.data,
            block_visits=None if block_visits is None else block_visits.ctypes.data,
            num_basic_blocks=bound.num_blocks,
        )
        workers = 1 if seed is not None else min(self.threads, num_blocks)
        watched = races if races is not None else seed is not None
        ran = self._run(shared, bound, num_waves, workers, watched)
        faults = [worker.fault for worker in ran if worker.fault.kind]
        if faults:
            first = min(faults, key=lambda fault: fault.block)
            raise _describe(first, kernel, bound.program, grid, regions, lds_bytes)
        launched = num_blocks, num_blocks * num_waves
        return self._count(bound, ran, *launched, block_counters, block_visits)

    def _check(
        self, kernel: Kernel, block: tuple[int, int, int], params: bytes, dynamic_lds: int
    ) -> None:
        threads, most = block[0] * block[1] * block[2], kernel.max_flat_workgroup_size
        if threads > most:
            raise ValueError(
                f"block must have at most {most} threads for {kernel.name}, got {threads}"
            )
        room = _LDS_LIMIT[self.code_object.target] - kernel.lds
        if not 0 <= dynamic_lds <= room:
            raise ValueError(
                f"dynamic_lds must be 0 to {room} for {kernel.name} on "
                f"{self.code_object.target}, got {dynamic_lds}"
            )
        if len(params) != kernel.params_size:
            raise ValueError(
                f"params must have {kernel.params_size} bytes for {kernel.name}, got {len(params)}"
            )

    def _run(
        self,
        shared: native.Launch,
        bound: BoundProgram,
        num_waves: int,
        num_workers: int,
        watched: bool,
    ) -> list[_Worker]:
        workers = [
            _Worker(self._runtime, shared, bound, num_waves, watched) for _ in range(num_workers)
        ]
        if num_workers == 1:
            workers[0].run()
        else:
            with ThreadPoolExecutor(num_workers) as pool:
                list(pool.map(_Worker.run, workers))
        return workers

    def _count(
        self,
        bound: BoundProgram,
        workers: list[_Worker],
        blocks: int,
        waves: int,
        block_counters: np.ndarray | None,
        block_visits: np.ndarray | None,
    ) -> LaunchCount:
        program, per_block = bound.program, None
        if block_counters is None:
            visits = sum(worker.visits for worker in workers)
        else:
            visits = block_visits.sum(axis=0)
            kinds = program.executed_kinds(block_visits)
            per_block = {f"{kind}_instructions": numbers for kind, numbers in kinds.items()}
            by_name = zip(self._runtime.counter_names, block_counters.T, strict=True)
            per_block |= {name: numbers.astype(np.int64) for name, numbers in by_name}
        mnemonics = program.executed(visits)
        kinds = dict.fromkeys(KINDS, 0)
        for name, times in mnemonics.items():
            kinds[bound.kinds[name]] += times
        events = {
            name: sum(worker.counter(i) for worker in workers)
            for i, name in enumerate(self._runtime.counter_names)
        }
        return LaunchCount(blocks, waves, kinds, mnemonics, events, per_block)


class _Worker:
    """What one host thread owns during a launch."""

    def __init__(
        self,
        runtime: native.Runtime,
        shared: native.Launch,
        bound: BoundProgram,
        num_waves: int,
        watched: bool,
    ) -> None:
        lds_words = -(-shared.lds_bytes // 4)
        self._lds = aligned_empty(4 * lds_words)
        self._stamps = np.zeros(lds_words, np.uint32)
        self._shadow = np.zeros(lds_words if watched else 0, native.SHADOW)
        self._waves = aligned_empty(bound.wave_bytes * num_waves)
        self.visits = np.zeros(bound.num_blocks, np.uint64)
        self._runtime = runtime
        self._state = runtime.worker_type(
            launch=ctypes.addressof(shared),
            lds=self._lds.ctypes.data,
            waves=self._waves.ctypes.data,
            lds_stamps=self._stamps.ctypes.data,
            shadow=self._shadow.ctypes.data if watched else None,
            visits=self.visits.ctypes.data,
        )

    def run(self) -> None:
        """Run blocks until none is left or a worker has faulted."""
        self._runtime.run_blocks(ctypes.addressof(self._state))

    @property
    def fault(self) -> native.Fault:
        """The fault that stopped this worker; kind 0 if none did."""
        return self._state.fault

    def counter(self, number: int) -> int:
        """Events of one kind."""
        return self._state.counters[number]


def _nearest(address: int, size: int, regions: list[MemoryRegion]) -> tuple[MemoryRegion, int, str]:
    """The region nearest to an access, the distance, and both in words."""

    def outside(region: MemoryRegion) -> int:
        return max(region.address - address, address + size - region.address - region.nbytes, 0)

    region = min(regions, key=outside)
    end = region.address + region.nbytes
    if address < region.address:
        before = region.address - address
        return region, -before, f"{before} bytes before {region.name!r}"
    if address + size > end:
        after = max(address - end, 0)
        return region, after, f"{after} bytes past the end of {region.name!r}"
    offset = address - region.address
    return region, offset, f"{offset} bytes into {region.name!r}"


def _describe(
    fault: native.Fault,
    kernel: str,
    program: Program,
    grid: tuple[int, int, int],
    regions: list[MemoryRegion],
    lds_bytes: int,
) -> EmulationFault:
    kind = _FAULT_KINDS[fault.kind]
    instruction = program.text_at(fault.pc)
    number = fault.block
    block = (number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1]))
    found = EmulationFault(kind, kernel, fault.pc, instruction, block, fault.wave)
    if kind == "unreached barrier":
        found.detail = f"it waits, but {fault.waves_ended} waves of the block have ended"
    elif kind == "step limit":
        found.detail = "the block has executed as many wave instructions as it may"
    elif kind == "lds data race":
        found.lane, found.buffer = fault.lane, "LDS"
        found.address = found.distance = fault.address
        found.size, found.other_pc, found.other_wave = fault.size, fault.other_pc, fault.other_wave
        found.other_instruction = program.text_at(fault.other_pc)
        found.detail = (
            f"no barrier stands between this access of word {fault.address:#x} and the one of wave "
            f"{fault.other_wave} at pc {fault.other_pc:#x} ({found.other_instruction})"
        )
    elif kind != "trap":
        found.lane = fault.lane if fault.lane >= 0 else None
        found.address, found.size = fault.address, fault.size
        access = f"{fault.size} bytes at {fault.address:#x}"
        if instruction.startswith("ds_"):
            found.buffer = "LDS"
            found.distance = fault.address
            found.detail = f"{access} of {lds_bytes} bytes of LDS"
        else:
            region, found.distance, words = _nearest(fault.address, fault.size, regions)
            found.buffer = region.name
            found.detail = f"{access}, {words} ({region.nbytes} bytes)"
    return found


def toolchain_report() -> dict[str, str | None]:
    """Which tools the emulator found; the compiler has compiled the runtime.

    Returns
    -------
    dict of str to str or None
        ``disassembler`` and ``host compiler``: name and version, or None where none was found.
    """
    try:
        disassembler = disassembly.find().name
    except ToolNotFound:
        disassembler = None
    try:
        compiler = native.find_compiler(native.cache_folder())[0].name
    except ToolNotFound:
        compiler = None
    return {"disassembler": disassembler, "host compiler": compiler}
