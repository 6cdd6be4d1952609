"""Exact per-row top-k selection for sparse-attention decode.

HIP kernels, a Numba twin of every radix step, an emulator that runs the compiled AMD code on a CPU,
and the experiments that measure them. Importing this package imports neither torch nor Numba; names
are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "assert_exact": "contract",
    "dispatch": "gate",
    "find_violations": "contract",
    "row_ends_from": "contract",
    "topk": "ops",
    "topk_paged": "ops",
    "trace": "reference",
    "variants": "targets",
    "workspace_size": "ops",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
