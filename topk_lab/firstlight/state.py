"""What has a first run found so far, by its record alone?

The record file is all the state that there is: a part that ended has a cell of the experiment
``firstlight``, and its run line says on which device and of which code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topk_lab import code_objects, results
from topk_lab.environment import RunInfo, without_paths
from topk_lab.firstlight.report import Report

__all__ = [
    "EXPERIMENT",
    "Fingerprint",
    "fingerprint",
    "found",
    "package_digest",
    "record_part",
    "run_without_device",
]

EXPERIMENT = "firstlight"


def package_digest() -> str:
    """One hash over the package's Python files: 16 hexadecimal digits."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Fingerprint:
    """On what a part ran: parts of another one are not gone on with.

    Attributes
    ----------
    package : str
        Version and hash of the Python files.
    kernels : str
        Hash of the kernel sources.
    device : str
        Name, architecture, runtime, driver and torch; of an emulated target its name.
    """

    package: str
    kernels: str
    device: str

    def changed(self, other: Fingerprint) -> list[str]:
        """What differs, in words: ``device was a, is b``."""
        return [
            f"{name} was {before}, is {now}"
            for name in ("package", "kernels", "device")
            if (before := getattr(self, name)) != (now := getattr(other, name))
        ]


def fingerprint(run: Mapping[str, Any], target: str, digest: str) -> Fingerprint:
    """The fingerprint of a run.

    Parameters
    ----------
    run : mapping
        Its run line.
    target : str
        As its cells have it.
    digest : str
        As `package_digest` gives it.

    Returns
    -------
    Fingerprint
    """
    environment, code = run["environment"], run["code"]
    device = environment["device"] or {"name": target, "arch": target}
    told = [device.get(name) for name in ("name", "arch", "runtime", "driver")]
    torch = environment["packages"].get("torch")
    return Fingerprint(
        f"{code['package']} {digest}",
        str(code["kernel_hash"]),
        ", ".join(str(one) for one in (*told, torch and f"torch {torch}") if one),
    )


def run_without_device() -> RunInfo:
    """The run of a machine whose device can't be used."""
    try:
        kernels = code_objects.sources()
    except RuntimeError:
        kernels = None
    return RunInfo.capture(kernel_hash=kernels)


def record_part(
    recorder: results.Recorder,
    target: str,
    unit: str,
    report: Report,
    seconds: float | None = None,
) -> None:
    """Write a part's report down as a cell.

    Parameters
    ----------
    recorder : topk_lab.results.Recorder
    target : str
        As records name what ran.
    unit : str
        As `topk_lab.firstlight.checks.parts` has it.
    report : Report
    seconds : float, optional
        How long it took: on a device alone.
    """
    counters: dict[str, Any] = {
        "done": report.done,
        "planned": report.planned,
        "package_digest": package_digest(),
    }
    for name, text in (("unit", report.unit), ("cause", report.cause)):
        if text:
            counters[name] = without_paths(text)
    for number, note in enumerate(report.notes):
        counters[f"note_{number}"] = without_paths(note)
    if seconds is not None:
        counters["seconds"] = round(seconds, 1)
    recorder.record(
        experiment=EXPERIMENT,
        target=target,
        variant=unit.partition("/")[2] or "all",
        status=report.status,
        reason=report.reason and " ".join(report.reason.split()),
        # No shape, yet numbers: a gap would make floats of the shapes beside it in a frame.
        **dict.fromkeys(("num_rows", "num_cols", "k", "next_n"), 0),
        workload_args={"check": unit},
        counters=counters,
    )


def found(path: Path) -> tuple[dict[str, Report], Fingerprint | None]:
    """What a record says of each part, and on what they ran.

    Parameters
    ----------
    path : Path
        A record file; it need not be there.

    Returns
    -------
    dict of str to Report, Fingerprint or None
        Of a part that ran twice, the later report. No fingerprint without a part.
    """
    if not path.exists():
        return {}, None
    frame = results.load(path)
    runs = results.load_runs(path)
    reports: dict[str, Report] = {}
    last = None
    for cell in frame[frame["experiment"] == EXPERIMENT].to_dict("records"):
        counters = cell["counters"]
        notes = [text for name, text in counters.items() if name.startswith("note_")]
        unit = cell["workload_args"]["check"]
        reports.pop(unit, None)
        reports[unit] = Report(
            cell["status"],
            cell["reason"],
            counters.get("cause", ""),
            int(counters["done"]),
            int(counters["planned"]),
            counters.get("unit", ""),
            notes,
        )
        last = fingerprint(runs[cell["run"]], cell["target"], counters["package_digest"])
    return reports, last
