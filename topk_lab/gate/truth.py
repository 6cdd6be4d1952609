"""What do the decision tables choose on both sides of each of their bounds?"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from topk_lab import schedules
from topk_lab.contract.words import check_word
from topk_lab.gate.rules import (
    AITER_MAX_LEN,
    GATED_ARCH,
    LIVE_LENGTH_LIMITS,
    NATIVE_MAX_ROWS,
    PHASES,
    POLICIES,
    decide,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["AXES", "truth_table"]

ANY = "any"

# Both sides of every bound, by policy; what no policy names is the same for all.
_AXES = {
    "compress_ratio": (1, 2),
    "arch": ("gfx942", GATED_ARCH),
    "aiter": (False, True),
}
_POLICY_AXES: dict[str, dict[str, tuple[Any, ...]]] = {
    "merged": {
        "k": (511, 512, 513),
        "num_rows": (
            *(0, 1),
            *(NATIVE_MAX_ROWS, NATIVE_MAX_ROWS + 1),
            *(schedules.K512_MAX_ROWS, schedules.K512_MAX_ROWS + 1),
        ),
        "num_cols": (None, schedules.K512_MAX_COLUMNS, schedules.K512_MAX_COLUMNS + 1),
        "max_len": (AITER_MAX_LEN, AITER_MAX_LEN + 1),
        "full_graph": (False,),
    },
    "live_length": {
        "k": (512,),
        "num_rows": tuple(n for rows, _ in LIVE_LENGTH_LIMITS for n in (rows, rows + 1)),
        "num_cols": (None,),
        "max_len": tuple(n for _, limit in LIVE_LENGTH_LIMITS for n in (limit, limit + 1)),
        "full_graph": (False, True),
    },
}
AXES = (
    *("phase", "compress_ratio", "arch", "full_graph"),
    *("k", "num_rows", "num_cols", "max_len", "aiter"),
)


def truth_table(*policies: str, collapse: bool = False) -> pd.DataFrame:
    """What decision tables choose, on both sides of every bound.

    Parameters
    ----------
    *policies : {"merged", "live_length"}
        Which tables; ``merged`` if none is named. Several share their axes, so that their answers
        can be compared line by line.
    collapse : bool, default False
        Whether each axis holds all values that lead to the same rules in one line, as text:
        ``"256, 257"``, and ``"any"`` where nothing depends on it.

    Returns
    -------
    pandas.DataFrame
        ``policy``; the axes ``phase``, ``compress_ratio``, ``arch``, ``full_graph``, ``k``,
        ``num_rows``, ``num_cols`` (None where unknown), ``max_len``, ``aiter``; ``kernel`` and
        ``rule``, the number of the rule that matched. All combinations, but for prefill under a
        FULL graph, which nobody asks for.
    """
    import pandas as pd

    names = policies or ("merged",)
    for name in names:
        check_word("policy", name, tuple(POLICIES))
    values = {"phase": PHASES, **_AXES}
    for axis in ("k", "num_rows", "num_cols", "max_len", "full_graph"):
        known = {value for name in names for value in _POLICY_AXES[name][axis]}
        values[axis] = tuple(sorted(known, key=lambda value: -1 if value is None else value))
    lines: list[dict[str, Any]] = []
    for name in names:
        found = []
        for combination in itertools.product(*(values[axis] for axis in AXES)):
            asked = dict(zip(AXES, combination, strict=True))
            if asked["phase"] == "prefill" and asked["full_graph"]:
                continue
            decision = decide(**asked, policy=name)
            found.append(asked | {"kernel": decision.kernel, "rule": decision.rule.number})
        if collapse:
            found = _collapsed(found)
        lines += [{"policy": name} | line for line in found]
    # As objects: an unknown width would turn the others into floats.
    frame = pd.DataFrame(lines, columns=["policy", *AXES, "kernel", "rule"], dtype=object)
    return frame.astype({"rule": int})


def _collapsed(lines: list[dict[str, Any]], axes: tuple[str, ...] = AXES) -> list[dict[str, Any]]:
    """Decide axis by axis: one line for all values that lead to the same, as far as one asks."""
    if len({line["rule"] for line in lines}) == 1:
        return [{name: lines[0][name] for name in ("kernel", "rule")} | dict.fromkeys(axes, ANY)]
    axis, *rest = axes
    by_value: dict[Any, list[dict[str, Any]]] = {}
    for line in lines:
        by_value.setdefault(line[axis], []).append(line)
    alike: list[tuple[list[Any], list[dict[str, Any]]]] = []
    for value, group in by_value.items():
        found = _collapsed(group, tuple(rest))
        same = next((values for values, other in alike if other == found), None)
        if same is None:
            alike.append(([value], found))
        else:
            same.append(value)
    return [
        {axis: ANY if len(alike) == 1 else ", ".join(map(_spelled, values))} | line
        for values, found in alike
        for line in found
    ]


def _spelled(value: Any) -> str:
    return "unknown" if value is None else str(value)
