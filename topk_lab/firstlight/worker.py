"""Runs parts of a first run, one after the other, in a process that may be lost.

Started by `topk_lab.firstlight.supervisor`, which writes a line of JSON for each part to its
standard input and reads what became of it from its standard output. A fault of the device may end
the process, or leave it with a device that answers nothing any more: then another takes over.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from topk_lab.bench.timing import one_line
from topk_lab.driver import DriverError
from topk_lab.firstlight.report import Report
from topk_lab.firstlight.state import fingerprint, package_digest, record_part

__all__ = ["work"]


def _memory(target: str) -> Any:
    """The device's memory; raises DriverError, with reason and fix, where it can't be used."""
    from topk_lab import driver, targets

    targets.require_device(target)
    try:
        return driver.open_memory(target)
    except DriverError:
        raise
    except (RuntimeError, ValueError, AssertionError) as error:
        raise DriverError(f"torch can't use the device: {one_line(error)}") from error


# What a code of the driver is likely to mean, where the driver's own error has no remedy.
_CAUSES = {
    200: "the code object is damaged: `make build` in a checkout, else reinstall the package",
    209: "the code object is none of this device: `make build` in a checkout, else reinstall",
    500: "the code object lacks a kernel, so it is stale or damaged: `make build` in a checkout, "
    "else reinstall the package",
}


def _failure(error: Exception) -> Report:
    if isinstance(error, DriverError):
        cause = error.fix or _CAUSES.get(error.code, "the driver refused: see its own log")
        return Report("error", " ".join(error.reason.split()), cause)
    cause = "a fault of the package: please report it"
    if "HIP" in str(error) or "CUDA" in str(error):
        cause = "the device reported it while this ran; earlier work on it may be at fault"
    return Report("error", one_line(error), cause)


def work(
    target: str,
    record: Path,
    quick: bool,
    command: tuple[str, ...],
    asked: TextIO = sys.stdin,
    answers: TextIO = sys.stdout,
) -> None:
    """Run the parts that are asked for until nothing more is.

    Parameters
    ----------
    target : {"hip", "cuda"}
    record : Path
        Record file.
    quick : bool
        Run little of each list.
    command : tuple of str
        What runs ``topk-lab`` here.
    asked, answers : text streams
        Lines of JSON: ``{"unit": ..., "seconds": ..., "resume": ...}`` comes in; what goes out has
        ``event``: ``hello`` or ``unusable`` first, then ``say`` and ``end``.
    """

    def tell(event: str, **fields: Any) -> None:
        print(json.dumps({"event": event, **fields}), file=answers, flush=True)

    try:
        memory = _memory(target)
    except Exception as error:
        tell("unusable", report=_failure(error).as_dict())
        return
    from topk_lab import verify
    from topk_lab.firstlight.checks import Context, check_of

    recorder = verify.recorder(record, [memory.target])
    context = Context(target, memory, recorder, 0.0, quick, command)
    tell(
        "hello",
        run=asdict(recorder.run),
        target=memory.target,
        emulated=context.emulated,
        fingerprint=asdict(fingerprint(asdict(recorder.run), memory.target, package_digest())),
    )
    for line in asked:
        order = json.loads(line)
        check, part = check_of(order["unit"])
        context.say = _saying(tell, order["unit"])
        begin = time.monotonic()
        context.deadline = begin + order["seconds"]
        context.resume = order["resume"]
        poisoned = False
        try:
            report = check.body(context, part)
        except Exception as error:  # whatever it is, the other checks go on
            # After a fault the device may answer nothing more to this process.
            harmless = isinstance(error, DriverError) and not error.is_fault
            report, poisoned = _failure(error), not harmless
        took = time.monotonic() - begin
        record_part(
            recorder, memory.target, order["unit"], report, None if context.emulated else took
        )
        tell("end", unit=order["unit"], report=report.as_dict(), poisoned=poisoned)


def _saying(tell: Callable[..., None], unit: str) -> Callable[[str], None]:
    return lambda text: tell("say", unit=unit, text=text)
