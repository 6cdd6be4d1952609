"""What did a launch do, counted instruction by instruction?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["KINDS", "LaunchCount"]

KINDS = ("valu", "salu", "smem", "lds", "global", "branch", "barrier", "other")


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
        ``global_bytes_read``, ``global_bytes_written``: by vector loads and stores, active lanes.
        ``global_atomic_lanes``. ``scalar_bytes_read``. ``lds_lanes_read``, ``lds_lanes_written``:
        lanes times addresses an instruction gives. ``lds_atomic_lanes``.
        ``lds_atomic_serialized_lanes``: lanes of an LDS atomic that an earlier lane of the same
        instruction shares the address with.
    """

    blocks: int = 0
    waves: int = 0
    wave_instructions: Mapping[str, int] = field(default_factory=dict)
    mnemonics: Mapping[str, int] = field(default_factory=dict, repr=False)
    events: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All wave instructions."""
        return sum(self.wave_instructions.values())

    def __add__(self, other: LaunchCount) -> LaunchCount:
        def merged(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
            return {name: a.get(name, 0) + b.get(name, 0) for name in (*a, *b)}

        return LaunchCount(
            self.blocks + other.blocks,
            self.waves + other.waves,
            merged(self.wave_instructions, other.wave_instructions),
            merged(self.mnemonics, other.mnemonics),
            merged(self.events, other.events),
        )

    def as_dict(self) -> dict[str, int]:
        """All but the mnemonics as flat numbers, for a record's ``counters``."""
        kinds = {f"{kind}_instructions": n for kind, n in self.wave_instructions.items()}
        return {"blocks": self.blocks, "waves": self.waves, **kinds, **self.events}
