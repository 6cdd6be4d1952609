"""Is what runs on a target exact, and does it do what its twin does?

The experiments behind the exactness claims. Each is a list of checks; a check runs one input on one
target, holds the answer against the contract's oracle and says what it observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from topk_lab import cases, registry, schedules
from topk_lab.verify import contention, graphs, lists, paging, sglang, streams
from topk_lab.verify.core import Check, Finding, line, record, recorder, run

__all__ = ["EXPERIMENTS", "Check", "Finding", "checks", "line", "record", "recorder", "run"]

EXPERIMENTS: dict[str, Callable[[str, str, int | None], Iterator[Check]]] = {
    **{
        list_name.replace("-", "_"): partial(lists.case_checks, list_name)
        for list_name in cases.LISTS
    },
    "workloads": lists.workload_checks,
    "stable_answers": lists.stable_checks,
    "pass_by_pass": lists.trace_checks,
    "neg_inf_rule": contention.neg_inf_checks,
    "neg_inf_atomics": contention.atomics_checks,
    "neg_inf_contention": contention.contention_checks,
    "lds_atomics": contention.machine_code_checks,
    "sglang": sglang.unit_checks,
    "sglang_index_sets": sglang.index_set_checks,
    "exactness_under_overflow": sglang.overflow_checks,
    "graph_replays": graphs.replay_checks,
    "fresh_lengths": graphs.fresh_checks,
    "side_streams": streams.stream_checks,
    "page_tables": paging.page_table_checks,
}


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
        if target != "numba" and parsed.ablation is None:
            raise ValueError(f"variant {parsed} is not compiled; it runs on target numba only")
        variant = str(parsed)
    found = list(EXPERIMENTS[name](variant, target, seed))
    if seed is None:
        return found
    return [
        replace(check, workload_args=check.workload_args | {"wave_seed": seed}) for check in found
    ]
