"""What did a launch do, counted instruction by instruction?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COUNTS", "KINDS", "LaunchCount"]

KINDS = ("valu", "salu", "smem", "lds", "global", "branch", "barrier", "other")
COUNTS = ("basic", "full")
LANES = 64


@dataclass(frozen=True)
class LaunchCount:
    """Counts of one launch; those of several add up with ``+``.

    Counts, never times: which instructions waves executed, and which accesses these were.

    Attributes
    ----------
    blocks, waves : int
        Launched.
    wave_instructions : dict of str to int
        Executed by any wave, by kind: `KINDS`. ``other`` are waits, cache control and hints.
    mnemonics : dict of str to int
        The same, by mnemonic without encoding suffix.
    events : dict of str to int
        ``valu_lanes``: active lanes, summed over the VALU instructions. ``global_bytes_read``,
        ``global_bytes_written``: by vector loads and stores, active lanes.
        ``global_atomic_lanes``. ``scalar_bytes_read``. ``lds_lanes_read``, ``lds_lanes_written``:
        lanes times addresses an instruction gives. ``lds_atomic_lanes``, of which
        ``lds_atomic_returning_lanes`` want the old value.
        ``lds_atomic_serialized_lanes``: lanes of an LDS atomic that an earlier lane of the same
        instruction shares the address with.

        Only in a full count, else 0: ``global_lines_64_read``, ``global_lines_128_read``,
        ``global_lines_64_written``, ``global_lines_128_written``: distinct lines of 64 and of 128
        bytes that a wave instruction touches, summed over the instructions; atomics count as
        written. ``lds_bank_conflict_cycles``: cycles beyond those of conflict-free accesses; the
        rule is in ``topk_lab/emulator/README.md``.
    per_block : dict of str to (blocks,) int64 array, or None
        Kinds of instructions as ``valu_instructions`` and the events, for each block in the order
        of block indices (x fastest); of several launches one behind the other. None unless the
        count is full.
    """

    blocks: int = 0
    waves: int = 0
    wave_instructions: Mapping[str, int] = field(default_factory=dict)
    mnemonics: Mapping[str, int] = field(default_factory=dict, repr=False)
    events: Mapping[str, int] = field(default_factory=dict)
    per_block: Mapping[str, np.ndarray] | None = field(default=None, repr=False, compare=False)

    @property
    def total(self) -> int:
        """All wave instructions."""
        return sum(self.wave_instructions.values())

    @property
    def active_lane_share(self) -> float:
        """Mean share of the 64 lanes that are active in a VALU instruction; NaN without any."""
        instructions = self.wave_instructions.get("valu", 0)
        if not instructions:
            return float("nan")
        return self.events["valu_lanes"] / (LANES * instructions)

    def __add__(self, other: LaunchCount) -> LaunchCount:
        def merged(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
            return {name: a.get(name, 0) + b.get(name, 0) for name in (*a, *b)}

        per_block = None
        if self.per_block is not None and other.per_block is not None:
            per_block = {
                name: np.concatenate([counts, other.per_block[name]])
                for name, counts in self.per_block.items()
            }
        return LaunchCount(
            self.blocks + other.blocks,
            self.waves + other.waves,
            merged(self.wave_instructions, other.wave_instructions),
            merged(self.mnemonics, other.mnemonics),
            merged(self.events, other.events),
            per_block,
        )

    def as_dict(self) -> dict[str, int]:
        """All but the mnemonics as flat numbers, for a record's ``counters``."""
        kinds = {f"{kind}_instructions": n for kind, n in self.wave_instructions.items()}
        return {"blocks": self.blocks, "waves": self.waves, **kinds, **self.events}

    def frame(self, per_block: bool = False) -> pd.DataFrame:
        """The counts as a tidy frame.

        Parameters
        ----------
        per_block : bool, default False
            A row for each block and counter instead of one for each counter.

        Returns
        -------
        pandas.DataFrame
            Columns counter, value; with `per_block` block, counter, value. Counters are the keys
            of `as_dict`; blocks have all but ``blocks`` and ``waves``.

        Raises
        ------
        ValueError
            `per_block` of a count that is not full.
        """
        import pandas as pd

        if not per_block:
            counts = self.as_dict()
            return pd.DataFrame({"counter": list(counts), "value": list(counts.values())})
        if self.per_block is None:
            raise ValueError("per_block needs a launch with count='full', got a basic count")
        wide = pd.DataFrame({"block": np.arange(self.blocks), **self.per_block})
        return wide.melt("block", var_name="counter", value_name="value")
