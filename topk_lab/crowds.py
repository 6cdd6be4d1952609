"""Which rows crowd into one bin, and how many of their logits are masked?

Rows are masked more and more, in three patterns, and next to them stand rows that crowd without a
single -inf. Times and counts are taken on the same list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["LENGTHS", "UNMASKED", "masked_fraction", "masks"]

LENGTHS = (16_384, 65_536, 262_144, 1_048_576)
UNMASKED = ("constant", "relu_zeros", "near_equal", "same_leading_bits")

# Share of a row that is masked: all but one block of 8 columns in so many.
FRACTIONS = {0.5: 2, 0.875: 8, 0.99: 100, 0.998: 500}


def masks(num_cols: int) -> list[tuple[str, dict[str, Any]]]:
    """Workloads of rows of a length, masked more and more, in three patterns.

    Parameters
    ----------
    num_cols : int
        Columns a row.

    Returns
    -------
    list of (str, dict)
        Workloads with their arguments. Rows without a mask, and with nothing else, stand once.

    Raises
    ------
    ValueError
        Fewer columns than one.
    """
    if num_cols < 1:
        raise ValueError(f"num_cols must be at least 1, got {num_cols}")
    found: list[tuple[str, dict[str, Any]]] = [("normal", {})]
    for fraction, blocks in FRACTIONS.items():
        finite = num_cols - int(fraction * num_cols + 0.5)
        found += [
            ("masked_random", {"fraction": fraction}),
            ("masked_prefix", {"finite": finite}),
            ("masked_blocks", {"of": blocks}),
        ]
    return [*found, ("all_neg_inf", {})]


def masked_fraction(workload: str, arguments: Mapping[str, Any], num_cols: int) -> float:
    """Share of a row's logits that a workload of `masks` makes -inf.

    Parameters
    ----------
    workload : str
    arguments : mapping
        Of the workload, as `masks` gives them.
    num_cols : int
        Columns a row.

    Returns
    -------
    float
        To within a block of 8 columns; 0 for `UNMASKED` ones.

    Raises
    ------
    ValueError
        Another workload, or arguments with which it can't be made.
    """
    if workload in ("normal", *UNMASKED):
        return 0.0
    if workload == "all_neg_inf":
        return 1.0
    if num_cols >= 1:
        if workload == "masked_random" and 0 <= arguments.get("fraction", -1) <= 1:
            return float(arguments["fraction"])
        if workload == "masked_prefix" and arguments.get("finite", -1) >= 0:
            return 1 - min(arguments["finite"], num_cols) / num_cols
        of = arguments.get("of", 0)
        if workload == "masked_blocks" and isinstance(of, int) and of >= 1:
            return 1 - 1 / of
    raise ValueError(
        f"workload must be one of those of masks, with its arguments, got {workload} "
        f"{dict(arguments)} for {num_cols} columns"
    )
