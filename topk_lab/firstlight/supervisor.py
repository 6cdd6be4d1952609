"""Who sees to it that a first run ends, whatever the device does?

The parts run in a child, which may crash or hang; here its time is measured, what it did is told,
and another child goes on with the next part. Nothing here touches the device.
"""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topk_lab import results
from topk_lab.contributions import seal, unseal
from topk_lab.environment import RunInfo
from topk_lab.firstlight import page
from topk_lab.firstlight.checks import check_of, parts
from topk_lab.firstlight.report import TIME, Report
from topk_lab.firstlight.state import Fingerprint, found, record_part, run_without_device

__all__ = ["COMMAND", "Outcome", "run"]

# What runs the command line in a child; the tests' stand-in for a device puts itself in front.
COMMAND = (sys.executable, "-m", "topk_lab")

RECORD, PAGE = "record.jsonl", "firstlight.md"
# A part looks at the clock between two pieces of work; Numba may compile for one of them.
GRACE_SECONDS = 60.0
START_SECONDS = 120.0
LEAST_SECONDS = 1.0
MOST_STARTS = 12
READY = "ready"


@dataclass(frozen=True)
class Outcome:
    """What a first run left behind.

    Attributes
    ----------
    page, record : Path
    reports : dict of str to Report
        Of every part that has one.
    seconds : float
    """

    page: Path
    record: Path
    reports: dict[str, Report]
    seconds: float

    @property
    def failures(self) -> dict[str, Report]:
        """Those that say that something is wrong."""
        return {unit: report for unit, report in self.reports.items() if report.failed}


class _Lost(Exception):
    """The child ended, or had to be ended."""


class _Child:
    """A worker, its answers in a queue, and the last lines that it wrote to standard error."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _read_errors(self) -> None:
        for line in self.process.stderr:
            if line.strip():
                self._errors = [*self._errors, line.strip()][-20:]

    def ask(self, **order: Any) -> None:
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise _Lost(self.last_words()) from error

    def answer(self, until: float) -> dict[str, Any]:
        """The next answer; raises _Lost where none comes in time, or none can come."""
        while True:
            try:
                line = self._answers.get(timeout=max(until - time.monotonic(), 0.01))
            except queue.Empty:
                raise _Lost("it had not ended when its time was up, and was ended") from None
            if line is None:
                raise _Lost(self.last_words())
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict) and "event" in answer:
                    return answer
            # Libraries print what they like.

    def last_words(self) -> str:
        """How the process ended, and the last that it said."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        code = self.process.returncode
        if code is None:
            how = "the process closed its output"
        elif code < 0:
            how = f"the process was ended by {signal.Signals(-code).name}"
        else:
            how = f"the process ended with {code}"
        self._readers[1].join(timeout=2)
        said = next(
            (line for line in self._errors if "fault" in line.lower()), (self._errors or [""])[-1]
        )
        return f"{how}: {said}" if said else how

    def end(self) -> bool:
        """End it; whether it is gone."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                return False
        for reader, stream in zip(
            self._readers, (self.process.stdout, self.process.stderr), strict=True
        ):
            reader.join(timeout=2)
            stream.close()
        return True


class _Run:
    """One run: what is known so far, and the child that finds out more."""

    def __init__(
        self,
        target: str,
        folder: Path,
        minutes: float,
        quick: bool,
        only: Sequence[str],
        fresh: bool,
        grace: float,
        say: Callable[[str], None],
    ) -> None:
        self.target, self.folder, self.quick, self.say = target, folder, quick, say
        self.record = folder / RECORD
        self.begin = time.monotonic()
        self.seconds, self.grace = 60.0 * minutes, grace
        self.only, self.fresh = only, fresh
        self.units = _chosen(only)
        self.reports: dict[str, Report] = {}
        self.child: _Child | None = None
        self.run_info: RunInfo | None = None
        self.recorded_as = target
        self.starts = 0
        self.stuck = False

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def _tell(self, text: str) -> None:
        self.say(f"[{self.elapsed:4.0f} of {self.seconds:.0f} s] {text}")

    def start(self) -> None:
        """Start a child; raises _Lost where it does not come to be ready."""
        self.starts += 1
        options = ["--target", self.target, "--record", str(self.record)]
        options += ["--quick"] if self.quick else []
        self.child = _Child([*COMMAND, "firstlight-worker", *options])
        hello = self.child.answer(time.monotonic() + min(START_SECONDS, self.seconds + self.grace))
        if hello["event"] == "unusable":
            self._stop()
            raise _Unusable(Report(**hello["report"]))
        self.run_info = RunInfo(**hello["run"])
        self.recorded_as = hello["target"]
        if self.starts == 1:
            self._take_up(Fingerprint(**hello["fingerprint"]))
            if hello["emulated"]:
                self._tell(f"a stand-in answers for the device: {self.recorded_as}, emulated")

    def _take_up(self, now: Fingerprint) -> None:
        """Go on where the record ends, or put it aside."""
        if not self.record.exists():
            self._tell(f"begins on {now.device}")
            return
        try:
            before, on = found(self.record)
        except (results.RecordError, KeyError) as error:
            before, on = {}, None
            why = [f"it can't be read: {' '.join(str(error).split())[:120]}"]
        else:
            why = on.changed(now) if on else ["it holds no check"]
        if self.fresh:
            why = ["--fresh was given"]
        if why and set(before) <= {READY} and not self.fresh:
            self.record.unlink()  # the device could not be used then
            self._tell(f"begins on {now.device}")
            return
        if why:
            aside = _free(self.folder)
            self.record.rename(aside)
            self._tell(f"starts anew: {'; '.join(why)}; the record of before is now {aside.name}")
            return
        unseal(self.record)
        self.reports = {unit: report for unit, report in before.items() if unit in parts()}
        if self.only:
            return
        kept = [unit for unit in self.units if not self._due(unit)]
        self._tell(f"goes on with {self.record.name}: {len(kept)} of {len(self.units)} parts done")

    def _due(self, unit: str) -> bool:
        report = self.reports.get(unit)
        return report is None or report.left_over or bool(self.only) or unit == READY

    def _stop(self) -> None:
        if self.child is not None:
            self.stuck = not self.child.end() or self.stuck
            self.child = None

    def _share(self, unit: str, left: Sequence[str]) -> float:
        """Seconds that a part may take of what is left."""
        room = max(self.seconds - self.elapsed, 0.0)
        return room * _share(unit) / sum(map(_share, left))

    def _keep(self, unit: str, report: Report) -> None:
        """Record what the child could not."""
        self.reports[unit] = report
        info = self.run_info or run_without_device()
        record_part(results.Recorder(self.record, info), self.recorded_as, unit, report)

    def part(self, unit: str, seconds: float) -> Report:
        """Run one part in the child."""
        if self.child is None:
            self.start()
        self.child.ask(unit=unit, seconds=seconds, resume=not self.only)
        until = time.monotonic() + seconds + self.grace
        while True:
            answer = self.child.answer(until)
            if answer["event"] == "say":
                self._tell(f"  {unit}: {answer['text']}")
            elif answer["event"] == "end":
                if answer["poisoned"]:
                    self._stop()
                return Report(**answer["report"])

    def one(self, unit: str, seconds: float) -> Report:
        """Run one part, whatever becomes of the child."""
        try:
            return self.part(unit, seconds)
        except _Lost as lost:
            self._stop()
            report = Report("error", f"{lost}", _cause_of_loss(self.target, str(lost)))
            self._keep(unit, report)
            return report

    def all(self) -> None:
        """Run every part that is due."""
        try:
            self.start()
        except _Unusable as refused:
            self._refused(refused.report)
            return
        except _Lost as lost:
            self._stop()
            self._refused(Report("error", str(lost), _cause_of_loss(self.target, str(lost))))
            return
        self._go_through([unit for unit in self.units if self._due(unit)])
        # What one check left of its share is for those that came before it.
        short = [unit for unit in self.units if self._was_short(unit)]
        if short and self.seconds - self.elapsed > LEAST_SECONDS * len(short):
            self._tell(f"goes on with {len(short)} parts that time was short for")
            self._go_through(short)

    def _refused(self, report: Report) -> None:
        """Nothing can be run: say so, and leave what was found before as it is."""
        kept = self.record.exists()
        if not kept:
            self._keep(READY, report)
        self.reports = {READY: report}
        left = f"; {self.record.name} of before is left as it is" if kept else ""
        self._tell(f"{READY}: {report.line()}{left}")

    def _was_short(self, unit: str) -> bool:
        report = self.reports.get(unit)
        return report is not None and report.short > 0 and not report.failed

    def _go_through(self, due: Sequence[str]) -> None:
        for number, unit in enumerate(due):
            seconds = self._share(unit, due[number:])
            if self.stuck or self.starts > MOST_STARTS:
                why = "the child can't be ended" if self.stuck else "too many processes were lost"
                self._keep(unit, Report("skipped", why))
                continue
            if self.elapsed >= self.seconds - LEAST_SECONDS:
                if unit not in self.reports:
                    self._keep(unit, Report("skipped", TIME))
                self._tell(f"{unit}: skipped: {TIME}")
                continue
            try:
                report = self.one(unit, seconds)
            except _Unusable as refused:
                report = refused.report
                self._keep(unit, report)
            self.reports[unit] = report
            self._tell(f"{unit}: {report.line()}")


class _Unusable(Exception):
    """The device can't be used; the report says why."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.reason)
        self.report = report


@functools.cache
def _share(unit: str) -> float:
    check, part = check_of(unit)
    return check.share(part)


def _cause_of_loss(target: str, how: str) -> str:
    if "its time was up" in how:
        return "a kernel that does not end, or a runtime that waits for ever: see dmesg"
    if "SIGKILL" in how:
        return "something ended the process from outside: too little memory for it?"
    return {
        "hip": "a memory fault of a kernel: the ROCm runtime ends the process; "
        "AMD_SERIALIZE_KERNEL=3 tells whose",
        "cuda": "a crash in the driver or in a library; CUDA_LAUNCH_BLOCKING=1 tells where",
    }[target]


def _chosen(only: Sequence[str]) -> list[str]:
    every = parts()
    if not only:
        return every
    for name in only:
        if not any(unit == name or unit.startswith(f"{name}/") for unit in every):
            names = dict.fromkeys(unit.partition("/")[0] for unit in every)
            raise ValueError(
                f"--only must be one of {', '.join(names)}, or one of them/variant, got {name!r}"
            )
    return [
        unit
        for unit in every
        if any(unit == name or unit.startswith(f"{name}/") for name in (READY, *only))
    ]


def _free(folder: Path) -> Path:
    """A name for a record that is put aside."""
    number = 1
    while (aside := folder / f"record-before-{number}.jsonl").exists():
        number += 1
    return aside


def run(
    target: str,
    folder: Path,
    *,
    minutes: float = 10.0,
    quick: bool = False,
    only: Sequence[str] = (),
    fresh: bool = False,
    grace: float = GRACE_SECONDS,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Try everything that the package claims of a device.

    Parameters
    ----------
    target : {"hip", "cuda"}
    folder : Path
        Takes the record and the page; a record that is there is gone on with, unless the package
        or the device changed.
    minutes : float, default 10
        What does not fit into them is left out, and said to be.
    quick : bool, default False
        Run little of each list.
    only : sequence of str, optional
        Checks, or parts of them, to run alone, again if need be.
    fresh : bool, default False
        Put a record that is there aside.
    grace : float, default 60
        Seconds that a part may take beyond its share before it is ended.
    say : callable, default print
        Takes a line on every part.

    Returns
    -------
    Outcome

    Raises
    ------
    ValueError
        No such target or check, or no time.
    """
    if target not in ("hip", "cuda"):
        raise ValueError(f"target must be one of hip, cuda, got {target!r}")
    if not minutes > 0:
        raise ValueError(f"minutes must be above 0, got {minutes}")
    folder.mkdir(parents=True, exist_ok=True)
    one = _Run(target, folder, minutes, quick, only, fresh, grace, say)
    try:
        one.all()
    finally:
        one._stop()
        if one.record.exists():
            results.compact(one.record)
            seal(one.record)
            text = page.build(one.record, target)
            (folder / PAGE).write_text(text, encoding="utf-8")
    return Outcome(folder / PAGE, one.record, one.reports, one.elapsed)
