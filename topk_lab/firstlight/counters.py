"""Does a device count what the emulator counted?

One selection runs in children under ``rocprofv3``, a few counters at a time, and each counter is
held against the prediction of `topk_lab.profile`, made here by the emulator from the same logits.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topk_lab import profile, workloads
from topk_lab.emulator import EmulationError
from topk_lab.firstlight.report import Report

if TYPE_CHECKING:
    from topk_lab.firstlight.checks import Context

__all__ = ["collected", "groups", "run"]

VARIANT, NUM_ROWS, NUM_COLS, K, WORKLOAD = "vllm_k512", 4, 131_072, 512, "masked_blocks"
PROGRAM = "rocprofv3"
# A hardware block counts a few things at a time; derived metrics take counters of their own.
MOST_AT_ONCE = {"SQ": 7, "TCP": 4, "TCC": 4}
LEAST_SECONDS = 10.0


def groups(target: str) -> list[list[str]]:
    """Counters that can be collected in one run each.

    Parameters
    ----------
    target : {"gfx90a", "gfx942", "gfx950"}

    Returns
    -------
    list of list of str
    """
    of_block: dict[str, list[str]] = {}
    for counter in profile.HARDWARE_COUNTERS[target]:
        of_block.setdefault(counter.name.partition("_")[0], []).append(counter.name)
    return [
        names[first : first + MOST_AT_ONCE.get(block, 1)]
        for block, names in of_block.items()
        for first in range(0, len(names), MOST_AT_ONCE.get(block, 1))
    ]


def collected(file: Path) -> Iterator[tuple[str, str, float]]:
    """Kernel, counter and value, summed over what counted it, of a ``*counter_collection.csv``.

    Parameters
    ----------
    file : Path

    Yields
    ------
    str, str, float
        A kernel that was dispatched several times comes with the mean.

    Raises
    ------
    ValueError
        The file lacks a column.
    """
    sums: dict[tuple[str, str], dict[str, float]] = {}
    with file.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        for name in ("Dispatch_Id", "Kernel_Name", "Counter_Name", "Counter_Value"):
            if name not in (reader.fieldnames or ()):
                raise ValueError(f"{file.name} must have a column {name}")
        for row in reader:
            # Some versions name the kernel's descriptor.
            place = row["Kernel_Name"].removesuffix(".kd"), row["Counter_Name"]
            dispatches = sums.setdefault(place, {})
            value = float(row["Counter_Value"])
            dispatches[row["Dispatch_Id"]] = dispatches.get(row["Dispatch_Id"], 0.0) + value
    for (kernel, counter), dispatches in sums.items():
        yield kernel, counter, sum(dispatches.values()) / len(dispatches)


def _program() -> str | None:
    rocm = os.path.join(os.environ.get("ROCM_PATH", "/opt/rocm"), "bin")
    return shutil.which(PROGRAM) or shutil.which(PROGRAM, path=rocm)


def _collect(
    program: str, names: Sequence[str], child: Sequence[str], folder: Path, seconds: float
) -> dict[tuple[str, str], float]:
    """Counters of one run of the child, by kernel and counter."""
    command = [program, "--pmc", *names, "--output-format", "csv"]
    command += ["-d", str(folder), "-o", "firstlight", "--", *child]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise ValueError(f"{PROGRAM} exited with {done.returncode}: {said[-1]}")
    files = sorted(folder.rglob("*counter_collection.csv"))
    if not files:
        raise ValueError(f"{PROGRAM} wrote no counter_collection.csv")
    return {(kernel, name): value for file in files for kernel, name, value in collected(file)}


def run(context: Context) -> Report:
    """Collect the counters of one selection and hold them against the predictions.

    Parameters
    ----------
    context : Context

    Returns
    -------
    Report
        Skipped where rocprofv3 is not there, or the emulator can't predict here.
    """
    program = _program()
    if program is None:
        return Report("skipped", reason=f"{PROGRAM} is neither on PATH nor under ROCM_PATH")
    arch = context.memory.opened.arch
    logits = workloads.make(WORKLOAD, NUM_ROWS, NUM_COLS)
    try:
        predicted = profile.predictions(VARIANT, arch, logits, K)
    except EmulationError as error:
        return Report("skipped", reason=f"the emulator can't predict here: {error}")
    asked = groups(arch)
    counted: dict[tuple[str, str], float] = {}
    refused: list[str] = []
    done = 0
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "logits.npy"
        np.save(source, logits)
        child = [*context.command, "select", str(source), "--k", str(K), "--variant", VARIANT]
        child += ["--target", context.target, "--out", str(Path(scratch) / "indices.npy")]
        for number, names in enumerate(context.in_time(asked)):
            left = max(context.deadline - time.monotonic(), LEAST_SECONDS)
            folder = Path(scratch) / str(number)
            try:
                counted |= _collect(program, names, child, folder, left)
            except subprocess.TimeoutExpired:
                refused.append(f"{', '.join(names)}: not within {left:.0f} s")
            except (OSError, ValueError) as error:
                refused.append(f"{', '.join(names)}: {error}")
            done += 1
    return _judged(context, predicted, counted, refused, (done, len(asked)))


def _judged(
    context: Context,
    predicted: Any,
    counted: dict[tuple[str, str], float],
    refused: list[str],
    runs: tuple[int, int],
) -> Report:
    by_name = {
        counter.name: counter for counter in profile.HARDWARE_COUNTERS[context.memory.opened.arch]
    }
    table, wrong, found = [], [], {}
    for row in predicted.to_dict("records"):
        name, kernel = row["hardware_counter"], row["kernel"]
        value = counted.get((kernel, name))
        found.setdefault(f"rocprofv3_{name.lower()}", []).append(value)
        if value is None:
            continue
        agrees = by_name[name].agrees(value, row["predicted"])
        sign = "" if row["relation"] == "=" else "at most "
        due = f"{sign}{row['predicted']:.10g} (within {row['tolerance']:.0%})"
        table.append(f"{kernel} {name} {value:.10g}, predicted {due}")
        if not agrees:
            wrong.append(f"{name} of {kernel} is {value:.10g}, {due} was predicted")
    whole = {name: values for name, values in found.items() if None not in values}
    if whole and not context.emulated:
        context.recorder.record(
            experiment="profile",
            target=context.memory.target,
            variant=VARIANT,
            status="ok",
            num_rows=NUM_ROWS,
            num_cols=NUM_COLS,
            k=K,
            next_n=0,
            workload=WORKLOAD,
            workload_args=workloads.defaults(WORKLOAD),
            seed=0,
            counters=whole,
        )
    done, planned = runs
    notes = [*table, *refused]
    if not table:
        return Report("skipped", reason=f"nothing was counted: {'; '.join(refused)}")
    if wrong:
        return Report(
            "wrong",
            f"{len(wrong)} of {len(table)} counters disagree; {wrong[0]}",
            "the emulator counts otherwise than the device, which only a device can show: "
            "please send this record",
            *(done, planned, f"runs, {len(table)} counters"),
            notes,
        )
    return Report("ok", None, "", done, planned, f"runs, {len(table)} counters", notes)
