"""What does a selection ask of an AMD device, and which hardware counters would say otherwise?

A selection is emulated with a full count. Each counter stands beside the ``rocprofv3`` counter that
must agree on hardware, so that an owner of the device can falsify it; and the atomics of the
histograms, which masked rows are about, are counted from the source's view beside what the compiled
code does. Counts, never times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from topk_lab import registry, schedules, targets, workloads
from topk_lab.contract import find_violations

if TYPE_CHECKING:
    import pandas as pd

    from topk_lab.results import Recorder

__all__ = [
    "HARDWARE_COUNTERS",
    "HardwareCounter",
    "Profile",
    "lines",
    "predictions",
    "profile",
    "record",
]

LANES = 64
# Bytes of a vector L1 line: MI200, then MI300 and MI350.
L1_LINE = {"gfx90a": 64, "gfx942": 128, "gfx950": 128}


@dataclass(frozen=True)
class HardwareCounter:
    """A ``rocprofv3`` counter and what emulated counters say that it is, summed over the device.

    Attributes
    ----------
    name : str
        As ``rocprofv3 --pmc`` takes it.
    terms : tuple of str
        Emulated counters that add up to it (keys of `LaunchCount.as_dict`).
    relation : {"=", "<="}
        ``<=`` where caches keep some of the requests away from the counter.
    tolerance : float
        Relative difference within which the two agree.
    because : str
        Why the tolerance is not 0, or what the relation leaves open.
    lanes_of : str
        Where given, the terms are lanes, and the counter is the percentage that they are of all
        lanes of so many instructions.
    """

    name: str
    terms: tuple[str, ...]
    relation: str = "="
    tolerance: float = 0.0
    because: str = ""
    lanes_of: str = ""

    @property
    def formula(self) -> str:
        """What `predict` computes, in words of the emulated counters."""
        total = " + ".join(self.terms)
        return f"100 * {total} / ({LANES} * {self.lanes_of})" if self.lanes_of else total

    def predict(self, counts: Mapping[str, int]) -> float:
        """The counter's value, from the emulated counters of a launch."""
        total = sum(counts[term] for term in self.terms)
        return 100 * total / (LANES * counts[self.lanes_of]) if self.lanes_of else total

    def agrees(self, counted: float, predicted: float) -> bool:
        """Whether what hardware counted is what was predicted, within the tolerance."""
        room = self.tolerance * abs(predicted)
        if self.relation == "<=":
            return counted <= predicted + room
        return abs(counted - predicted) <= room


_ORDER = "loops over final items and ties depend on the order of atomics"
_BANKS = "phases of some access widths are assumed (emulator/README.md)"
_L1 = "lines that a wave asks for twice in a row may be merged in front of the cache"


def _hardware(line: int) -> tuple[HardwareCounter, ...]:
    read, written = (f"global_lines_{line}_{what}" for what in ("read", "written"))
    return (
        HardwareCounter("SQ_WAVES", ("waves",)),
        HardwareCounter("SQ_INSTS_VALU", ("valu_instructions",), "=", 0.01, _ORDER),
        HardwareCounter(
            "VALUUtilization",
            ("valu_lanes",),
            "=",
            0.05,
            "the metric is weighted with cycles, of which some instructions take more",
            "valu_instructions",
        ),
        HardwareCounter("SQ_INSTS_SALU", ("salu_instructions",), "=", 0.01, _ORDER),
        HardwareCounter("SQ_INSTS_SMEM", ("smem_instructions",), "=", 0.01, _ORDER),
        HardwareCounter("SQ_INSTS_LDS", ("lds_instructions",), "=", 0.01, _ORDER),
        HardwareCounter("SQ_INSTS_VMEM", ("global_instructions",), "=", 0.01, _ORDER),
        HardwareCounter("SQ_INSTS_BRANCH", ("branch_instructions",), "=", 0.01, _ORDER),
        HardwareCounter("SQ_LDS_BANK_CONFLICT", ("lds_bank_conflict_cycles",), "=", 0.10, _BANKS),
        HardwareCounter(
            "SQ_LDS_ADDR_CONFLICT",
            ("lds_atomic_serialized_lanes",),
            "=",
            0.25,
            "AMD does not say whether a conflict costs one cycle a lane",
        ),
        HardwareCounter("TCP_TOTAL_CACHE_ACCESSES_sum", (read, written), "=", 0.05, _L1),
        HardwareCounter(
            "TCP_TCC_READ_REQ_sum",
            ("global_lines_64_read",),
            "<=",
            0.0,
            "hits in the vector L1 cache send no request",
        ),
        HardwareCounter(
            "TCP_TCC_WRITE_REQ_sum",
            ("global_lines_64_written",),
            "=",
            0.05,
            "the vector L1 cache writes through, neighbouring stores may be merged",
        ),
        HardwareCounter(
            "TCC_REQ_sum",
            ("global_lines_64_read", "global_lines_64_written"),
            "<=",
            0.10,
            "L1 hits do not arrive; instruction and scalar cache misses do, on top",
        ),
    )


HARDWARE_COUNTERS = {target: _hardware(line) for target, line in L1_LINE.items()}


@dataclass(frozen=True)
class Profile:
    """What a selection's launches counted.

    Attributes
    ----------
    target, variant : str
        Where ran what.
    num_rows, num_cols, k : int
        Shape of the call.
    workload : str
        What the logits were, with `arguments` and `seed`.
    reason : str or None
        Why the answer is not exact; None if it is.
    code : str
        Hash of the code object that ran.
    counters : pandas.DataFrame
        A row a launch and counter: launch, kernel, counter, value, and the hardware counter that it
        is a term of: hardware_counter, formula, relation, tolerance; empty where there is none.
    hardware : pandas.DataFrame
        A row a launch and hardware counter: launch, kernel, hardware_counter, formula, predicted,
        relation, tolerance, because.
    atomics : pandas.DataFrame
        A row a block of the first launch that reads logits: row, split, logits and how many of
        them are -inf (neg_inf); steps; of the first histogram hot_bin, its fullest bin, step0_hot,
        the atomics that the variant's source makes on it, and step0_source, on all bins. Over all
        steps of the vLLM lineage hot and source, the same, and compiled_hot and compiled, the lanes
        that `topk_lab.reference.increments` expects to execute them. isa_add_lanes, lanes of
        non-returning LDS atomics that the compiled block did execute in all its steps.
    blocks : pandas.DataFrame
        A row a launch, block and counter: launch, block, counter, value.
    """

    target: str
    variant: str
    num_rows: int
    num_cols: int
    k: int
    workload: str
    arguments: dict[str, object]
    seed: int
    reason: str | None
    code: str
    counters: pd.DataFrame = field(repr=False)
    hardware: pd.DataFrame = field(repr=False)
    atomics: pd.DataFrame = field(repr=False)
    blocks: pd.DataFrame = field(repr=False)


def profile(
    variant: str,
    target: str,
    num_rows: int,
    num_cols: int,
    *,
    workload: str = "normal",
    k: int = 512,
    seed: int = 0,
    **arguments: object,
) -> Profile:
    """Count what a selection does on an AMD target.

    Parameters
    ----------
    variant : str
        A variant that runs there; policy fields in brackets allowed, unsound ones too.
    target : {"gfx90a", "gfx942", "gfx950"}
    num_rows, num_cols : int
        Shape of the logits; every row is live to its end.
    workload : str, default "normal"
        Name of a workload (`topk_lab.workloads.names`).
    k : int, default 512
        Indices a row.
    seed : int, default 0
        Of the workload. The order of waves is the emulator's fixed one.
    **arguments
        The workload's.

    Returns
    -------
    Profile

    Raises
    ------
    ValueError
        Another target, or a variant, shape or workload that is not there.
    topk_lab.code_objects.CodeObjectError
        The target's code object is missing or stale.
    """
    if target not in HARDWARE_COUNTERS:
        raise ValueError(f"target must be one of {', '.join(HARDWARE_COUNTERS)}, got {target!r}")
    registry.resolve(variant)
    logits = targets.aligned(workloads.make(workload, num_rows, num_cols, seed=seed, **arguments))
    plain = targets.run(target, variant, logits, k, study=True, count="full")
    traced = targets.run(target, variant, logits, k, study=True, traced=True)
    violations = find_violations(logits, plain.indices)
    counters, hardware = _launch_frames(target, plain)
    return Profile(
        target=target,
        variant=plain.variant,
        num_rows=num_rows,
        num_cols=num_cols,
        k=k,
        workload=workload,
        arguments=arguments,
        seed=seed,
        reason=str(violations[0]) if violations else None,
        code=plain.code,
        counters=counters,
        hardware=hardware,
        atomics=_atomics(logits, plain, traced),
        blocks=_block_frame(plain),
    )


def predictions(variant: str, target: str, logits: np.ndarray, k: int = 512) -> pd.DataFrame:
    """What the hardware counters of a selection must be.

    Parameters
    ----------
    variant : str
    target : {"gfx90a", "gfx942", "gfx950"}
    logits : (num_rows, num_cols) float32 array
    k : int, default 512

    Returns
    -------
    pandas.DataFrame
        As `Profile.hardware`.

    Raises
    ------
    ValueError, topk_lab.code_objects.CodeObjectError
        As `profile`.
    topk_lab.emulator.EmulationError
        The emulator lacks a tool.
    """
    if target not in HARDWARE_COUNTERS:
        raise ValueError(f"target must be one of {', '.join(HARDWARE_COUNTERS)}, got {target!r}")
    outcome = targets.run(target, variant, targets.aligned(logits), k, count="full")
    return _launch_frames(target, outcome)[1]


def lines(found: Profile) -> list[str]:
    """A profile as text: a table for each launch, then the atomics of the first histogram.

    Parameters
    ----------
    found : Profile

    Returns
    -------
    list of str
    """
    text = []
    for (number, kernel), table in found.counters.groupby(["launch", "kernel"], sort=False):
        text += ["", f"launch {number}: {kernel}"]
        for row in table.itertuples():
            said = f"  {row.counter:28} {row.value:12,}"
            if row.hardware_counter:
                sign = "=" if row.relation == "=" else "at most"
                formula = "" if row.formula == row.counter else f" {row.formula}"
                said += f"   {row.hardware_counter} {sign}{formula} (within {row.tolerance:.0%})"
            text.append(said)
    if len(found.atomics):
        text += ["", "atomics of the histograms, by block"]
        names = [name for name in found.atomics.columns if name not in ("row", "split")]
        for values, blocks in found.atomics.groupby(names, sort=False):
            told = ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
            text.append(f"  {len(blocks)} blocks: {told}")
    return text


def record(recorder: Recorder, found: Profile) -> None:
    """Write a profile down as a cell of the experiment ``profile``.

    Parameters
    ----------
    recorder : topk_lab.results.Recorder
    found : Profile
        Each emulated counter becomes a list with a number a launch, and so does each hardware
        counter as ``rocprofv3_<name>``; each column of `Profile.atomics` that counts something
        becomes its sum over the blocks, as ``histograms_<column>``.
    """
    counters: dict[str, object] = {}
    for name, launches in found.counters.groupby("counter", sort=False):
        counters[str(name)] = launches["value"].tolist()
    for name, launches in found.hardware.groupby("hardware_counter", sort=False):
        counters[f"rocprofv3_{str(name).lower()}"] = launches["predicted"].tolist()
    for name in found.atomics.columns.difference(["row", "split", "steps", "hot_bin"], sort=False):
        counters[f"histograms_{name}"] = int(found.atomics[name].sum())
    recorder.record(
        experiment="profile",
        target=found.target,
        variant=found.variant,
        status="wrong" if found.reason else "ok",
        reason=found.reason,
        num_rows=found.num_rows,
        num_cols=found.num_cols,
        k=found.k,
        next_n=0,
        workload=found.workload,
        workload_args=found.arguments,
        seed=found.seed,
        counters=counters,
    )


def _launch_frames(target: str, outcome: targets.Outcome) -> tuple[pd.DataFrame, pd.DataFrame]:
    import pandas as pd

    mapped = HARDWARE_COUNTERS[target]
    # A counter may be a term of several; the first named is the closest.
    first_of = {term: found for found in reversed(mapped) for term in found.terms}
    counters, hardware = [], []
    for number, (launch, counted) in enumerate(
        zip(outcome.plan.launches, outcome.counts, strict=True)
    ):
        place = {"launch": number, "kernel": launch.kernel}
        values = counted.as_dict()
        for name, value in values.items():
            found = first_of.get(name)
            counters.append(
                place
                | {
                    "counter": name,
                    "value": value,
                    "hardware_counter": found.name if found else "",
                    "formula": found.formula if found else "",
                    "relation": found.relation if found else "",
                    "tolerance": found.tolerance if found else np.nan,
                }
            )
        for found in mapped:
            hardware.append(
                place
                | {
                    "hardware_counter": found.name,
                    "formula": found.formula,
                    "predicted": found.predict(values),
                    "relation": found.relation,
                    "tolerance": found.tolerance,
                    "because": found.because,
                }
            )
    return pd.DataFrame(counters), pd.DataFrame(hardware)


def _block_frame(outcome: targets.Outcome) -> pd.DataFrame:
    import pandas as pd

    frames = [counted.frame(per_block=True) for counted in outcome.counts]
    return pd.concat(
        [frame.assign(launch=number) for number, frame in enumerate(frames)], ignore_index=True
    )[["launch", "block", "counter", "value"]]


def _atomics(logits: np.ndarray, plain: targets.Outcome, traced: targets.Outcome) -> pd.DataFrame:
    """The atomics of the histograms, block by block."""
    import pandas as pd

    num_rows, num_cols = logits.shape
    chosen = plain.plan.variant
    active = schedules.active_splits(chosen, num_rows, num_cols, plain.plan.max_splits)
    blocks = next(
        counted.per_block
        for launch, counted in zip(plain.plan.launches, plain.counts, strict=True)
        if "logits" in dict(launch.pointers)
    )
    found = []
    for row in range(num_rows):
        for split in range(active):
            steps = traced.steps[row, split]
            steps = steps[steps["step"] >= 0]
            if not steps.size:
                continue
            begin = split * (num_cols // active)
            end = num_cols if split == active - 1 else begin + num_cols // active
            part = logits[row, begin:end]
            block = split * num_rows + row
            lanes = blocks["lds_atomic_lanes"][block] - blocks["lds_atomic_returning_lanes"][block]
            found.append(
                {
                    "row": row,
                    "split": split,
                    "logits": part.size,
                    "neg_inf": int(np.isneginf(part).sum()),
                    "steps": steps.size,
                    **_of_passes(part, chosen.policy, steps),
                    "isa_add_lanes": int(lanes),
                }
            )
    return pd.DataFrame(found)


def _of_passes(
    part: np.ndarray,
    policy: schedules.Policy,
    steps: np.ndarray,
) -> dict[str, int]:
    """What a block's histograms take, by the source and as compiled."""
    from topk_lab.reference.increments import pass_atomics

    first = steps["histogram"][0]
    if not isinstance(policy, schedules.TopKPolicy):
        return {
            "hot_bin": int(first.argmax()),
            "step0_hot": int(first.max()),
            "step0_source": int(first.sum()),
        }
    passes = [pass_atomics(part, policy, int(step["step"]), int(step["prefix"])) for step in steps]
    return {
        "hot_bin": passes[0].hot_bin,
        "step0_hot": passes[0].source_hot,
        "step0_source": passes[0].source,
        "hot": sum(made.source_hot for made in passes),
        "source": sum(made.source for made in passes),
        "compiled_hot": sum(made.compiled_hot for made in passes),
        "compiled": sum(made.compiled for made in passes),
    }
