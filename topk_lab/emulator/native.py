"""How is the emulator's C runtime compiled for this machine, and how is it called?

Any C compiler will do: ``cc``, ``gcc``, ``clang``, or the one in the PyPI package ``ziglang``. The
shared library is compiled once and kept in the cache folder under a name that its sources, the
compiler, the flags and the processor's features determine.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from topk_lab.emulator.errors import EmulationError, ToolNotFound
from topk_lab.emulator.translation import Handler

__all__ = [
    "LANE_MAP",
    "OPERATION",
    "SHADOW",
    "Compiler",
    "Fault",
    "Launch",
    "Region",
    "Runtime",
    "build",
    "cache_folder",
    "compilers",
    "find_compiler",
    "load",
    "source_digest",
]

_SOURCES = Path(__file__).parent / "runtime"
_UNITS = ("vector.c", "scalar.c", "memory.c", "schedule.c")
_COMPILER_NAMES = ("cc", "gcc", "clang", "clang-22")
_FLAGS = (
    "-std=gnu11",
    "-O2",
    "-ftree-vectorize",
    "-fPIC",
    "-w",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
)
# Names of processor features in /proc/cpuinfo, and the flags that use them.
_FEATURE_FLAGS = {
    "avx2": "-mavx2",
    "fma": "-mfma",
    "f16c": "-mf16c",
    "bmi1": "-mbmi",
    "bmi2": "-mbmi2",
    "abm": "-mlzcnt",
    "popcnt": "-mpopcnt",
}

# struct op, as program.py fills it in.
OPERATION = np.dtype(
    [
        ("run", "<u8"),
        ("target", "<u8"),
        ("pc", "<u4"),
        ("immediate", "<i4"),
        ("dst", "<u4", (2,)),
        ("src", "<u4", (4,)),
        ("extra", "<u4", (2,)),
        ("reserved", "<u8"),
    ]
)

# struct shadow; all zero before the first block
SHADOW = np.dtype(
    [
        ("written", "<u4"),
        ("interval", "<u4"),
        ("write", "<u4"),
        ("read", "<u4", (2,)),
        ("atomic", "<u4", (2,)),
        ("reserved", "<u4"),
    ]
)

# struct lane_map
LANE_MAP = np.dtype([("source", "i1", (64,)), ("writable", "<u8"), ("zero_fill", "<u8")])


class Region(ctypes.Structure):
    """struct region"""

    _fields_ = [
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("writable", ctypes.c_uint64),
    ]


class Fault(ctypes.Structure):
    """struct fault"""

    _fields_ = [
        ("address", ctypes.c_uint64),
        ("block", ctypes.c_uint64),
        ("kind", ctypes.c_uint32),
        ("pc", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("wave", ctypes.c_uint32),
        ("lane", ctypes.c_int32),
        ("waves_ended", ctypes.c_uint32),
        ("other_pc", ctypes.c_uint32),
        ("other_wave", ctypes.c_uint32),
    ]


class Launch(ctypes.Structure):
    """struct launch"""

    _fields_ = [
        ("program", ctypes.c_void_p),
        ("constants", ctypes.c_void_p),
        ("regions", ctypes.c_void_p),
        ("block_order", ctypes.c_void_p),
        ("num_constants", ctypes.c_uint64),
        ("num_vectors", ctypes.c_uint64),
        ("vectors_at", ctypes.c_uint64),
        ("wave_bytes", ctypes.c_uint64),
        ("num_regions", ctypes.c_uint64),
        ("num_blocks", ctypes.c_uint64),
        ("lds_bytes", ctypes.c_uint64),
        ("step_limit", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("user_scalars", ctypes.c_uint32 * 16),
        ("num_user_scalars", ctypes.c_uint32),
        ("block_id_scalars", ctypes.c_uint32),
        ("lds_read_banks", ctypes.c_uint64),
        ("block_counters", ctypes.c_void_p),
        ("block_visits", ctypes.c_void_p),
        ("num_basic_blocks", ctypes.c_uint64),
        ("next_block", ctypes.c_uint64),
        ("stop", ctypes.c_uint64),
    ]


@dataclass(frozen=True)
class Compiler:
    """A C compiler: how to call it, what it says it is, and its flags here."""

    command: tuple[str, ...]
    version: str
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        """Command and version in one line."""
        return f"{' '.join(self.command)} ({self.version})"


def cache_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Where compiled and translated results are kept.

    Parameters
    ----------
    folder : path, optional
        Default: the environment variable ``TOPK_LAB_CACHE``, else the user's cache folder.

    Returns
    -------
    Path
        The folder, which exists.
    """
    chosen = folder or os.environ.get("TOPK_LAB_CACHE")
    if not chosen:
        import platformdirs

        chosen = platformdirs.user_cache_dir("topk_lab")
    path = Path(chosen)
    path.mkdir(parents=True, exist_ok=True)
    return path


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def source_digest() -> str:
    """Hash of the emulator's own sources: what translated kernels in the cache depend on."""
    return _digest([*Path(__file__).parent.glob("*.py"), *_SOURCES.iterdir()])


@functools.cache
def _feature_flags() -> tuple[str, ...]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    line = re.search(r"^flags\s*:(.*)$", text, re.M)
    features = set(line[1].split()) if line else set()
    return tuple(flag for name, flag in _FEATURE_FLAGS.items() if name in features)


def _version(command: tuple[str, ...], argument: str) -> str | None:
    try:
        done = subprocess.run([*command, argument], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout else None


def compilers() -> Iterator[Compiler]:
    """The C compilers of this machine, in the order in which they are tried.

    Yields
    ------
    Compiler
    """
    for name in _COMPILER_NAMES:
        path = shutil.which(name)
        version = _version((path,), "--version") if path else None
        if version:
            yield Compiler((path,), version, _FLAGS + _feature_flags())
    if importlib.util.find_spec("ziglang"):
        version = _version((sys.executable, "-m", "ziglang"), "version")
        if version:
            command = (sys.executable, "-m", "ziglang", "cc")
            yield Compiler(command, f"zig {version}", _FLAGS + _feature_flags())


def _compile(compiler: Compiler, library: Path) -> str | None:
    """Compile the runtime; what the compiler complains about where it fails."""
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made = Path(scratch) / "runtime.so"
        environment = os.environ | {
            "ZIG_GLOBAL_CACHE_DIR": scratch,
            "ZIG_LOCAL_CACHE_DIR": scratch,
        }

        def run(*arguments: str) -> str | None:
            command = [*compiler.command, *compiler.flags, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            return (done.stderr or done.stdout).strip() if done.returncode else None

        objects = [str(Path(scratch) / f"{unit}.o") for unit in _UNITS]
        with ThreadPoolExecutor(len(_UNITS)) as pool:
            complaints = pool.map(
                lambda unit, to: run("-c", str(_SOURCES / unit), "-o", to), _UNITS, objects
            )
        complaint = next(filter(None, complaints), None)
        complaint = complaint or run("-shared", *objects, "-o", str(made), "-lm")
        if complaint:
            return complaint
        os.replace(made, library)
    return None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from compiling the same thing at the same time."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(compiler: Compiler, folder: Path) -> Path:
    """The runtime as a shared library, compiled unless the cache has it.

    Parameters
    ----------
    compiler : Compiler
    folder : Path
        Cache folder.

    Returns
    -------
    Path

    Raises
    ------
    EmulationError
        The compiler refuses.
    """
    parts = (_digest(_SOURCES.iterdir()), *compiler.command, compiler.version, *compiler.flags)
    key = hashlib.sha256("\0".join((*parts, platform.machine())).encode()).hexdigest()[:32]
    library = folder / f"runtime-{key}.so"
    if not library.exists():
        with _locked(folder / f"runtime-{key}.lock"):
            complaint = None if library.exists() else _compile(compiler, library)
        if complaint is not None:
            raise EmulationError(f"{compiler.name} could not compile the runtime: {complaint}")
    return library


@functools.cache
def _first_working(path: str, folder: Path) -> tuple[Compiler, Path]:
    complaints = []
    for compiler in compilers():
        try:
            return compiler, build(compiler, folder)
        except EmulationError as error:
            complaints.append(str(error))
    raise ToolNotFound(
        "no working C compiler: install cc or clang, or pip install ziglang"
        + "".join(f"; {complaint}" for complaint in complaints)
    )


def find_compiler(folder: Path) -> tuple[Compiler, Path]:
    """The first compiler that compiles the runtime, and the library it made.

    Raises
    ------
    ToolNotFound
        There is none.
    """
    return _first_working(os.environ.get("PATH", ""), folder)


class Runtime:
    """The loaded runtime.

    Attributes
    ----------
    handlers : dict of str to Handler
        Its tables by name.
    addresses : (num_handlers,) uint64 array
        Functions, by the handlers' numbers.
    counter_names : tuple of str
    worker_type : ctypes.Structure
        struct worker
    wave_header : int
        Bytes of a wave in front of its constants.
    run_blocks : callable
        Runs blocks until none is left; releases the interpreter lock meanwhile.
    """

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self.handlers, addresses = self._read_tables()
        self.addresses = np.array(addresses, np.uint64)
        self.counter_names = self._read_names("counter_names")
        self.worker_type = _worker_type(len(self.counter_names))
        sizes = list((ctypes.c_uint64 * 7).in_dll(self._library, "struct_sizes"))
        expected = [
            OPERATION.itemsize,
            LANE_MAP.itemsize,
            *map(ctypes.sizeof, (Region, Launch, self.worker_type)),
            SHADOW.itemsize,
        ]
        if sizes[:-1] != expected:
            raise EmulationError(f"{library}: struct sizes are {sizes[:-1]}, expected {expected}")
        self.wave_header = sizes[-1]
        self.run_blocks = self._library.run_blocks
        self.run_blocks.argtypes = [ctypes.c_void_p]
        self.run_blocks.restype = None

    def _read_names(self, symbol: str) -> tuple[str, ...]:
        names = (ctypes.c_char_p * 64).in_dll(self._library, symbol)
        found = []
        for name in names:
            if name is None:
                break
            found.append(name.decode())
        return tuple(found)

    def _read_tables(self) -> tuple[dict[str, Handler], list[int]]:
        class Entry(ctypes.Structure):
            _fields_ = [
                ("name", ctypes.c_char_p),
                ("kind", ctypes.c_char_p),
                ("signature", ctypes.c_char_p),
                ("run", ctypes.c_void_p),
            ]

        handlers: dict[str, Handler] = {}
        addresses = []
        for table in ("vector_entries", "scalar_entries", "memory_entries"):
            entry = ctypes.addressof(Entry.in_dll(self._library, table))
            while (row := Entry.from_address(entry)).name is not None:
                left, equals, right = row.signature.decode().partition("=")
                destinations, sources = (left, right) if equals else ("", left)
                name = row.name.decode()
                handlers[name] = Handler(
                    len(addresses),
                    name,
                    row.kind.decode(),
                    tuple(destinations.split()),
                    tuple(sources.split()),
                )
                addresses.append(row.run)
                entry += ctypes.sizeof(Entry)
        return handlers, addresses


def _worker_type(num_counters: int) -> type[ctypes.Structure]:
    class Worker(ctypes.Structure):
        """struct worker"""

        _fields_ = [
            ("launch", ctypes.c_void_p),
            ("lds", ctypes.c_void_p),
            ("waves", ctypes.c_void_p),
            ("lds_stamps", ctypes.c_void_p),
            ("shadow", ctypes.c_void_p),
            ("visits", ctypes.c_void_p),
            ("counters", ctypes.c_uint64 * num_counters),
            ("fault", Fault),
            ("never_written", Fault),
            ("block", ctypes.c_uint64),
            ("steps", ctypes.c_uint64),
            ("pause_at", ctypes.c_uint64),
            ("random", ctypes.c_uint64),
            ("last_region", ctypes.c_uint64),
            ("stamp", ctypes.c_uint32),
            ("lane_flip", ctypes.c_uint32),
            ("interval", ctypes.c_uint32),
            ("first_interval", ctypes.c_uint32),
        ]

    return Worker


@functools.cache
def _loaded(library: Path) -> Runtime:
    return Runtime(library)


def load(folder: Path, compiler: Compiler | None = None) -> Runtime:
    """The runtime of this machine.

    Parameters
    ----------
    folder : Path
        Cache folder.
    compiler : Compiler, optional
        Default: the first that works.

    Returns
    -------
    Runtime

    Raises
    ------
    ToolNotFound, EmulationError
        No compiler, or the given one fails.
    """
    return _loaded(build(compiler, folder) if compiler else find_compiler(folder)[1])
