"""What does a person read of a first run?

One page of Markdown, made from the record alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topk_lab import claims, results
from topk_lab.bench.candidates import READS
from topk_lab.environment import EMULATED_TARGETS
from topk_lab.firstlight.checks import CHECKS, parts
from topk_lab.firstlight.report import SHORT, TIME, Report, amount
from topk_lab.firstlight.state import EXPERIMENT, found

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["build", "repeat"]

VERIFIED = {
    "exactness": "workloads,stable_answers,page_tables",
    "fresh_lengths": "fresh_lengths",
    "replays": "graph_replays",
    "side_streams": "side_streams",
}


def repeat(unit: str, target: str) -> list[str]:
    """Command lines that run a part again.

    Parameters
    ----------
    unit : str
        As `topk_lab.firstlight.checks.parts` has it.
    target : {"hip", "cuda"}

    Returns
    -------
    list of str
        The part itself; where `topk_lab.verify` runs it too, input by input, that.
    """
    name, _, variant = unit.partition("/")
    lines = [f"topk-lab firstlight --target {target} --only {unit}"]
    if name in VERIFIED:
        cases = VERIFIED[name]
        lines.append(f"topk-lab verify --variant {variant} --target {target} --cases {cases}")
    if name == "ready":
        lines = [*lines, "topk-lab doctor"]
    return lines


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(map(_cell, line)) + " |" for line in lines]


def _verdict(reports: Sequence[Report]) -> str:
    if not reports:
        return "not run"
    for status in ("error", "wrong"):
        count = sum(report.status == status for report in reports)
        if count:
            return f"**{status}**" + (f" ({count} of {len(reports)})" if len(reports) > 1 else "")
    if all(report.status == "skipped" for report in reports):
        return f"skipped: {reports[0].reason}"
    return "holds"


def _amount(reports: Sequence[Report]) -> str:
    done, planned = (sum(getattr(one, name) for one in reports) for name in ("done", "planned"))
    unit = next((one.unit for one in reports if one.unit), "")
    return amount(done, planned, unit)


def _checks(reports: dict[str, Report]) -> list[str]:
    rows = []
    for check in CHECKS:
        units = [f"{check.name}/{part}" if part else check.name for part in check.parts()]
        mine = [reports[unit] for unit in units if unit in reports]
        ran = _amount(mine) if any(one.unit for one in mine) else ""
        rows.append((check.name, check.question, _verdict(mine), ran))
    return _table(("check", "question", "found", "ran"), rows)


def _failures(reports: dict[str, Report], target: str) -> list[str]:
    lines = []
    for unit, report in reports.items():
        if report.failed:
            lines += ["", f"### {unit}", "", f"{report.status}: {report.reason}"]
            lines += ["", f"Likely cause: {report.cause}." if report.cause else ""]
            lines += ["", "```", *repeat(unit, target), "```"]
    return ["", "## What failed", *lines] if lines else []


def _left_out(reports: dict[str, Report], emulated: bool) -> list[str]:
    lines = [
        f"- {unit}: {report.short} of {report.planned} {report.unit} {SHORT}"
        for unit, report in reports.items()
        if report.short and not report.failed
    ]
    lines += [
        f"- {unit}: skipped: {report.reason}"
        for unit, report in reports.items()
        if report.status == "skipped"
    ]
    unreached: dict[str, list[str]] = {}
    for unit in parts():
        if unit not in reports:
            name, _, part = unit.partition("/")
            unreached.setdefault(name, []).append(part)
    lines += [
        f"- {name}: not run" + (f": {', '.join(names)}" if all(names) else "")
        for name, names in unreached.items()
    ]
    if emulated:
        lines.append(
            "- a stand-in runs a few small inputs of each list, 8 replays instead of 200, and "
            "takes no times"
        )
    if any(report.short or report.reason == TIME for report in reports.values()):
        lines.append("- the same command again goes on with what was left out for want of time")
    return ["", "## What was left out", "", *lines] if lines else []


def _medians(records: pd.DataFrame, experiment: str) -> list[str]:
    timed = records[(records["experiment"] == experiment) & records["median_us"].notna()]
    if timed.empty:
        return []
    names = list(dict.fromkeys(timed["variant"]))
    reads = [name for name in names if name in READS]
    selections = [name for name in names if name not in READS]
    places = ["num_rows", "num_cols", "workload", "cache"]
    rows = []
    for place, group in timed.groupby(places, sort=True):
        medians = group.groupby("variant")["median_us"].median()
        floor = [medians.reindex(reads).min()] if reads else []
        shown = [*floor, *medians.reindex(selections)]
        rows.append((*place, *("" if one != one else f"{one:.2f}" for one in shown)))
    floor = ["read floor"] if reads else []
    table = _table(("rows", "columns", "logits", "caches", *floor, *selections), rows)
    return ["", f"### {experiment}", "", "Medians of single calls in a graph, us.", "", *table]


def _claims(records: pd.DataFrame) -> list[str]:
    judged = claims.evaluate(records)
    timed = judged[(judged["kind"] == "time") & (judged["found"] != "")]
    if timed.empty:
        return []
    rows = timed[["source", "statement", "published", "found", "verdict"]].to_numpy().tolist()
    head = ("source", "claim", "published", "found here", "verdict")
    return ["", "## Published times, and those found here", "", *_table(head, rows)]


def _environment(runs: dict[str, Any], used: set[str]) -> list[str]:
    lines = []
    for run in runs.values():
        if run["run"] not in used:
            continue
        environment, code = run["environment"], run["code"]
        device = environment["device"] or {}
        packages = ", ".join(f"{name} {v}" for name, v in environment["packages"].items())
        told = [device.get(name) for name in ("name", "arch", "runtime", "driver")]
        lines = [
            f"- device: {', '.join(str(one) for one in told if one) or 'none'}",
            f"- software: {environment['os']}, Python {environment['python']}, {packages}",
            f"- code: topk_lab {code['package']}, commit {code['git'] or 'unknown'}"
            f"{' (edited)' if code['dirty'] else ''}, kernels {code['kernel_hash']} by "
            f"{code['compiler'] or 'an unknown compiler'}",
        ]
    return ["", "## Where", "", *lines]


def _notes(reports: dict[str, Report]) -> list[str]:
    lines = [f"- {unit}: {note}" for unit, report in reports.items() for note in report.notes]
    return ["", "## Notes", "", *lines] if lines else []


def build(record: Path, target: str) -> str:
    """The page of a record.

    Parameters
    ----------
    record : Path
        As a first run leaves it.
    target : {"hip", "cuda"}

    Returns
    -------
    str
        Markdown.
    """
    reports, _ = found(record)
    order = {unit: number for number, unit in enumerate(parts())}
    reports = dict(sorted(reports.items(), key=lambda one: order.get(one[0], len(order))))
    records = results.latest(results.load(record))
    runs = results.load_runs(record)
    mine = records[records["experiment"] == EXPERIMENT]
    emulated = bool(mine["target"].isin(EMULATED_TARGETS).any())
    failed = [unit for unit, report in reports.items() if report.failed]
    missing = [unit for unit in parts() if unit not in reports]
    if failed:
        verdict = f"**{len(failed)} of {len(reports)} parts failed.**"
    elif missing:
        verdict = f"Nothing failed; {len(missing)} of {len(parts())} parts were not run."
    else:
        verdict = "Nothing failed."
    kind = "emulated: a stand-in answered, no device" if emulated else "measured"
    lines = [
        f"# First light on {target}",
        "",
        f"{verdict} Numbers on this page are {kind}.",
        *_environment(runs, set(mine["run"])),
        "",
        "## Checks",
        "",
        *_checks(reports),
        *_failures(reports, target),
        *_left_out(reports, emulated),
        *_claims(records),
    ]
    times = [
        line
        for experiment in ("reference_shapes", "latency_vs_batch", "vllm_matrix")
        for line in _medians(records, experiment)
    ]
    lines += ["", "## Times", *times] if times else []
    lines += _notes(reports)
    lines += ["", "## Send it back", ""]
    lines.append(
        "A stand-in's record is not contributed."
        if emulated
        else f"`{record.name}` beside this page holds all of it, and no host, user, path or serial "
        "number. Attach it to an issue, or run `topk-lab data add` on it in a checkout and open a "
        "pull request with what that changed (CONTRIBUTING)."
    )
    return "\n".join(lines) + "\n"
