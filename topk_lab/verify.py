"""Is what runs on a target exact, and does it do what its twin does?

The experiments behind the exactness claims. Each is a list of checks; a check runs one input on one
target, holds the answer against the contract's oracle and says what it observed: splits are counted
by the slots that blocks wrote into a poisoned workspace, never by the schedule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topk_lab import cases, registry, schedules, targets, workloads
from topk_lab.contract import canonical_key, find_violations, live_bounds

if TYPE_CHECKING:
    from topk_lab.results import Recorder

__all__ = ["EXPERIMENTS", "Check", "Finding", "checks", "line", "record", "recorder", "run"]

PIVOT_COUNTS = (128, 129, 1024, 1025)
TRACED_WORKLOADS = (
    ("normal", {}),
    ("masked_random", {}),
    ("same_leading_bits", {}),
    ("near_equal", {}),
    ("pivot_bins", {"count": 1025}),
)

# Rows that go through every path of a variant: whole and split, longer and shorter than k.
WORKLOAD_SHAPES = {
    "vllm_k512": ((40_000, (40_000, 16_384, 16_385, 513, 512, 100)),),
    "vllm_generic": (
        (12_287, (12_287, 513, 512)),
        (12_288, (12_288, 700, 100)),
        (200_000, (200_000, 30_000, 400)),
    ),
}
NEG_INF_ROW = (300, 700)  # finite logits, then -inf
LEGACY_POLICY = "vllm_k512[fits_rule=false,final_pad=neg_flt_max]"


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
    """

    status: str
    reason: str | None
    counters: dict[str, Any] = field(default_factory=dict)
    code: str = ""
    seconds: float = 0.0


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
    due : {"ok", "wrong"}
        What the check must find: "wrong" where an unsound policy is studied.
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
    return Finding(finding.status, finding.reason, finding.counters, finding.code, seconds)


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
    if finding.status != "ok" and check.due == finding.status:
        verdict = f"{verdict} (as due)"
    splits = sorted(set(finding.counters.get("splits", [])))
    parts = [f"{verdict:15} {check!s:52} {check.target:6} {check.variant:12}"]
    if splits:
        parts.append(f"splits {' '.join(map(str, splits)):10}")
    if finding.code:
        parts.append(f"code {finding.code[:8]}")
    parts.append(f"{finding.seconds:6.2f} s")
    if finding.reason:
        parts.append(finding.reason)
    return "  ".join(parts)


def recorder(folder: Path, targets_used: Iterable[str]) -> Recorder:
    """A recorder for this run.

    Parameters
    ----------
    folder : Path
        Laid out as ``data``.
    targets_used : iterable of str
        AMD targets among them have their code objects named in the run line.

    Returns
    -------
    topk_lab.results.Recorder
    """
    from topk_lab import code_objects, results

    compilers = {
        found.compiler
        for found in (
            code_objects.manifest() if set(targets_used) & set(targets.AMD_TARGETS) else []
        )
        if found.target in targets_used
    }
    run_info = results.RunInfo.capture(
        kernel_hash=code_objects.sources(), compiler=", ".join(sorted(compilers)) or None
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


def checks(experiment: str, variant: str, target: str, seed: int | None = None) -> list[Check]:
    """The checks of an experiment for a variant on a target.

    Parameters
    ----------
    experiment : str
        Key of `EXPERIMENTS`; dashes are read as underscores.
    variant : str
        A variant that runs there; policy fields in brackets allowed.
    target : str
        One of `topk_lab.targets.TARGETS`.
    seed : int, optional
        Emulator only: waves and blocks in an order drawn from it.

    Returns
    -------
    list of Check
        Empty where the experiment asks nothing of the variant or the target.

    Raises
    ------
    ValueError
        Unknown experiment, variant or target, or a variant that does not run there.
    """
    name = experiment.replace("-", "_")
    if name not in EXPERIMENTS:
        raise ValueError(f"cases must be one of {', '.join(EXPERIMENTS)}, got {experiment!r}")
    info = registry.resolve(variant)
    if target not in info.targets:
        raise ValueError(
            f"target must be one of {', '.join(info.targets)} for {info.name}, got {target!r}"
        )
    if info.name in schedules.POLICIES:
        parsed = schedules.parse_variant(variant)
        parsed.refuse_unsound(study=False)
        variant = str(parsed)
    found = list(EXPERIMENTS[name](variant, target, seed))
    if seed is None:
        return found
    return [
        replace(check, workload_args=check.workload_args | {"wave_seed": seed}) for check in found
    ]


def _violations(
    logits: np.ndarray, outcome: targets.Outcome, lengths: dict[str, Any]
) -> str | None:
    found = find_violations(logits, outcome.indices, values=outcome.values, **lengths)
    if not found:
        return None
    return f"{len(found)} violations; {found[0]}"


def _splits_observed(outcome: targets.Outcome) -> list[int]:
    """Blocks that worked on each row: slots written, or the one block that needed none."""
    return np.maximum(outcome.splits, 1).tolist()


def _case_body(
    case: cases.Case,
    variant: str,
    target: str,
    seed: int | None,
    plans_seen: set,
) -> Finding:
    given = case.build()
    logits = given.logits
    if case.list_name.endswith("-replay"):
        # A captured graph reads one buffer: whatever it holds, its strides are the same.
        logits = np.ascontiguousarray(logits)
    lengths = {"seq_lens": given.seq_lens, "next_n": case.next_n}
    outcome = targets.run(target, variant, logits, case.k, values=True, seed=seed, **lengths)
    splits = _splits_observed(outcome)
    counters: dict[str, Any] = {"splits": splits}
    if outcome.plan is not None:
        plans_seen.add(outcome.plan)
        counters["plans"] = len(plans_seen)
    reason = _violations(logits, outcome, lengths)
    if reason is None and variant == case.variant and tuple(splits) != case.splits:
        row = next(row for row, due in enumerate(case.splits) if splits[row] != due)
        reason = f"row {row} was cut into {splits[row]} splits, {case.splits[row]} were due"
    return Finding("wrong" if reason else "ok", reason, counters, outcome.code)


def _case_checks(list_name: str, variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """A listed case runs the variant that its gate picks, where the gated variant is asked for."""
    plans_seen: set = set()
    for case in cases.load(list_name):
        runs = case.variant if variant == "vllm_k512" else variant
        yield Check(
            experiment=list_name.replace("-", "_"),
            id=case.id,
            target=target,
            variant=runs,
            num_rows=case.num_rows,
            num_cols=case.num_cols,
            k=case.k,
            next_n=case.next_n,
            workload=None,
            workload_args={"case": case.id},
            body=partial(_case_body, case, runs, target, seed, plans_seen),
        )


def _workload_logits(
    name: str, arguments: dict[str, Any], num_cols: int, row_ends: np.ndarray
) -> np.ndarray:
    return workloads.make(
        name, len(row_ends), num_cols, seed=0, row_ends=row_ends, poison="nan", **arguments
    )


def _workload_body(
    name: str,
    arguments: dict[str, Any],
    num_cols: int,
    row_ends: np.ndarray,
    variant: str,
    target: str,
    seed: int | None,
) -> Finding:
    logits = _workload_logits(name, arguments, num_cols, row_ends)
    outcome = targets.run(target, variant, logits, 512, row_ends=row_ends, values=True, seed=seed)
    reason = _violations(logits, outcome, {"row_ends": row_ends})
    counters = {"splits": _splits_observed(outcome)}
    return Finding("wrong" if reason else "ok", reason, counters, outcome.code)


def _all_workloads() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in workloads.names():
        if name == "pivot_bins":
            yield from ((name, {"count": count}) for count in PIVOT_COUNTS)
        else:
            yield name, {}


def _label(name: str, arguments: dict[str, Any]) -> str:
    return "-".join([name, *map(str, arguments.values())])


def _shapes_of(variant: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
    name = registry.resolve(variant).name
    return WORKLOAD_SHAPES.get(name, WORKLOAD_SHAPES["vllm_k512"])


def _workload_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    for name, arguments in _all_workloads():
        for num_cols, lengths in _shapes_of(variant):
            row_ends = np.array(lengths, np.int32)
            yield Check(
                experiment="workloads",
                id=f"{_label(name, arguments)}-{num_cols}",
                target=target,
                variant=variant,
                num_rows=len(lengths),
                num_cols=num_cols,
                k=512,
                next_n=0,
                workload=name,
                workload_args=arguments | {"row_ends": list(lengths), "poison": "nan"},
                body=partial(
                    _workload_body, name, arguments, num_cols, row_ends, variant, target, seed
                ),
            )


def _trace_difference(kernel: np.ndarray, twin: np.ndarray) -> str | None:
    """First place where two (num_rows, blocks, 4) TRACE_STEP arrays differ."""
    for name in kernel.dtype.names:
        differs = kernel[name] != twin[name]
        if differs.any():
            row, block, step, *bins = np.argwhere(differs)[0].tolist()
            place = f"row {row}, block {block}, step {step}" + (f", bin {bins[0]}" if bins else "")
            here = (row, block, step, *bins)
            return (
                f"{name} is {kernel[name][here]} in the kernel, "
                f"{twin[name][here]} in the twin ({place})"
            )
    return None


def _trace_body(
    name: str,
    arguments: dict[str, Any],
    num_cols: int,
    row_ends: np.ndarray,
    variant: str,
    target: str,
    seed: int | None,
) -> Finding:
    logits = _workload_logits(name, arguments, num_cols, row_ends)
    lengths = {"row_ends": row_ends}
    call = partial(targets.run, variant=variant, logits=logits, k=512, **lengths)
    traced = call(target, traced=True, seed=seed)
    plain = call(target, seed=seed)
    twin = call("numba", traced=True)
    reached = int((traced.steps["step"] >= 0).sum())
    reason = _violations(logits, traced, lengths) or _trace_difference(traced.steps, twin.steps)
    if reason is None:
        starts, _ = live_bounds(*logits.shape, **lengths)
        kept = [_chosen_keys(logits, starts, outcome.indices) for outcome in (traced, plain)]
        if not np.array_equal(*kept):
            reason = "the traced and the untraced kernel kept different logits"
    return Finding("wrong" if reason else "ok", reason, {"steps": reached}, traced.code)


def _chosen_keys(logits: np.ndarray, starts: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Keys of the chosen logits, each row sorted, 0 for an empty slot: (num_rows, k) uint32."""
    columns = starts[:, None] + np.maximum(indices, 0)
    keys = canonical_key(np.take_along_axis(logits, columns, axis=1))
    return np.sort(np.where(indices < 0, np.uint32(0), keys), axis=1)


def _trace_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    if target not in targets.AMD_TARGETS:
        return
    num_cols, lengths = _shapes_of(variant)[-1]
    row_ends = np.array(lengths, np.int32)
    for name, arguments in TRACED_WORKLOADS:
        yield Check(
            experiment="pass_by_pass",
            id=_label(name, arguments),
            target=target,
            variant=variant,
            num_rows=len(lengths),
            num_cols=num_cols,
            k=512,
            next_n=0,
            workload=name,
            workload_args=arguments | {"row_ends": list(lengths), "poison": "nan"},
            body=partial(_trace_body, name, arguments, num_cols, row_ends, variant, target, seed),
        )


def _neg_inf_row() -> np.ndarray:
    finite, masked = NEG_INF_ROW
    row = np.full((1, finite + masked), -np.inf, np.float32)
    row[0, :finite] = np.arange(finite)
    return row


def _neg_inf_body(variant: str, target: str, seed: int | None) -> Finding:
    logits = _neg_inf_row()
    outcome = targets.run(target, variant, logits, 512, study=True, seed=seed)
    wrong_slots = int((outcome.indices[0] < 0).sum())
    reason = _violations(logits, outcome, {})
    return Finding("wrong" if reason else "ok", reason, {"wrong_slots": wrong_slots}, outcome.code)


def _neg_inf_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    if variant != "vllm_k512":
        return
    finite, masked = NEG_INF_ROW
    for studied, label in ((variant, "rule"), (LEGACY_POLICY, "legacy-pads")):
        yield Check(
            experiment="neg_inf_rule",
            id=label,
            target=target,
            variant=studied,
            num_rows=1,
            num_cols=finite + masked,
            k=512,
            next_n=0,
            workload=None,
            workload_args={"case": label, "finite": finite, "masked": masked},
            body=partial(_neg_inf_body, studied, target, seed),
            due="ok" if studied == variant else "wrong",
        )


EXPERIMENTS: dict[str, Callable[[str, str, int | None], Iterator[Check]]] = {
    **{list_name.replace("-", "_"): partial(_case_checks, list_name) for list_name in cases.LISTS},
    "workloads": _workload_checks,
    "pass_by_pass": _trace_checks,
    "neg_inf_rule": _neg_inf_checks,
}
