"""How does a compiled function survive a restart, and never one of its sources?

Numba's own cache looks at the file that a function stands in, and not at those whose functions it
calls. Here the folder that compiled code lies in is named by a hash of everything that it may be
compiled from: all sources of this package that hold compiled functions or constants of theirs,
Numba's version, and Numba's switches that change code. Numba adds the CPU and the signature. A
folder is never written for anything else, so several processes may compile at once: each writes
whole files, and all of them the same.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
from numba import config, njit, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache

__all__ = ["Compiled", "cache_folder", "compiled", "source_files"]

PACKAGE = Path(__file__).resolve().parent
COMPILED_FROM = ("cpu/*.py", "reference/*.py", "contract/*.py", "keys.py", "schedules.py")
SWITCHES = ("OPT", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "LOOP_VECTORIZE", "SLP_VECTORIZE")


def source_files() -> Iterator[Path]:
    """Files that compiled code may depend on, in order."""
    for pattern in COMPILED_FROM:
        yield from sorted(PACKAGE.glob(pattern))


def _digest() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for switch in SWITCHES:
        digest.update(f"{switch}={getattr(config, switch, None)};".encode())
    for path in source_files():
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:24]


# Taken as this module is loaded, and the functions with it: files that are edited later are not
# what this process compiles.
DIGEST = _digest()


def cache_folder() -> Path:
    """Where compiled code is kept.

    Returns
    -------
    Path
        Below ``NUMBA_CACHE_DIR``, else ``TOPK_LAB_CACHE``, else the user's cache folder. The
        checkout is never written to.
    """
    root = config.CACHE_DIR or os.environ.get("TOPK_LAB_CACHE")
    if not root:
        import platformdirs

        root = platformdirs.user_cache_dir("topk_lab")
    return Path(root) / "numba" / DIGEST


class _Locator:
    """Tells Numba where a function's code is kept, and that it is never stale there."""

    def __init__(self, function: Callable[..., None]):
        self._line = function.__code__.co_firstlineno
        self._py_file = function.__code__.co_filename

    @classmethod
    def from_function(cls, function: Callable[..., None], file: str) -> _Locator:
        found = cls(function)
        found.ensure_cache_path()
        return found

    def ensure_cache_path(self) -> None:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> str:
        return DIGEST

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Implementation(CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class _Cache(FunctionCache):
    _impl_class = _Implementation


class Compiled:
    """A function that is compiled, or loaded, when it is first called; see `compiled`.

    Parameters
    ----------
    function : callable
    signature : numba signature
    keep : bool
        Whether its code is kept for other processes.
    """

    def __init__(self, function: Callable[..., None], signature: types.Type, keep: bool):
        functools.update_wrapper(self, function)
        self.signature, self.keep = signature, keep
        self._ready = None
        self._lock = threading.Lock()

    def __call__(self, *arguments: object) -> None:
        """Call it."""
        (self._ready or self.ready())(*arguments)

    def ready(self) -> Callable[..., None]:
        """The compiled function.

        Warns
        -----
        RuntimeWarning
            The cache's folder can't be used: then every process compiles anew.
        """
        with self._lock:
            if self._ready is None:
                self._ready = self._made()
            return self._ready

    def _made(self) -> Callable[..., None]:
        if not self.keep or config.DISABLE_JIT:
            return njit(self.signature, nogil=True)(self.__wrapped__)
        made = njit(nogil=True)(self.__wrapped__)
        try:
            made._cache = _Cache(self.__wrapped__)
            made.compile(self.signature)
        except OSError as error:
            warnings.warn(
                f"compiled code can't be kept in {cache_folder()} ({error}), so that every process "
                "compiles anew; set NUMBA_CACHE_DIR to a folder that can be written",
                RuntimeWarning,
                stacklevel=2,
            )
            made = njit(self.signature, nogil=True)(self.__wrapped__)
        made.disable_compile()
        return made


def compiled(signature: types.Type) -> Callable[[Callable[..., None]], Compiled]:
    """Compile a function for one signature, at its first call, or load what was compiled before.

    Parameters
    ----------
    signature : numba signature
        Of all arguments. The function holds no GIL while it runs.
    """
    return lambda function: Compiled(function, signature, keep=True)
