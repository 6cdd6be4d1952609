"""From which lane does each lane read, in a cross-lane instruction?

DPP controls move data within rows of 16 lanes, or by one lane over the whole wave; ``ds_swizzle``
permutes groups of 4 or of 32.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LANES", "LaneMap", "UnknownLaneControl", "dpp", "swizzle"]

LANES = 64
_ROW = 16
_ALL = range(LANES)


class UnknownLaneControl(ValueError):
    """A lane control that has no meaning here."""


@dataclass(frozen=True)
class LaneMap:
    """A move between lanes.

    Attributes
    ----------
    source : tuple of int
        The lane that each of the 64 lanes reads; -1 for none.
    writable : int
        Bit mask of the lanes that may be written.
    zero_fill : bool
        A lane that reads none gets 0 instead of being left alone.
    """

    source: tuple[int, ...]
    writable: int = (1 << LANES) - 1
    zero_fill: bool = False


def _within_row(lane: int, column: int) -> int:
    return lane - lane % _ROW + column if 0 <= column < _ROW else -1


def _source(control: str, argument: str, lane: int) -> int:
    column = lane % _ROW
    if control == "quad_perm":
        return lane - lane % 4 + [int(i) for i in argument.strip("[]").split(",")][lane % 4]
    if control == "row_mirror":
        return lane ^ 15
    if control == "row_half_mirror":
        return lane ^ 7
    by = int(argument)
    match control:
        case "row_shl":
            return _within_row(lane, column + by)
        case "row_shr":
            return _within_row(lane, column - by)
        case "row_ror":
            return _within_row(lane, (column - by) % _ROW)
        case "row_newbcast":
            return _within_row(lane, by)
        case "row_bcast" if by == 15:
            return lane - column - 1
        case "row_bcast" if by == 31:
            return 31 if lane >= 32 else -1
        case "wave_shl":
            return lane + by if lane + by < LANES else -1
        case "wave_shr":
            return lane - by if lane >= by else -1
        case "wave_rol":
            return (lane + by) % LANES
        case "wave_ror":
            return (lane - by) % LANES
    raise UnknownLaneControl(f"{control}:{argument}")


_CONTROLS = frozenset(
    [
        "quad_perm",
        "row_mirror",
        "row_half_mirror",
        "row_shl",
        "row_shr",
        "row_ror",
        "row_bcast",
        "row_newbcast",
        "wave_shl",
        "wave_shr",
        "wave_rol",
        "wave_ror",
    ]
)


def dpp(modifiers: dict[str, str]) -> LaneMap:
    """The move that DPP modifiers ask for.

    Parameters
    ----------
    modifiers : dict of str to str
        Those of an instruction; the ones of DPP are taken out.

    Returns
    -------
    LaneMap

    Raises
    ------
    UnknownLaneControl
        There is not exactly one known control.
    """
    rows = int(modifiers.pop("row_mask", "0xf"), 0)
    banks = int(modifiers.pop("bank_mask", "0xf"), 0)
    zero_fill = modifiers.pop("bound_ctrl", None) is not None
    controls = sorted(_CONTROLS & modifiers.keys())
    if len(controls) != 1:
        raise UnknownLaneControl("DPP control")
    argument = modifiers.pop(controls[0])
    on = sum(1 << lane for lane in _ALL if rows >> lane // _ROW & banks >> lane // 4 % 4 & 1)
    source = tuple(_source(controls[0], argument, lane) for lane in _ALL)
    return LaneMap(source, on, zero_fill)


def swizzle(pattern: int) -> LaneMap:
    """The move that the offset field of ``ds_swizzle_b32`` encodes.

    Parameters
    ----------
    pattern : int
        16 bits.

    Returns
    -------
    LaneMap

    Raises
    ------
    UnknownLaneControl
        A rotation or FFT pattern.
    """
    if pattern >= 0xC000:
        raise UnknownLaneControl(f"swizzle {pattern:#x}")
    if pattern & 0x8000:
        return LaneMap(tuple(lane - lane % 4 + (pattern >> lane % 4 * 2 & 3) for lane in _ALL))
    keep, set_, flip = pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31
    return LaneMap(tuple(lane & 32 | (lane & keep | set_) ^ flip for lane in _ALL))
