"""What does the package claim of a device, and how is each claim tried there?

A check is cut into *parts* (mostly a variant each): a part is what runs, ends, is recorded and is
taken up again after an interruption. Its `Report` says what was found; a part that does not end,
or ends its process, is reported by `topk_lab.firstlight.supervisor` instead.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from topk_lab import code_objects, plans, registry, results, schedules, targets, verify
from topk_lab.firstlight.report import Report, amount
from topk_lab.verify import graphs, streams

if TYPE_CHECKING:
    from topk_lab.driver import Memory
    from topk_lab.results import Recorder

__all__ = ["CHECKS", "Context", "FirstCheck", "check_of", "parts", "variants"]

# What a stand-in, and --quick, run of the workloads: rows that need no more than so many logits.
QUICK_WORKLOADS = ("normal", "masked_random", "near_equal", "nan")
QUICK_LOGITS = 300_000
QUICK_SIZES = graphs.EMULATED_SIZES._replace(rows=(8,))
# Classes of rows that decide a split count each; all of them are `topk-lab verify`'s.
REPLAY_SIZES = graphs.DEVICE_SIZES._replace(rows=(8, 24, 200))
UNASKED_LDS = 64 * 1024  # a block has so much on every target
LDS_SHAPES = ((1, 4096), (24, 262_144), (384, 32_768), (1, 2**20))
LDS_VARIANT = "sglang_block1024"


@dataclass
class Context:
    """What a part is given.

    Attributes
    ----------
    target : {"hip", "cuda"}
    memory : topk_lab.driver.Memory
        Of the device, or of what stands in for it.
    recorder : topk_lab.results.Recorder
    deadline : float
        When the part should end (`time.monotonic`): what it has not begun then is left out.
    quick : bool
        Run little of each list.
    command : tuple of str
        What runs ``topk-lab`` here.
    resume : bool
        Leave out what the record has already found to be exact.
    say : callable
        Takes a line on how far the part is.
    """

    target: str
    memory: Memory
    recorder: Recorder
    deadline: float
    quick: bool = False
    command: tuple[str, ...] = ()
    resume: bool = True
    say: Callable[[str], None] = field(default=lambda line: None, repr=False)

    @property
    def emulated(self) -> bool:
        """Whether something else than a device answers."""
        return self.memory.target != self.target

    @property
    def small(self) -> bool:
        """Whether lists are cut down."""
        return self.quick or self.emulated

    def in_time(self, items: Sequence[Any]) -> Iterator[Any]:
        """Those of the items that are begun before the deadline; says every now and then where."""
        said = time.monotonic()
        for number, item in enumerate(items):
            now = time.monotonic()
            if now >= self.deadline:
                return
            if now - said > 5:
                self.say(f"{number} of {len(items)}")
                said = now
            yield item


@dataclass(frozen=True)
class FirstCheck:
    """A claim about the device.

    Attributes
    ----------
    name : str
    question : str
        One line.
    seconds : float
        Its share of ten minutes.
    body : callable
        Runs a part.
    parts : callable
        Names of its parts; one that is empty is the check as a whole.
    weight : callable
        How much of the share a part takes, beside the others.
    """

    name: str
    question: str
    seconds: float
    body: Callable[[Context, str], Report] = field(repr=False)
    parts: Callable[[], tuple[str, ...]] = field(default=lambda: ("",), repr=False)
    weight: Callable[[str], float] = field(default=lambda part: 1.0, repr=False)

    def share(self, part: str) -> float:
        """Seconds of ten minutes that a part may take."""
        return self.seconds * self.weight(part) / sum(map(self.weight, self.parts()))


def variants() -> tuple[str, ...]:
    """The variants that run on devices."""
    both = set(targets.DEVICE_TARGETS)
    return tuple(name for name, info in registry.VARIANTS.items() if both <= set(info.targets))


def _key(cell: Mapping[str, Any]) -> str:
    """What tells the checks of a part apart, of a check and of its cell."""
    names = ("experiment", "variant", "num_rows", "num_cols", "k", "workload", "workload_args")
    return json.dumps([cell[name] for name in names], sort_keys=True)


def _exact_before(context: Context) -> set[str]:
    """Keys of the checks that the record has found to be exact: all on this code and device."""
    path = context.recorder.destination
    if not context.resume or not path.exists():
        return set()
    frame = results.load(path)
    exact = frame[(frame["status"] == "ok") & frame["mode"].isna()]
    return {_key(cell) for cell in exact.to_dict("records")}


def run_checks(context: Context, planned: Iterable[verify.Check], unit: str) -> Report:
    """Run checks of `topk_lab.verify` as far as time allows, and record each."""
    planned = list(planned)
    before = _exact_before(context)
    left = [check for check in planned if _key(vars(check)) not in before]
    done, wrong, first = len(planned) - len(left), 0, None
    for check in context.in_time(left):
        finding = verify.run(check)
        recorded = dataclasses.replace(check, target=context.memory.target)
        verify.record(context.recorder, recorded, finding)
        done += 1
        if not check.holds(finding):
            first = first or (check, finding)
            wrong += 1
    report = Report("ok", done=done, planned=len(planned), unit=unit)
    if first is None:
        return report
    check, finding = first
    reason = f"{finding.reason} ({wrong} of {amount(done, done, unit)}, first {check})"
    return dataclasses.replace(
        report, status="wrong", reason=reason, cause=_cause(check, reason, wrong, done)
    )


def _cause(check: verify.Check, reason: str, wrong: int, done: int) -> str:
    """What is likely behind a wrong finding."""
    if graphs.STALE in reason:
        return (
            "the kernel read lengths of an earlier replay: a load that went through the scalar "
            "cache, or a runtime that does not order the write before the graph (ROCm/hip#3902); "
            "topk-lab isa-sheet --check says whether the code object has coherent loads"
        )
    if check.experiment == "side_streams":
        return "the launch went to another stream than torch's: two runtimes, or a stream lost"
    if check.experiment == "fresh_lengths":
        return (
            "if exactness fails too, the kernel; if it holds, one launch of the call read lengths "
            "of an earlier replay (ROCm/hip#3902), or a runtime corrupts graphs (ROCm/clr#279)"
        )
    if check.experiment == "graph_replays":
        return (
            "if exactness fails too, the kernel; if it holds, the graph: what it keeps of its "
            "capture, or a runtime that corrupts graphs (ROCm/clr#279, ROCm 7.2.0 to 7.2.3)"
        )
    if wrong == done:
        return "every input is wrong: the code object that ran is broken, not an input"
    return (
        "the kernel is wrong on some inputs: a miscompiled step, or an architecture that differs "
        "from the emulator's; topk-lab verify on the emulated target of the same name says which"
    )


def _ready(context: Context, part: str) -> Report:
    from topk_lab import support

    state = targets.status(context.target)
    opened = context.memory.opened
    row = support.row_of(opened.arch)
    known = f"{row.device}; {row.ran}" if row else f"{opened.arch}: not in the support matrix"
    return Report("ok", done=1, planned=1, unit="device", notes=[state.detail, known])


def _code_objects(context: Context, part: str) -> Report:
    opened = context.memory.opened
    sources = sorted(
        {
            found.source
            for found in code_objects.manifest()
            if found.target in (opened.arch, opened.platform)
        }
    )
    kernels, problems = 0, []
    for source in sources:
        try:
            kernels += len(opened.load(source))
        except (targets.DriverError, code_objects.CodeObjectError) as error:
            problems.append(str(error))
    report = Report(
        "ok", done=len(sources) - len(problems), planned=len(sources), unit="code objects",
        notes=[f"{kernels} kernels were found"],
    )  # fmt: skip
    if not problems:
        return report
    return dataclasses.replace(
        report,
        status="error",
        reason=f"{len(problems)} of {len(sources)} code objects: {problems[0]}",
        cause="the package's code objects are damaged, stale or of another version than its "
        "kernels: `make build` in a checkout, else reinstall the package",
    )


@functools.cache
def _inputs(variant: str, target: str) -> tuple[verify.Check, ...]:
    experiments = ("workloads", "stable_answers", "page_tables")
    return tuple(check for name in experiments for check in verify.checks(name, variant, target))


def _number_of_inputs(variant: str) -> float:
    """Alike on both platforms."""
    return float(len(_inputs(variant, targets.DEVICE_TARGETS[0])))


def _exactness(context: Context, part: str) -> Report:
    planned: Sequence[verify.Check] = _inputs(part, context.target)
    if context.small:
        planned = [
            check
            for check in planned
            if check.experiment == "workloads"
            and check.workload in QUICK_WORKLOADS
            and check.num_rows * check.num_cols <= QUICK_LOGITS
        ]
    return run_checks(context, planned, "inputs")


def _fresh_lengths(context: Context, part: str) -> Report:
    sizes = QUICK_SIZES if context.small else graphs.FRESH_SIZES
    return run_checks(context, graphs.fresh_checks(part, context.target, None, sizes), "calls")


def _replays(context: Context, part: str) -> Report:
    sizes = QUICK_SIZES if context.small else REPLAY_SIZES
    return run_checks(context, graphs.length_checks(part, context.target, sizes), "calls")


def _side_streams(context: Context, part: str) -> Report:
    busy = 4 if context.emulated else streams.BUSY_BYTES
    return run_checks(context, streams.stream_checks(part, context.target, None, busy), "calls")


def _greatest_lds(context: Context) -> tuple[int, str]:
    """The most LDS that a block of any variant asks for, and which kernel that is."""
    opened = context.memory.opened
    asked = []
    for variant in variants():
        for num_rows, num_cols in LDS_SHAPES:
            if schedules.gate_refusal(variant, num_rows, num_cols, 512):
                continue
            plan = plans.plan(variant, plans.Shape(num_rows, num_cols, 512, num_cols, 512))
            functions = opened.prepare(plan).functions
            for launch, function in zip(plan.launches, functions, strict=True):
                asked.append((function.static_lds + launch.dynamic_lds, launch.kernel))
    return max(asked)


def _large_lds(context: Context, part: str) -> Report:
    """A block with all the LDS that the device gives one, where that is more than 64 KiB."""
    import numpy as np
    import torch

    from topk_lab import workloads
    from topk_lab.contract import UNWRITTEN, find_violations

    opened, place = context.memory.opened, context.memory.place
    most, kernel = _greatest_lds(context)
    note = f"the variants ask for {most} bytes a block at most ({kernel})"
    if opened.lds_limit <= UNASKED_LDS:
        reason = f"a block of {opened.arch} has {opened.lds_limit} bytes of LDS, not more"
        return Report("skipped", reason=reason, notes=[note])
    num_cols = 20_000
    plan = plans.plan(LDS_VARIANT, plans.Shape(2, num_cols, 512, num_cols, 512))
    (launch,), (function,) = plan.launches, opened.prepare(plan).functions
    # Whole granules of every device: what is left of one is less than a block of them.
    dynamic = (opened.lds_limit - function.static_lds) // 1280 * 1280
    held = dataclasses.replace(
        plan, launches=(dataclasses.replace(launch, dynamic_lds=max(dynamic, launch.dynamic_lds)),)
    )
    logits = workloads.make("near_equal", 2, num_cols)
    tensors = {
        "logits": torch.from_numpy(logits).to(place),
        "row_ends": torch.full((2,), num_cols, dtype=torch.int32, device=place),
        "indices": torch.full((2, 512), UNWRITTEN, dtype=torch.int32, device=place),
    }
    context.memory.launch(held, tensors)
    context.memory.synchronize()
    violations = find_violations(logits, np.asarray(tensors["indices"].cpu()))
    asked = f"{function.static_lds + dynamic} bytes of LDS a block"
    if violations:
        return Report(
            "wrong", done=1, planned=1, unit="calls", reason=f"with {asked}: {violations[0]}",
            cause="the device gives a block less LDS than it states", notes=[note],
        )  # fmt: skip
    return Report("ok", done=1, planned=1, unit="calls", notes=[note, f"ran with {asked}"])


def _timed(name: str) -> Callable[[Context, str], Report]:
    def body(context: Context, part: str) -> Report:
        from topk_lab.firstlight import timing

        return timing.run(context, name)

    return body


def _counters(context: Context, part: str) -> Report:
    if context.target != "hip":
        return Report("skipped", reason="rocprofv3 counts on HIP devices")
    from topk_lab.firstlight import counters

    return counters.run(context)


# In the order of a run: what makes all that follows meaningless comes first.
CHECKS = (
    FirstCheck("ready", "Can the device be used, and what is it?", 5, _ready),
    FirstCheck(
        "code_objects", "Does every code object load, with every kernel?", 15, _code_objects
    ),
    FirstCheck(
        "exactness",
        "Is every variant exact on every workload?",
        200,
        _exactness,
        variants,
        _number_of_inputs,
    ),
    FirstCheck(
        "fresh_lengths",
        "Are lengths read that were written just before a replay, 200 times without a wait?",
        25,
        _fresh_lengths,
        variants,
    ),
    FirstCheck(
        "replays",
        "Does a captured call stay exact over 200 replays with other lengths and contents?",
        90,
        _replays,
        variants,
    ),
    FirstCheck(
        "side_streams",
        "Does a selection on a side stream see what was queued before it?",
        15,
        _side_streams,
        variants,
    ),
    FirstCheck("large_lds", "Does a block get more than 64 KiB of LDS?", 5, _large_lds),
    FirstCheck(
        "reference_shapes",
        "How long do the 18 reference shapes take, warm and under cache pressure?",
        65,
        _timed("reference_shapes"),
    ),
    FirstCheck(
        "latency_vs_batch",
        "Does the time of one block a row grow with the batch?",
        65,
        _timed("latency_vs_batch"),
    ),
    FirstCheck(
        "vllm_matrix",
        "What do 100 cases of the 1008 take, warm and under cache pressure?",
        70,
        _timed("vllm_matrix"),
    ),
    FirstCheck(
        "counters", "Do the counters of rocprofv3 agree with the emulated ones?", 45, _counters
    ),
)


def parts() -> list[str]:
    """Every part of every check, ``check`` or ``check/variant``, in the order of a run."""
    return [
        f"{check.name}/{part}" if part else check.name for check in CHECKS for part in check.parts()
    ]


def check_of(unit: str) -> tuple[FirstCheck, str]:
    """The check that a part belongs to, and the part's own name.

    Raises
    ------
    ValueError
        No such part.
    """
    name, _, part = unit.partition("/")
    for check in CHECKS:
        if check.name == name and part in check.parts():
            return check, part
    raise ValueError(f"check must be one of {', '.join(parts())}, got {unit!r}")
