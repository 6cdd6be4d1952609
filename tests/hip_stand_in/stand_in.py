"""What does the HIP driver do, without a device?

Builds the stand-in for ``libamdhip64`` (and for ``libcuda``) and answers its launches: the compiled
code objects are emulated on host memory, which plays the device's.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import struct
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from topk_lab.emulator import CodeObject, EmulationFault, Emulator, MemoryRegion, native

SOURCES = Path(__file__).parent
LIBRARIES = {"hip": "libamdhip64.so.7", "cuda": "libcuda.so.1"}
FLAGS = ("-std=gnu11", "-O1", "-shared", "-fPIC")

ILLEGAL_ADDRESS, UNKNOWN = 700, 999

_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_uint,
    ctypes.c_void_p,
)
_DESCRIBE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int),
    ctypes.POINTER(ctypes.c_int),
)


def build(platform: str) -> Path:
    """The stand-in library of a platform: one file for every process, compiled once."""
    compiler, _ = native.find_compiler(native.cache_folder())
    digest = hashlib.sha256("\0".join((compiler.name, *FLAGS)).encode())
    for source in sorted(SOURCES.glob("*.[ch]")):
        digest.update(source.read_bytes())
    library = native.cache_folder() / f"stand-in-{digest.hexdigest()[:32]}" / LIBRARIES[platform]
    if not library.exists():
        library.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            made = Path(scratch) / library.name
            units = [str(SOURCES / f"{platform}.c"), str(SOURCES / "stand_in.c")]
            subprocess.run(
                [*compiler.command, *FLAGS, *units, "-o", str(made)],
                check=True,
                env=os.environ | {"ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch},
            )
            made.replace(library)
    return library


@functools.lru_cache(maxsize=8)
def _emulator(content: bytes) -> Emulator:
    return Emulator(CodeObject.load(content))


def _content(image: int) -> bytes:
    """An ELF file in memory; its section headers come last."""
    header = ctypes.string_at(image, 64)
    (sections_at,) = struct.unpack_from("<Q", header, 40)
    size, number = struct.unpack_from("<HH", header, 58)
    return ctypes.string_at(image, sections_at + size * number)


@dataclass(frozen=True)
class Launched:
    """A launch as the driver library got it."""

    device: int
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    dynamic_lds: int
    params: bytes


@dataclass
class StandIn:
    """The library in this process, and what reached it.

    Attributes
    ----------
    emulates : bool
        False: launches are noted only.
    launches : list of Launched
    faults : list of Exception
        What the emulator raised.
    """

    platform: str = "hip"
    emulates: bool = True
    launches: list[Launched] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    _memory: dict[str, tuple[np.ndarray, bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path = build(self.platform)
        self._library = ctypes.CDLL(str(self.path))
        self._library.stand_in_stream.restype = ctypes.c_void_p
        self._library.stand_in_capture.argtypes = (ctypes.c_void_p, ctypes.c_int)
        self._library.stand_in_reset()
        self._callbacks = _LAUNCH(self._on_launch), _DESCRIBE(self._on_describe)
        self._library.stand_in_callbacks(*self._callbacks)

    def devices(self, *archs: str) -> None:
        """Make these the devices of the machine."""
        self._library.stand_in_devices(",".join(archs).encode())

    def share(self, name: str, array: np.ndarray, writable: bool = True) -> int:
        """Let kernels touch an array; its address."""
        self._memory[name] = array, writable
        return array.__array_interface__["data"][0]

    def forget(self) -> None:
        """Let kernels touch nothing that was shared before."""
        self._memory.clear()

    def stream(self, device: int) -> int:
        return self._library.stand_in_stream(device)

    def capture(self, stream: int, capturing: bool) -> None:
        self._library.stand_in_capture(stream, capturing)

    def fail(self, function: str, code: int) -> None:
        """The function's next call returns this code."""
        self._library.stand_in_fail(function.encode(), code)

    @property
    def loads(self) -> int:
        """Modules loaded."""
        return self._library.stand_in_loads()

    @property
    def overlapped(self) -> int:
        """Launches of CUDA that might overlap the one ahead of them, of all tests so far."""
        return self._library.stand_in_overlapped()

    @property
    def last_error(self) -> int:
        """What hipGetLastError would tell torch."""
        return self._library.stand_in_last_error()

    def content(self, image: int) -> bytes:
        """The code object that a loaded module is."""
        return _content(image)

    def _on_launch(self, device, image, kernel, sizes, dynamic_lds, params) -> int:
        emulator = _emulator(self.content(image))
        size = emulator.code_object.kernels[kernel.decode()].params_size
        launched = Launched(
            device,
            kernel.decode(),
            tuple(sizes[0:3]),
            tuple(sizes[3:6]),
            dynamic_lds,
            ctypes.string_at(params, size),
        )
        self.launches.append(launched)
        if not self.emulates:
            return 0
        try:
            emulator.launch(
                launched.kernel,
                launched.grid,
                launched.block,
                launched.params,
                [
                    MemoryRegion(name, array.__array_interface__["data"][0], _span(array), writable)
                    for name, (array, writable) in self._memory.items()
                ],
                dynamic_lds=dynamic_lds,
            )
        except EmulationFault as fault:
            self.faults.append(fault)
            return ILLEGAL_ADDRESS
        except Exception as error:
            self.faults.append(error)
            return UNKNOWN
        return 0

    def _on_describe(self, image, kernel, max_threads, static_lds) -> int:
        found = _emulator(self.content(image)).code_object.kernels.get(kernel.decode())
        if found is None:
            return 0
        max_threads[0], static_lds[0] = found.max_flat_workgroup_size, found.lds
        return 1


def _span(array: np.ndarray) -> int:
    if not array.size:
        return 0
    steps = zip(array.shape, array.strides, strict=True)
    return array.itemsize + sum((length - 1) * stride for length, stride in steps)
