"""Which inputs is every variant run on, and which does the vLLM lineage alone have?

The sources' own case lists, every workload through every path of a variant, answers that are a
function of the row alone, and the steps of kernel and twin side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from topk_lab import cases, registry, schedules, targets, workloads
from topk_lab.contract import live_bounds
from topk_lab.verify.core import Check, Finding, chosen_keys, splits_observed, violations

__all__ = [
    "TRACED_WORKLOADS",
    "case_checks",
    "stable_checks",
    "trace_checks",
    "workload_checks",
]

PIVOT_COUNTS = (128, 129, 1024, 1025)
SPREAD_WORKLOADS = (
    ("normal", {}),
    ("masked_random", {}),
    ("same_leading_bits", {}),
    ("near_equal", {}),
    ("pivot_bins", {"count": 1025}),
)
# Those that are equal at the cutoff, in the first step or once it is passed.
TRACED_WORKLOADS = (
    *SPREAD_WORKLOADS,
    ("all_neg_inf", {}),
    ("masked_prefix", {"finite": 300}),
    ("relu_zeros", {}),
    ("beyond_fp16", {}),
    ("odd_one_out", {}),
)
# Those that fill the stash of the SGLang lineage, to its last pass, and the bin of NaN.
STASH_WORKLOADS = (*SPREAD_WORKLOADS, ("uniform", {}), ("constant", {}), ("nan", {}))
# Those that end the passes of the AITER lineage early, late and among zeros of either sign.
DIGIT_WORKLOADS = (*STASH_WORKLOADS, ("ascending", {}), ("all_neg_inf", {}), ("signed_zeros", {}))
# Those that fill the list of a shared histogram, to its last digit, and more than fill it.
SHARED_WORKLOADS = (
    *DIGIT_WORKLOADS,
    ("tiny", {}),
    ("beyond_fp16", {}),
    *(("pivot_bins", {"count": count}) for count in (128, 129, 2048, 2049)),
)
# Those that make the delegate selection tell apart items, or all that it keeps, once or twice, and
# whose ties it compares or takes as they come.
DELEGATE_WORKLOADS = (
    *DIGIT_WORKLOADS,
    ("few_values", {}),
    ("relu_zeros", {}),
    ("odd_one_out", {}),
    ("infinities", {}),
    ("beyond_fp16", {}),
    ("mostly_negative", {}),
    ("masked_blocks", {}),
    ("masked_prefix", {"finite": 300}),
    *(("pivot_bins", {"count": count}) for count in (64, 65, 2048, 2049)),
)


class Rows(NamedTuple):
    """Rows that a variant is run on, the k that it is asked for, and the policy fields."""

    num_cols: int
    lengths: tuple[int, ...]
    k: int = 512
    fields: tuple[str, ...] = ()


def _of_member(
    member: str,
    lengths: tuple[int, ...],
    k: int = 512,
    *,
    launches: tuple[str, ...] = (),
) -> Iterator[Rows]:
    """Rows of the longest one's width, for a member of the delegate selection, launched so."""
    fits = schedules.DELEGATE_POLICIES[member].fused_delegates > 0
    for form in launches or ("fused" if fits else "fused_global", "two"):
        yield Rows(max(lengths), lengths, k, (f"member={member}", f"launches={form}"))


# Rows that go through every path of a variant: whole and split, longer and shorter than k, on both
# sides of what a stash of 40 KiB holds. What the sources published is a k of 512, or of 1024.
STASH_SHAPES = (Rows(40_000, (40_000, 16_385, 5121, 5120, 1025, 1024, 100), 1024),)
WORKLOAD_SHAPES = {
    "sglang_block512": STASH_SHAPES,
    "sglang_block1024": STASH_SHAPES,
    "vllm_k512": (Rows(40_000, (40_000, 16_384, 16_385, 513, 512, 100)),),
    "vllm_generic": (
        Rows(12_287, (12_287, 513, 512)),
        Rows(12_288, (12_288, 700, 100)),
        Rows(200_000, (200_000, 30_000, 400)),
    ),
    # The kernel takes any k. Rows that end with their buffer, between two 16-byte loads.
    "aiter_one_block": (
        Rows(3001, (2, 1, 0, 3000, 3001), 1),
        Rows(10_000, (10_000, 2049, 2048, 3), 2048),
        Rows(12_001, (12_001, 5001, 5000, 4999), 5000),
        Rows(40_000, (40_000, 16_384, 16_385, 513, 512, 100)),
    ),
    # Seven rows: nine blocks share one from 40960 columns on.
    "shared_histogram": (
        Rows(3001, (2, 1, 0, 3000, 3001), 1),
        Rows(12_001, (12_001, 4097, 4096, 4095, 3), 4096),
        Rows(45_001, (45_001, 40_960, 40_959, 2049, 513, 512, 100)),
    ),
    # Of each member rows on both sides of what a block keeps whole, and of the delegates that it
    # holds, in one launch and in two. Where the second row ends with the buffer, it begins on
    # another column of a line than the first, and has a delegate more.
    "delegate": (
        Rows(3001, (2, 1, 0, 3000, 3001), 1),
        *_of_member("k512", (131_071, 131_071, 12_286, 12_285, 2049, 513, 512, 100)),
        *_of_member("k512_long", (262_200, 262_200, 24_574, 24_573, 513, 512)),
        *_of_member("k512_long", (524_400, 24_574), launches=("fused_global", "two")),
        *_of_member("k512_pair", (65_535, 65_535, 12_286, 12_285, 513, 512, 9)),
        *_of_member("k512_crowd", (65_535, 65_535, 10_238, 10_237, 513, 512, 9)),
        # Two kernels, each of which leaves to the other what is not its own.
        Rows(131_300, (131_300, 131_073, 131_072, 9000, 512), fields=("launches=mixed",)),
        *_of_member(
            "k1024",
            (131_201, 24_574, 24_573, 2048, 1025, 1024),
            1024,
            launches=("fused", "fused_global", "two"),
        ),
        *_of_member("k2048", (131_202, 24_574, 24_573, 3073, 3072, 2049, 2048), 2048),
        *_of_member("k4096", (45_001, 32_766, 32_765, 4097, 4096), 4096),
    ),
}


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
    splits = splits_observed(outcome)
    counters: dict[str, Any] = {"splits": splits}
    if outcome.plan is not None:
        plans_seen.add(outcome.plan)
        counters["plans"] = len(plans_seen)
    reason = violations(logits, outcome, lengths)
    if reason is None and variant == case.variant and tuple(splits) != case.splits:
        row = next(row for row, due in enumerate(case.splits) if splits[row] != due)
        reason = f"row {row} was cut into {splits[row]} splits, {case.splits[row]} were due"
    return Finding("wrong" if reason else "ok", reason, counters, outcome.code)


def case_checks(list_name: str, variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """A listed case runs the variant that its gate picks, where a gated variant is asked for."""
    plans_seen: set = set()
    for case in cases.load(list_name):
        name = registry.resolve(variant).name
        refused = name in schedules.POLICIES and schedules.gate_refusal(
            name, case.num_rows, case.num_cols, case.k
        )
        runs = case.variant if variant == "vllm_k512" or refused else variant
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
    k: int,
    variant: str,
    target: str,
    seed: int | None,
) -> Finding:
    logits = _workload_logits(name, arguments, num_cols, row_ends)
    outcome = targets.run(target, variant, logits, k, row_ends=row_ends, values=True, seed=seed)
    reason = violations(logits, outcome, {"row_ends": row_ends})
    counters = {"splits": splits_observed(outcome)}
    return Finding("wrong" if reason else "ok", reason, counters, outcome.code)


def _all_workloads() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in workloads.names():
        if name == "pivot_bins":
            yield from ((name, {"count": count}) for count in PIVOT_COUNTS)
        else:
            yield name, {}


def _label(name: str, arguments: dict[str, Any], rows: Rows) -> str:
    """What tells checks of one list apart."""
    return "-".join([name, *map(str, arguments.values()), str(rows.num_cols), *rows.fields])


def _shapes_of(variant: str) -> list[tuple[Rows, str]]:
    """The rows that a variant is run on, and the variant with their policy fields."""
    name = registry.resolve(variant).name
    shapes = WORKLOAD_SHAPES.get(name, WORKLOAD_SHAPES["vllm_k512"])
    if name != "delegate":
        return [(rows, variant) for rows in shapes]
    # Fields that are asked for pick the rows that have them.
    asked = schedules.parse_variant(variant).changes
    asked = {f"{field}={value}" for field, value in asked.items() if field != "dies"}
    found = [rows for rows in shapes if asked <= {*rows.fields}]
    return [(rows, f"{name}[{','.join(rows.fields)}]" if rows.fields else name) for rows in found]


def workload_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """Every workload on rows that go through every path of the variant, their tails poisoned."""
    for name, arguments in _all_workloads():
        for rows, runs in _shapes_of(variant):
            num_cols, lengths, k, _ = rows
            row_ends = np.array(lengths, np.int32)
            yield Check(
                experiment="workloads",
                id=_label(name, arguments, rows),
                target=target,
                variant=runs,
                num_rows=len(lengths),
                num_cols=num_cols,
                k=k,
                next_n=0,
                workload=name,
                workload_args=arguments | {"row_ends": list(lengths), "poison": "nan"},
                body=partial(
                    _workload_body, name, arguments, num_cols, row_ends, k, runs, target, seed
                ),
            )


def _stable_body(
    name: str,
    arguments: dict[str, Any],
    num_cols: int,
    row_ends: np.ndarray,
    k: int,
    variant: str,
    target: str,
    seed: int | None,
) -> Finding:
    logits = _workload_logits(name, arguments, num_cols, row_ends)
    lengths = {"row_ends": row_ends}
    for order in registry.resolve(variant).orders:
        promises = {"tie_break": "lowest"} if order == "any" else {"order": order}
        due = targets.run("numba", "reference", logits, k, order=order, **lengths).indices
        outcome = targets.run(
            target, variant, logits, k, values=True, seed=seed, **promises, **lengths
        )
        reason = violations(logits, outcome, lengths, **promises)
        indices = outcome.indices
        if order == "any":  # the lowest of equal logits, in any order; -1 stays behind them
            indices = np.sort(indices.view(np.uint32)).view(np.int32)
        if reason is None and not np.array_equal(indices, due):
            row = int((indices != due).any(axis=1).argmax())
            reason = f"row {row} is not that of the reference"
        if reason:
            return Finding("wrong", reason, {}, outcome.code)
    return Finding("ok", None, {}, outcome.code)


def stable_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """Every workload, by each promise: the indices of the reference, in the order asked for."""
    info = registry.resolve(variant)
    if info.name == "reference" or "lowest" not in info.tie_breaks:
        return
    for name, arguments in _all_workloads():
        for rows, runs in _shapes_of(variant):
            num_cols, lengths, k, _ = rows
            row_ends = np.array(lengths, np.int32)
            yield Check(
                experiment="stable_answers",
                id=_label(name, arguments, rows),
                target=target,
                variant=runs,
                num_rows=len(lengths),
                num_cols=num_cols,
                k=k,
                next_n=0,
                workload=name,
                workload_args=arguments
                | {"row_ends": list(lengths), "poison": "nan", "tie_break": "lowest"},
                body=partial(
                    _stable_body, name, arguments, num_cols, row_ends, k, runs, target, seed
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
    k: int,
    variant: str,
    target: str,
    seed: int | None,
) -> Finding:
    logits = _workload_logits(name, arguments, num_cols, row_ends)
    lengths = {"row_ends": row_ends}
    starts, _ = live_bounds(*logits.shape, **lengths)
    reached = 0
    for tie_break in registry.resolve(variant).tie_breaks:
        promises = {"tie_break": tie_break}
        call = partial(
            targets.run, variant=variant, logits=logits, k=k, seed=seed, **lengths, **promises
        )
        traced, plain = call(target, traced=True), call(target)
        twin = call("numba", traced=True)
        reached += int((traced.steps["step"] >= 0).sum())
        reason = violations(logits, traced, lengths, **promises)
        reason = reason or _trace_difference(traced.steps, twin.steps)
        if reason is None:
            kept = [chosen_keys(logits, starts, outcome.indices) for outcome in (traced, plain)]
            if not np.array_equal(*kept):
                reason = "the traced and the untraced kernel kept different logits"
        if reason:
            return Finding("wrong", reason, {"steps": reached}, traced.code)
    return Finding("ok", None, {"steps": reached}, traced.code)


def trace_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """Kernel and twin side by side, step by step."""
    if target not in (*targets.AMD_TARGETS, *targets.DEVICE_TARGETS):
        return
    shapes = _shapes_of(variant)[-1:]
    policy = schedules.POLICIES[registry.resolve(variant).name]
    traced = TRACED_WORKLOADS if isinstance(policy, schedules.TopKPolicy) else STASH_WORKLOADS
    if isinstance(policy, schedules.OneBlockPolicy):
        traced = DIGIT_WORKLOADS
    elif isinstance(policy, schedules.SharedHistogramPolicy):
        traced = SHARED_WORKLOADS
    elif isinstance(policy, schedules.DelegateChoice):
        # Each member is a kernel of its own, fused or not.
        traced, shapes = DELEGATE_WORKLOADS, _shapes_of(variant)
    for (name, arguments), (rows, runs) in itertools.product(traced, shapes):
        num_cols, lengths, k, _ = rows
        row_ends = np.array(lengths, np.int32)
        yield Check(
            experiment="pass_by_pass",
            id=_label(name, arguments, rows),
            target=target,
            variant=runs,
            num_rows=len(lengths),
            num_cols=num_cols,
            k=k,
            next_n=0,
            workload=name,
            workload_args=arguments | {"row_ends": list(lengths), "poison": "nan"},
            body=partial(_trace_body, name, arguments, num_cols, row_ends, k, runs, target, seed),
        )
