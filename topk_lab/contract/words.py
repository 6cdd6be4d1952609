"""Which words and bounds do the contract's arguments take, and how does an error name them?"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

NO_INDEX = -1
UNWRITTEN = -777  # what a careful caller fills `out` with, so that a slot nobody wrote shows
TIE_BREAKS = ("any", "lowest")
ORDERS = ("any", "index", "value")
INT32_MAX = 2**31 - 1
MAX_COLUMNS = INT32_MAX  # the most that an int32 index can name
GREATEST_PAGE = 2**30  # columns: the greatest power of two below it


def type_name(value: Any) -> str:
    """Name a type as an error message does."""
    module = type(value).__module__
    return (
        type(value).__qualname__ if module == "builtins" else f"{module}.{type(value).__qualname__}"
    )


def dtype_name(value: Any) -> str:
    """Name a dtype alike for tensors and ndarrays; the type, if there is none."""
    dtype = getattr(value, "dtype", None)
    return type_name(value) if dtype is None else str(dtype).removeprefix("torch.")


def is_symbolic(value: Any) -> bool:
    """Whether a number stands for one of a compiled graph, which must not be read."""
    return type(value).__module__.startswith("torch")


def positive_int(name: str, value: Any, most: int | None = None, *, least: int = 1) -> int:
    """Return value as an int of at least `least` and at most `most`, or raise."""
    if isinstance(value, np.integer):
        value = int(value)
    # A tensor has __index__ too, but reading it would wait for the device.
    if isinstance(value, bool) or not hasattr(value, "__index__") or hasattr(value, "dtype"):
        raise TypeError(f"{name} must be an int, got {value!r} ({type_name(value)})")
    if type(value) is not int and not is_symbolic(value):
        value = operator.index(value)
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most}, got {value}")
    return value


def check_word(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise unless value is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def as_array(name: str, value: Any) -> np.ndarray:
    """Return a tensor's or an ndarray's elements on the host, copied only from a device."""
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    raise TypeError(f"{name} must be a tensor or an ndarray, got {type_name(value)}")
