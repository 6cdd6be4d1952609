"""Do a notebook's numbers come from this machine now, or from the committed records?

=========== =========================== ======================================
mode        times                       checks and counts
=========== =========================== ======================================
replay      committed records           committed records
live-cpu    committed records           made now: Numba and the emulator
live        made now; needs a device    made now: also on the device
auto        live with a device, else replay
=========== =========================== ======================================

Committed times are those of one device: of the one with the most, or of the one that
``TOPK_LAB_DEVICE`` names a part of, such as MI355X. What is made now is recorded as the command
line does it, into a folder that is gone afterwards, and comes back as the same table. Nothing falls
back: live without a device is refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topk_lab import results

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MODES", "checks", "profiles", "resolve", "times"]

MODES = ("auto", "live", "live-cpu", "replay")


def resolve(mode: str) -> str:
    """What a mode comes to on this machine.

    Parameters
    ----------
    mode : {"auto", "live", "live-cpu", "replay"}

    Returns
    -------
    str
        live, live-cpu or replay.

    Raises
    ------
    ValueError
        Another word, or live where torch sees no device.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if mode in ("replay", "live-cpu"):
        return mode
    import torch

    if torch.cuda.is_available():
        return "live"
    if mode == "auto":
        return "replay"
    raise ValueError(
        f"mode live must have a hip or cuda device, torch {torch.__version__} sees none; "
        "topk-lab doctor says why; replay shows committed records"
    )


@contextmanager
def _recorder(targets: Sequence[str]) -> Iterator[results.Recorder]:
    from topk_lab import verify

    with tempfile.TemporaryDirectory() as folder:
        yield verify.recorder(Path(folder), targets)


def _committed(experiment: str, *, timed: bool) -> pd.DataFrame:
    """Records of an experiment: those that hold times, or those that don't."""
    records = results.load_committed(experiment)
    found = results.latest(records[records["experiment"] == experiment])
    found = found[found["mode"].notna() == timed]
    if found.empty:
        raise ValueError(f"experiment must be one that records hold, got {experiment!r}")
    return results.of_one_device(found) if timed else found


def times(
    experiment: str, mode: str, *, axes: Mapping[str, Sequence[Any]] | None = None
) -> pd.DataFrame:
    """Times of an experiment, as `topk_lab.bench.run` takes them.

    Parameters
    ----------
    experiment : str
        Key of `topk_lab.bench.EXPERIMENTS`.
    mode : str
        As `resolve` takes it.
    axes : mapping of str to sequence, optional
        Made now: values of some axes. Committed records are given whole.

    Returns
    -------
    pandas.DataFrame
        As `topk_lab.results.load` returns it; of a cell that was run more than once the last.

    Raises
    ------
    ValueError
        As `resolve`; no such experiment.
    """
    if resolve(mode) != "live":
        return _committed(experiment, timed=True)
    from topk_lab import bench

    device = bench.TorchDevice()
    with _recorder([device.target]) as recorder:
        bench.run(experiment, recorder, device=device, axes=axes, say=lambda line: None)
        return results.load(recorder.destination)


def checks(
    experiment: str, mode: str, *, variants: Sequence[str], targets: Sequence[str]
) -> pd.DataFrame:
    """What the checks of an experiment found, as ``topk-lab verify`` runs them.

    Parameters
    ----------
    experiment : str
        Key of `topk_lab.verify.EXPERIMENTS`.
    mode : str
        As `resolve` takes it.
    variants, targets : sequence of str
        Made now: what is run where; live adds the device.

    Returns
    -------
    pandas.DataFrame
        As for `times`.

    Raises
    ------
    ValueError
        As `resolve`; no such experiment, variant or target.
    """
    resolved = resolve(mode)
    if resolved == "replay":
        return _committed(experiment, timed=False)
    from topk_lab import verify

    places = list(targets)
    if resolved == "live":
        from topk_lab import driver

        places.append(driver.platform())
    with _recorder(places) as recorder:
        for target in places:
            for variant in variants:
                for check in verify.checks(experiment, variant, target):
                    verify.record(recorder, check, verify.run(check))
        return results.load(recorder.destination)


def profiles(
    mode: str,
    *,
    variants: Sequence[str],
    target: str,
    num_rows: int,
    num_cols: int,
    k: int,
    workloads: Sequence[str] = ("normal",),
) -> pd.DataFrame:
    """Emulated counters of selections, as ``topk-lab profile`` counts them.

    Parameters
    ----------
    mode : str
        As `resolve` takes it; whatever it is, counts are the emulator's.
    variants : sequence of str
    target : {"gfx90a", "gfx942", "gfx950"}
    num_rows, num_cols, k : int
        Which of the committed profiles, or what is emulated now.
    workloads : sequence of str, default ("normal",)
        What the rows hold, with the arguments that a workload has by default.

    Returns
    -------
    pandas.DataFrame
        As for `times`.

    Raises
    ------
    ValueError
        As `resolve`; a profile that nobody recorded.
    """
    if resolve(mode) == "replay":
        found = _committed("profile", timed=False)
        shape = {"target": target, "num_rows": num_rows, "num_cols": num_cols, "k": k}
        for name, value in shape.items():
            found = found[found[name] == value]
        due = [(variant, workload) for variant in variants for workload in workloads]
        there = list(zip(found["variant"], found["workload"], strict=True))
        missing = sorted(set(due) - set(there))
        if missing:
            variant, workload = missing[0]
            raise ValueError(
                f"variants must be among the recorded profiles, got {variant!r} on {workload}"
            )
        return found[[one in due for one in there]]
    from topk_lab import profile

    with _recorder([target]) as recorder:
        for variant in variants:
            for workload in workloads:
                counted = profile.profile(
                    variant, target, num_rows, num_cols, k=k, workload=workload
                )
                profile.record(recorder, counted)
        return results.load(recorder.destination)
