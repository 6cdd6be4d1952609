"""What is a check, and what did it find?

A check runs one input on one target, holds the answer against the contract's oracle and says what
it observed: splits are counted by the slots that blocks wrote into a poisoned workspace, never by
the schedule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topk_lab import targets
from topk_lab.contract import canonical_key, find_violations

if TYPE_CHECKING:
    from topk_lab.results import Recorder

__all__ = [
    "Check",
    "Finding",
    "chosen_keys",
    "line",
    "record",
    "recorder",
    "run",
    "splits_observed",
    "violations",
]


@dataclass(frozen=True)
class Finding:
    """What a check saw.

    Attributes
    ----------
    status : {"ok", "wrong", "error"}
        ok: exact (and, where that is asked, the same as the twin).
    reason : str or None
        One line; None if ok.
    counters : dict
        Observed numbers, such as the splits of each row.
    code : str
        Hash of the code object that ran; empty for a twin.
    seconds : float
    say : str
        What is worth a word beside the verdict.
    """

    status: str
    reason: str | None
    counters: dict[str, Any] = field(default_factory=dict)
    code: str = ""
    seconds: float = 0.0
    say: str = ""


@dataclass(frozen=True)
class Check:
    """One input on one target.

    Attributes
    ----------
    experiment, id : str
        Which list, and the name in it.
    target, variant : str
        What is run where.
    num_rows, num_cols, k, next_n : int
        Shape of the call; next_n is 0 for one row end a row.
    workload : str or None
        Name of the workload, or None for a listed case.
    workload_args : dict
        Its arguments; ``case`` is the id of a listed case.
    body : callable
        Does it.
    due : {"ok", "wrong", "either"}
        What the check must find: "wrong" where an unsound policy is studied, "either" where chance
        decides what it does.
    """

    experiment: str
    id: str
    target: str
    variant: str
    num_rows: int
    num_cols: int
    k: int
    next_n: int
    workload: str | None
    workload_args: dict[str, Any]
    body: Callable[[], Finding] = field(repr=False)
    due: str = "ok"

    def holds(self, finding: Finding) -> bool:
        """Whether a finding is what was due."""
        allowed = ("ok", "wrong") if self.due == "either" else (self.due,)
        return finding.status in allowed

    def __str__(self) -> str:
        return f"{self.experiment}/{self.id}"


def run(check: Check) -> Finding:
    """Run a check.

    Parameters
    ----------
    check : Check

    Returns
    -------
    Finding
        A fault of the emulated kernel is an error that it names, not an exception.

    Raises
    ------
    topk_lab.code_objects.CodeObjectError
        The target's code object is missing or stale.
    """
    from topk_lab.emulator import EmulationFault

    begin = time.perf_counter()
    try:
        finding = check.body()
    except EmulationFault as fault:
        finding = Finding("error", str(fault))
    seconds = time.perf_counter() - begin
    return replace(finding, seconds=seconds)


def line(check: Check, finding: Finding) -> str:
    """One line on a finding: verdict, target, variant that ran, splits observed, code object.

    Parameters
    ----------
    check : Check
    finding : Finding

    Returns
    -------
    str
    """
    verdict = "exact" if finding.status == "ok" else finding.status
    if finding.status != "ok" and check.holds(finding):
        verdict = f"{verdict} (as due)"
    splits = sorted(set(finding.counters.get("splits", [])))
    parts = [f"{verdict:15} {check!s:52} {check.target:6} {check.variant:12}"]
    if splits:
        parts.append(f"splits {' '.join(map(str, splits)):10}")
    if finding.code:
        parts.append(f"code {finding.code[:8]}")
    parts.append(f"{finding.seconds:6.2f} s")
    parts += [said for said in (finding.say, finding.reason) if said]
    return "  ".join(parts)


def recorder(folder: Path, targets_used: Iterable[str]) -> Recorder:
    """A recorder for this run.

    Parameters
    ----------
    folder : Path
        Laid out as ``data``.
    targets_used : iterable of str
        Those among them that run compiled code have its compilers named in the run line, a device
        is named itself.

    Returns
    -------
    topk_lab.results.Recorder
    """
    from topk_lab import code_objects, results
    from topk_lab.environment import DEVICE_TARGETS

    used = set(targets_used)
    device = next((target for target in DEVICE_TARGETS if target in used), None)
    compiled = used & {*targets.AMD_TARGETS, "cuda"}
    if "hip" in used:
        compiled |= set(targets.AMD_TARGETS)
    compilers = {
        found.compiler
        for found in (code_objects.manifest() if compiled else [])
        if found.target in compiled
    }
    run_info = results.RunInfo.capture(
        target=device,
        kernel_hash=code_objects.sources(),
        compiler=", ".join(sorted(compilers)) or None,
    )
    return results.Recorder(folder, run_info)


def record(recorder: Recorder, check: Check, finding: Finding) -> None:
    """Write a finding down as a cell.

    Parameters
    ----------
    recorder : topk_lab.results.Recorder
    check : Check
    finding : Finding
    """
    recorder.record(
        experiment=check.experiment,
        target=check.target,
        variant=check.variant,
        status=finding.status,
        reason=finding.reason,
        num_rows=check.num_rows,
        num_cols=check.num_cols,
        k=check.k,
        next_n=check.next_n,
        workload=check.workload,
        workload_args=check.workload_args,
        counters=finding.counters,
    )


def violations(
    logits: np.ndarray, outcome: targets.Outcome, lengths: dict[str, Any], **promises: str
) -> str | None:
    """What an answer breaks of the contract, in one line; None if nothing."""
    found = find_violations(logits, outcome.indices, values=outcome.values, **lengths, **promises)
    if not found:
        return None
    return f"{len(found)} violations; {found[0]}"


def splits_observed(outcome: targets.Outcome) -> list[int]:
    """Blocks that worked on each row: slots written, or the one block that needed none."""
    return np.maximum(outcome.splits, 1).tolist()


def chosen_keys(logits: np.ndarray, starts: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Keys of the chosen logits, each row sorted, 0 for an empty slot: (num_rows, k) uint32."""
    columns = starts[:, None] + np.maximum(indices, 0)
    keys = canonical_key(np.take_along_axis(logits, columns, axis=1))
    return np.sort(np.where(indices < 0, np.uint32(0), keys), axis=1)
