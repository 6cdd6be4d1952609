"""How many atomics meet at one bin of compiled AMD code, and is what sorts it exact?

Counts of the emulator beside those of the source, on masked rows and on rows that crowd otherwise;
and the row that shows why a bin of -inf must not be sorted under pads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from topk_lab import code_objects, plans, profile, schedules, targets
from topk_lab.crowds import LENGTHS, UNMASKED, masks
from topk_lab.lds_atomics import cuobjdump, lds_atomics
from topk_lab.verify.core import Check, Finding, violations

__all__ = ["atomics_checks", "contention_checks", "machine_code_checks", "neg_inf_checks"]

K = 512
# A length for each number of splits that a single row is cut into, as the derived table has it.
ATOMICS_LENGTHS = (16_385, 131_072, 262_144, 1_048_576)
ATOMICS_POLICIES = ("vllm_k512", "vllm_k512[count_neg_inf=false]")

COUNTED = (
    "vllm_generic",
    "vllm_k512",
    "vllm_k512_uncrowded",
    "vllm_k512[count_neg_inf=false]",
    "vllm_k512[equal_shortcut=true]",
    "vllm_k512[count_neg_inf=false,increments=wave]",
    "vllm_k512[count_neg_inf=false,increments=crowd]",
)
# What the increments of a histogram become, by the way in which they are written.
COMPILED = (
    "vllm_k512",
    "vllm_k512[count_neg_inf=false]",
    "vllm_k512[count_neg_inf=false,increments=opaque]",
    "vllm_k512_uncrowded",
)
# Of the first launch, which reads the rows.
COUNTERS = (
    *("lds_atomic_lanes", "lds_atomic_serialized_lanes", "lds_bank_conflict_cycles"),
    *("valu_instructions", "salu_instructions", "lds_instructions", "global_bytes_read"),
)

NEG_INF_ROW = (300, 700)  # finite logits, then -inf
# What sorts a bin of -inf under which pads, and whether the row stays exact. Pads that tie with it
# stand behind it in the buffer, and this sort is stable: nothing else keeps such a policy right.
SORTING_POLICIES = {
    "rule": ("vllm_k512", "ok"),
    "legacy-pads": ("vllm_k512[fits_rule=false,final_pad=neg_flt_max]", "wrong"),
    "rule-legacy-pads": ("vllm_k512[final_pad=neg_flt_max]", "ok"),
    "tied-pads": ("vllm_k512[fits_rule=false]", "ok"),
    "pads-after-all": ("vllm_k512[fits_rule=false,final_pad=after_all]", "ok"),
    "shortcut": ("vllm_k512[equal_shortcut=true]", "ok"),
    "uncrowded": ("vllm_k512_uncrowded", "ok"),
}


def _unaccounted(found: profile.Profile) -> str | None:
    """Why the lanes that executed atomics are not those that the twin of the increments expects."""
    policy = schedules.parse_variant(found.variant).policy
    for block in found.atomics.to_dict("records"):
        beyond = block["isa_add_lanes"] - block["compiled"]
        # Where logits were presumed to be equal and are not, a wave or more says so in each step.
        least = block["steps"] - 1 if policy.equal_shortcut else 0
        if not least <= beyond <= least * policy.block_size // profile.LANES:
            return (
                f"row {block['row']}, split {block['split']}: {block['isa_add_lanes']} lanes added "
                f"something, {block['compiled']} were expected"
            )
    return None


def _counters(found: profile.Profile) -> dict[str, Any]:
    """The counters of the first launch, and of its histograms."""
    launch = found.counters[found.counters["launch"] == 0].set_index("counter")["value"]
    atomics = found.atomics
    return {
        "splits": [len(atomics)],
        "steps": int(atomics["steps"].max()),
        "neg_inf": int(atomics["neg_inf"].sum()),
        "row_reads": round(float(launch["global_bytes_read"]) / (4 * found.num_cols), 3),
        **{
            name: int(atomics[name].sum())
            for name in ("hot", "source", "compiled_hot", "compiled", "isa_add_lanes")
        },
        "hot_most": int(atomics["hot"].max()),
        **{name: int(launch[name]) for name in COUNTERS},
    }


def _profile_finding(found: profile.Profile, counters: dict[str, Any], said: str) -> Finding:
    reason = found.reason or _unaccounted(found)
    return Finding("wrong" if reason else "ok", reason, counters, found.code, say=said)


def _atomics_body(variant: str, target: str, num_cols: int) -> Finding:
    found = profile.profile(variant, target, 1, num_cols, workload="masked_blocks", k=K)
    made = found.atomics["step0_hot"]
    counters = {
        **_counters(found),
        "neg_inf_atomics": made.tolist(),
        "neg_inf_atomics_per_split": float(made.mean()),
        "neg_inf_atomics_most": int(made.max()),
    }
    return _profile_finding(found, counters, f"{made.mean():.0f} atomics a split on the -inf bin")


def atomics_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """Atomics of the first histogram on the -inf bin, 7 of 8 logits masked: the derived table."""
    if variant != "vllm_k512" or target not in targets.AMD_TARGETS or seed is not None:
        return
    for studied in ATOMICS_POLICIES:
        for num_cols in ATOMICS_LENGTHS:
            yield Check(
                experiment="neg_inf_atomics",
                id=f"{num_cols}-{schedules.parse_variant(studied).ablation or 'counted'}",
                target=target,
                variant=studied,
                num_rows=1,
                num_cols=num_cols,
                k=K,
                next_n=0,
                workload="masked_blocks",
                workload_args={"row_end": num_cols},
                body=partial(_atomics_body, studied, target, num_cols),
            )


def _contention_body(
    variant: str, target: str, num_cols: int, workload: str, arguments: dict[str, Any]
) -> Finding:
    found = profile.profile(variant, target, 1, num_cols, workload=workload, k=K, **arguments)
    counters = _counters(found)
    said = f"{counters['lds_atomic_serialized_lanes']} lanes serialized"
    return _profile_finding(found, counters, said)


def contention_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """Masks of every share and pattern, and rows that crowd without one, as they are timed."""
    if variant not in COUNTED or target not in targets.AMD_TARGETS or seed is not None:
        return
    for num_cols in LENGTHS:
        for workload, arguments in (*masks(num_cols), *((name, {}) for name in UNMASKED)):
            yield Check(
                experiment="neg_inf_contention",
                id="-".join([workload, *map(str, arguments.values()), str(num_cols)]),
                target=target,
                variant=variant,
                num_rows=1,
                num_cols=num_cols,
                k=K,
                next_n=0,
                workload=workload,
                workload_args=arguments,
                body=partial(_contention_body, variant, target, num_cols, workload, arguments),
            )


def _machine_code_body(variant: str, target: str) -> Finding:
    shape = plans.Shape(1, LENGTHS[0], K, LENGTHS[0], K)
    kernel = plans.plan(variant, shape).launches[0].kernel
    found = lds_atomics(kernel, target)
    reason = None
    if found.shared_returning < found.returning:
        alone = found.returning - found.shared_returning
        reason = f"{alone} of {found.returning} atomics hand out slots lane by lane"
    code = code_objects.find(code_objects.kernel_source(kernel), target).sha256
    said = f"{found.summing_increments} of {found.increments} increments add up equal addresses"
    return Finding("wrong" if reason else "ok", reason, dataclasses.asdict(found), code, say=said)


def machine_code_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """LDS atomics of compiled kernels; of those for NVIDIA, where the CUDA toolkit is."""
    compiled = target in targets.AMD_TARGETS or (target == "cuda" and cuobjdump())
    if variant != "vllm_k512" or not compiled or seed is not None:
        return
    for studied in COMPILED:
        yield Check(
            experiment="lds_atomics",
            id=schedules.parse_variant(studied).ablation or studied,
            target=target,
            variant=studied,
            num_rows=1,
            num_cols=LENGTHS[0],
            k=K,
            next_n=0,
            workload=None,
            workload_args={"case": "select"},
            body=partial(_machine_code_body, studied, target),
        )


def _neg_inf_row() -> np.ndarray:
    finite, masked = NEG_INF_ROW
    row = np.full((1, finite + masked), -np.inf, np.float32)
    row[0, :finite] = np.arange(finite)
    return row


def _neg_inf_body(variant: str, target: str, seed: int | None) -> Finding:
    logits = _neg_inf_row()
    outcome = targets.run(target, variant, logits, K, study=True, seed=seed)
    wrong_slots = int((outcome.indices[0] < 0).sum())
    reason = violations(logits, outcome, {})
    return Finding("wrong" if reason else "ok", reason, {"wrong_slots": wrong_slots}, outcome.code)


def neg_inf_checks(variant: str, target: str, seed: int | None) -> Iterator[Check]:
    """One row whose cutoff is -inf, under everything that may sort its bin."""
    if variant != "vllm_k512":
        return
    finite, masked = NEG_INF_ROW
    for label, (studied, due) in SORTING_POLICIES.items():
        yield Check(
            experiment="neg_inf_rule",
            id=label,
            target=target,
            variant=studied,
            num_rows=1,
            num_cols=finite + masked,
            k=K,
            next_n=0,
            workload=None,
            workload_args={"case": label, "finite": finite, "masked": masked},
            body=partial(_neg_inf_body, studied, target, seed),
            due=due,
        )
