"""What is said of a part of a check?"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["SHORT", "TIME", "Report", "amount"]

TIME = "time"  # why a part was left out whole
SHORT = "skipped: time"


def amount(done: int, planned: int, unit: str) -> str:
    """``3 of 5 calls``, or ``1 call`` where that is all."""
    if done != planned:
        return f"{done} of {planned} {unit}"
    return f"{done} {unit.removesuffix('s') if done == 1 else unit}"


@dataclass(frozen=True)
class Report:
    """What a part found.

    Attributes
    ----------
    status : {"ok", "wrong", "error", "skipped"}
        As records have it.
    reason : str or None
        One line; None if ok.
    cause : str
        What is likely behind a failure.
    done, planned : int
        How much of its list it ran.
    unit : str
        What is counted.
    notes : list of str
        What is worth a line beside the verdict.
    """

    status: str
    reason: str | None = None
    cause: str = ""
    done: int = 0
    planned: int = 0
    unit: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether something is wrong with the device, the runtime or the package."""
        return self.status in ("wrong", "error")

    @property
    def short(self) -> int:
        """How much of the list was left out for want of time."""
        return self.planned - self.done if self.status != "error" else 0

    @property
    def left_over(self) -> bool:
        """Whether a later run should take it up: it failed, or time was short."""
        return self.failed or self.short > 0 or self.reason == TIME

    @property
    def amount(self) -> str:
        """How much of its list it ran."""
        return amount(self.done, self.planned, self.unit)

    def line(self) -> str:
        """The verdict in one line."""
        counted = self.amount if self.unit else ""
        if self.short:
            counted += f", {self.short} {SHORT}"
        words = "holds" if self.status == "ok" else self.status
        return "; ".join(part for part in (words, counted, self.reason) if part)

    def as_dict(self) -> dict[str, Any]:
        """What `Report` takes, as JSON holds it."""
        return asdict(self)
