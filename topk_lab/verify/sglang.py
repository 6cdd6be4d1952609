"""Is the SGLang lineage exact where its source tested it, and where its source can't be?"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from topk_lab import registry, results, schedules, targets, workloads
from topk_lab.contract import canonical_key
from topk_lab.verify.core import Check, Finding, chosen_keys, violations
from topk_lab.verify.paging import due_slots, shuffled_tables

__all__ = ["index_set_checks", "overflow_checks", "unit_checks"]

K = 1024
PAGE_SIZE = 64
UNIT_SEED = 42
UNIT_BATCHES = (1, 48)
UNIT_LENGTHS = (2048, 8192, 32_768)

SET_BATCHES = (1, 64, 128)
SET_LENGTHS = (2048, 4096, 8192, 16_384, 32_768)
SET_SEEDS = (0, 1, 2, 3)
SET_VARIANTS = ("sglang_block512", "sglang_block1024")

# Distributions that overflow a stash, and some that do not: workload, its arguments, columns.
DISTRIBUTIONS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("normal", {}, 262_144),
    ("uniform", {}, 32_768),
    ("uniform", {}, 131_072),
    ("near_one", {}, 8192),
    ("near_one", {}, 32_768),
    ("tiny", {}, 32_768),
    ("relu_heads", {}, 262_144),
)
OVERFLOW_ROWS = 4  # each of them drawn anew
OVERFLOW_POLICIES = ("", "overflow=drop", "stash_kib=48,overflow=drop")
TWIN_POLICY = "stash_kib=128,overflow=drop"
NEAR_CAPACITY = 0.02  # several deviations of a bin's population from row to row


def _is_sglang(variant: str) -> bool:
    policy = schedules.POLICIES.get(registry.resolve(variant).name)
    return isinstance(policy, schedules.StashPolicy)


def _unit_body(
    batch: int, length: int, identity: bool, variant: str, target: str, seed: int | None
) -> Finding:
    logits = workloads.make("normal", batch, length, seed=UNIT_SEED)
    lengths = {"row_ends": np.full(batch, length, np.int32)}
    pages = length // PAGE_SIZE
    table = np.tile(np.arange(pages, dtype=np.int32), (batch, 1))
    if not identity:
        table = shuffled_tables(batch, pages, UNIT_SEED)
    outcome = targets.run(
        target, variant, logits, K, page_table=table, page_size=PAGE_SIZE, values=True, seed=seed,
        **lengths,
    )  # fmt: skip
    reason = violations(logits, outcome, lengths)
    if reason is None and not np.array_equal(
        outcome.slots, due_slots(outcome.indices, table, PAGE_SIZE)
    ):
        reason = "slots are not those of the indices"
    counters = {}
    if outcome.counts:
        counters["waves_per_block"] = outcome.counts[0].as_dict()["waves"] // batch
    return Finding("wrong" if reason else "ok", reason, counters, outcome.code)


def unit_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """The source's unit test: two batches, three lengths, k 1024, page 64; and shuffled tables."""
    for batch in UNIT_BATCHES:
        for length in UNIT_LENGTHS:
            if _refused(variant, batch, length):
                return
            for identity in (True, False):
                table = "identity" if identity else "shuffled"
                yield Check(
                    experiment="sglang",
                    id=f"{batch}x{length}-{table}",
                    target=target,
                    variant=variant,
                    num_rows=batch,
                    num_cols=length,
                    k=K,
                    next_n=0,
                    workload="normal",
                    workload_args={"table": table, "page_size": PAGE_SIZE},
                    body=partial(_unit_body, batch, length, identity, variant, target, seed),
                )


def _refused(variant: str, num_rows: int, num_cols: int) -> bool:
    """Whether a variant takes no k of 1024."""
    name = registry.resolve(variant).name
    return name in schedules.POLICIES and bool(schedules.gate_refusal(name, num_rows, num_cols, K))


def _index_sets_body(target: str, seed: int | None) -> Finding:
    rows = identical = tied = equal_values = 0
    codes = set()
    for draw in SET_SEEDS:
        for batch in SET_BATCHES:
            for length in SET_LENGTHS:
                logits = workloads.make("normal", batch, length, seed=draw)
                both = [
                    targets.run(target, variant, logits, K, order="index", seed=seed)
                    for variant in SET_VARIANTS
                ]
                codes |= {outcome.code for outcome in both}
                for outcome in both:
                    reason = violations(logits, outcome, {}, order="index")
                    if reason:
                        return Finding("wrong", f"{outcome.variant}: {reason}", {}, outcome.code)
                sets = [outcome.indices for outcome in both]
                starts = np.zeros(batch, np.int64)
                kept = [chosen_keys(logits, starts, indices) for indices in sets]
                cutoff = kept[0][:, 0]
                at_cutoff = (canonical_key(logits) == cutoff[:, None]).sum(axis=1)
                rows += batch
                identical += int((sets[0] == sets[1]).all(axis=1).sum())
                equal_values += int((kept[0] == kept[1]).all(axis=1).sum())
                tied += int((at_cutoff > (kept[0] == cutoff[:, None]).sum(axis=1)).sum())
    counters = {
        "rows": rows,
        "identical_rows": identical,
        "equal_value_rows": equal_values,
        "tied_rows": tied,
    }
    reason = None
    if equal_values < rows:
        reason = f"{rows - equal_values} rows kept other values"
    elif rows - identical > tied:
        reason = f"{rows - identical} sets differ, only {tied} cutoffs are tied"
    said = f"{identical} of {rows} index sets identical, {tied} tied cutoffs"
    return Finding("wrong" if reason else "ok", reason, counters, " ".join(sorted(codes)), say=said)


def index_set_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """Both block sizes on 3860 rows. The twin has no threads: on it nothing would be compared."""
    if variant != SET_VARIANTS[1] or target == "numba":
        return
    yield Check(
        experiment="sglang_index_sets",
        id="512-against-1024-threads",
        target=target,
        variant=variant,
        num_rows=len(SET_SEEDS) * len(SET_LENGTHS) * sum(SET_BATCHES),
        num_cols=max(SET_LENGTHS),
        k=K,
        next_n=0,
        workload="normal",
        workload_args={
            "case": "512-against-1024-threads",
            "lengths": list(SET_LENGTHS),
            "batches": list(SET_BATCHES),
            "seeds": list(SET_SEEDS),
        },
        body=partial(_index_sets_body, target, seed),
    )


def _recalls(logits: np.ndarray, indices: np.ndarray) -> list[float]:
    """Share of the k greatest values of each row that were chosen, each counted as often as due."""
    keys = np.sort(canonical_key(logits), axis=1)[:, ::-1]
    k = indices.shape[1]
    cutoff = keys[:, k - 1 : k]
    chosen = chosen_keys(logits, np.zeros(len(logits), np.int64), indices)
    above = (chosen > cutoff).sum(axis=1)
    room = k - (keys > cutoff).sum(axis=1)
    ties = np.minimum((chosen == cutoff).sum(axis=1), room)
    return ((above + ties) / k).tolist()


def _overflow_body(
    name: str, arguments: dict[str, Any], num_cols: int, variant: str, target: str, seed: int | None
) -> Finding:
    logits = workloads.make(name, OVERFLOW_ROWS, num_cols, **arguments)
    options = {"study": True, "seed": seed}
    outcome = targets.run(target, variant, logits, K, **options)
    traced = targets.run("numba", variant, logits, K, study=True, traced=True)
    coarse = traced.steps[:, 0, 0]
    recalls = _recalls(logits, outcome.indices)
    counters = {
        "recall": recalls,
        "mean_recall": float(np.mean(recalls)),
        "bin_population": coarse["bin_size"].tolist(),
        "above": coarse["above"].tolist(),
        "capacity": schedules.parse_variant(variant).policy.stash_capacity,
    }
    reason = violations(logits, outcome, {})
    said = f"recall {np.mean(recalls):.3f}"
    return Finding("wrong" if reason else "ok", reason, counters, outcome.code, say=said)


def overflow_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """Every distribution under each overflow policy; a stash of 128 KiB on the twin alone."""
    if not _is_sglang(variant) or "[" in variant:
        return
    policies = (*OVERFLOW_POLICIES, *([TWIN_POLICY] if target == "numba" else []))
    for name, arguments, num_cols in DISTRIBUTIONS:
        for fields in policies:
            studied = f"{variant}[{fields}]" if fields else variant
            policy = schedules.parse_variant(studied).policy
            yield Check(
                experiment="exactness_under_overflow",
                id=f"{name}-{num_cols}-{policy.overflow}-{policy.stash_capacity}",
                target=target,
                variant=studied,
                num_rows=OVERFLOW_ROWS,
                num_cols=num_cols,
                k=K,
                next_n=0,
                workload=name,
                workload_args=arguments,
                body=partial(_overflow_body, name, arguments, num_cols, studied, target, seed),
                due=_due(name, num_cols, policy),
            )


@functools.cache
def _populations() -> dict[tuple[str, int], int]:
    """Population of the threshold bin of each distribution, as the published table has it."""
    frame = results.load_published("stash_overflow_recall")
    places = zip(frame["workload"], frame["num_cols"], strict=True)
    return dict(zip(places, frame["population"], strict=True))


def _due(name: str, num_cols: int, policy: schedules.StashPolicy) -> str:
    """What a policy must come to; chance decides where bin and stash are of about one size."""
    if policy.overflow == "rescan":
        return "ok"
    filling = _populations()[name, num_cols] / policy.stash_capacity
    if abs(filling - 1) < NEAR_CAPACITY:
        return "either"
    return "wrong" if filling > 1 else "ok"
