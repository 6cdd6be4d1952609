"""What is timed, on which shapes, beside what?

An experiment is a list of cells; a cell is one shape, workload and cache state, on which all its
variants are timed side by side. `run` runs the cells that are asked for and records each variant.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from topk_lab import registry, results
from topk_lab.bench import cpu, delegate, graphs, matrix
from topk_lab.bench.candidates import READS, Inputs, stand_for
from topk_lab.bench.cells import CELL_FIELDS, Cell, Experiment
from topk_lab.bench.contention import contention_cells
from topk_lab.bench.device import Device
from topk_lab.bench.latency import latency_candidates, latency_cells, latency_counters
from topk_lab.bench.peers import PEERS, refusal
from topk_lab.bench.ratios import MIRRORS, PUBLISHED_TIMES, TORCH, published_shapes
from topk_lab.bench.timing import Candidate, Effort, Timing

__all__ = ["EXPERIMENTS", "planned", "run"]


def _published_cells(variants: tuple[str, ...]) -> list[Cell]:
    return [
        Cell(*shape, mode="graph", cache=cache, variants=variants)
        for shape in published_shapes()
        for cache in PUBLISHED_TIMES
    ]


def _reference_cells() -> list[Cell]:
    return _published_cells((*READS, TORCH, *MIRRORS))


def _peer_cells() -> list[Cell]:
    own = (name for name, info in registry.VARIANTS.items() if "cuda" in info.targets)
    return _published_cells((*READS, *PEERS, *own))


def _candidates(cell: Cell, device: Device) -> dict[str, Candidate]:
    inputs = Inputs(cell.logits(), device, cell.cache)
    return {variant: stand_for(variant, cell.k, inputs) for variant in cell.variants}


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "reference_shapes",
            "How do the mirrors compare with the kernels that they mirror, and with the floor?",
            _reference_cells,
            _candidates,
        ),
        Experiment(
            "neg_inf_contention",
            "What does a bin that most of a row falls into cost, and what do the remedies save?",
            contention_cells,
            _candidates,
        ),
        Experiment(
            "latency_vs_batch",
            "Does the time of one block a row grow with the rows, and what do more threads change?",
            latency_cells,
            latency_candidates,
            latency_counters,
        ),
        Experiment(
            "peer_shapes",
            "How do this package's variants compare with what users would run instead?",
            _peer_cells,
            _candidates,
        ),
        Experiment(
            "vllm_matrix",
            "How do the 1008 cases of the source compare before and after its change?",
            matrix.matrix_cells,
            matrix.matrix_candidates,
            matrix.read_bytes,
            effort=matrix.MATRIX_EFFORT,
            arguments_are_axes=True,
        ),
        Experiment(
            "profiled_pairs",
            "Do events and the device's profiler agree on the time of a selection?",
            matrix.profiled_cells,
            matrix.matrix_candidates,
            matrix.read_bytes,
            measured=matrix.profiled,
            effort=matrix.MATRIX_EFFORT,
            arguments_are_axes=True,
        ),
        Experiment(
            "graph_calls",
            "What does a captured graph save, of one call and of many?",
            graphs.call_cells,
            _candidates,
        ),
        Experiment(
            "graph_replay",
            "How long does one captured graph take on lengths over three orders of magnitude?",
            graphs.replay_cells,
            graphs.replay_candidates,
            measured=graphs.replayed,
        ),
        Experiment(
            "split_policy",
            "How much slower is the split count of a policy than the best one?",
            graphs.policy_cells,
            graphs.policy_candidates,
            graphs.read_bytes,
            effort=graphs.POLICY_EFFORT,
            arguments_are_axes=True,
        ),
        Experiment(
            "delegate_matrix",
            "How do the 1008 cases of the source compare with its change, and with delegates?",
            delegate.matrix_cells,
            matrix.matrix_candidates,
            delegate.matrix_counters,
            effort=matrix.MATRIX_EFFORT,
            arguments_are_axes=True,
        ),
        Experiment(
            "delegate_shapes",
            "How close does the delegate selection come to the floor on the published shapes?",
            delegate.shape_cells,
            delegate.shape_candidates,
            delegate.member,
            effort=delegate.SHAPES_EFFORT,
        ),
        Experiment(
            "delegate_rows",
            "How much longer does the delegate selection take on adversarial rows?",
            delegate.row_cells,
            delegate.host_candidates,
            delegate.member,
            effort=matrix.MATRIX_EFFORT,
        ),
        Experiment(
            "delegate_large_k",
            "How does the delegate selection compare where k is 1024, 2048 or 4096?",
            delegate.large_k_cells,
            delegate.shape_candidates,
            delegate.member,
            effort=matrix.MATRIX_EFFORT,
        ),
        Experiment(
            "delegate_growth",
            "Does the time of the delegate selection grow with the bytes as the floor does?",
            delegate.growth_cells,
            delegate.shape_candidates,
            delegate.member,
            effort=matrix.MATRIX_EFFORT,
        ),
        Experiment(
            "delegate_members",
            "How much slower is the member that a shape is given than the best one?",
            delegate.member_cells,
            delegate.shape_candidates,
            delegate.member,
            effort=matrix.MATRIX_EFFORT,
        ),
        Experiment(
            "cpu_selection",
            "How near to one read does the selection on a CPU come, and beside what?",
            cpu.cells,
            cpu.candidates,
            measured=cpu.measured,
            effort=cpu.EFFORT,
            arguments_are_axes=True,
            device=cpu.CpuDevice,
            target=cpu.target,
        ),
    )
}


def _identity(fields: Mapping[str, Any], variant: str, calls_per_graph: int | None) -> str:
    return json.dumps([variant, calls_per_graph, dict(fields)], sort_keys=True)


def _recorded_before(
    recorder: results.Recorder, experiment: str, target: str
) -> dict[str, set[str]]:
    """Status -> identities of what the recorder's file has, from these kernels on this device."""
    path = recorder.path(kind="measured", target=target, experiment=experiment)
    frame = results.load([file for file in (results.packed(path), path) if file.exists()])
    recorded = frame[
        (frame["experiment"] == experiment)
        & (frame["kernel_hash"] == recorder.run.code["kernel_hash"])
        & (frame["device"] == recorder.run.device_name(target))
    ]
    # A cell without a number makes floats of a whole column.
    numbers = dict.fromkeys(("num_rows", "num_cols", "k", "next_n", "seed"), "int64")
    found: dict[str, set[str]] = {status: set() for status in results.STATUSES}
    for record in recorded.astype(numbers).to_dict("records"):
        fields = {name: record[name] for name in CELL_FIELDS}
        calls = record["calls_per_graph"]
        # A cell that doesn't say how many calls its graph has, has a time under any number.
        asked = {None} if calls is None or calls != calls else {None, int(calls)}
        found[record["status"]] |= {_identity(fields, record["variant"], one) for one in asked}
    return found


def _left(
    cells: list[Cell], recorder: results.Recorder, experiment: str, device: Device
) -> list[Cell]:
    """The cells with a variant that has no time yet, and was not skipped for what holds still."""
    recorded = _recorded_before(recorder, experiment, device.target)

    def is_settled(cell: Cell, variant: str) -> bool:
        if _identity(cell.fields(), variant, cell.calls_per_graph) in recorded["ok"]:
            return True
        # What was skipped had no graph, hence no calls in it.
        if _identity(cell.fields(), variant, None) not in recorded["skipped"]:
            return False
        return refusal(variant, device, cell.num_rows, cell.num_cols, cell.k) is not None

    return [cell for cell in cells if not all(is_settled(cell, name) for name in cell.variants)]


def _line(cell: Cell, variant: str, timing: Timing) -> str:
    if timing.status != "ok":
        return f"{cell}: {variant} {timing.status}: {timing.reason}"
    spread = f"{100 * timing.relative_iqr:.1f}%, {len(timing.samples_us)} samples"
    return f"{cell}: {variant} {timing.median_us:.2f} us ({spread})"


def planned(
    name: str, axes: Mapping[str, Sequence[Any]], shard: tuple[int, int]
) -> tuple[Experiment, list[Cell]]:
    """The experiment and those of its cells that are asked for, in the order of a run.

    Parameters
    ----------
    name, axes, shard
        As for `run`.

    Returns
    -------
    Experiment, list of Cell

    Raises
    ------
    ValueError
        Unknown experiment, axis or value, or a bad shard.
    """
    experiment = EXPERIMENTS.get(name.replace("-", "_"))
    if experiment is None:
        raise ValueError(f"experiment must be one of {', '.join(EXPERIMENTS)}, got {name!r}")
    first, step = shard
    if not 1 <= first <= step:
        raise ValueError(f"shard must be (i, n) with 1 <= i <= n, got {shard}")
    cells = experiment.chosen(axes)
    # Neighbours in the list are alike: clocks and heat would follow the axes.
    random.Random(0).shuffle(cells)
    return experiment, cells[first - 1 :: step]


def run(
    name: str,
    recorder: results.Recorder,
    *,
    device: Device | None = None,
    axes: Mapping[str, Sequence[Any]] | None = None,
    shard: tuple[int, int] = (1, 1),
    cells: Sequence[Cell] | None = None,
    resume: bool = False,
    effort: Effort | None = None,
    track: Callable[[Sequence[Cell], str], Iterable[Cell]] | None = None,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Run an experiment and record it.

    Parameters
    ----------
    name : str
        Key of `EXPERIMENTS`; dashes are read as underscores.
    recorder : topk_lab.results.Recorder
        Takes a record for each cell and variant, as soon as the cell has run.
    device : Device, optional
        Default: the experiment's own, which is torch's current GPU for most.
    axes : mapping of str to sequence, optional
        Values of some axes, as `Experiment.chosen` takes them.
    shard : (int, int), default (1, 1)
        (i, n): every n-th cell from the i-th on, 1 <= i <= n.
    cells : sequence of Cell, optional
        These alone, in this order; `axes` and `shard` choose none then.
    resume : bool, default False
        Leave out cells whose every variant the recorder's file, or what was packed of it, has a
        time of, from the same kernels on the same device; or skipped, if it is refused still.
    effort : Effort, optional
        How many samples a cell takes; default: the experiment's own.
    track : callable, optional
        Wraps the list of cells, to show progress.
    say : callable, default print
        Takes a line on every cell and variant.

    Returns
    -------
    list of dict
        The cells as recorded. They run in an order of their own, the same every time.

    Raises
    ------
    ValueError
        Unknown experiment, axis or value, a bad shard, no GPU.
    """
    experiment, asked = planned(name, axes or {}, shard)
    cells = asked if cells is None else list(cells)
    device = device or experiment.device()
    if resume:
        cells = _left(cells, recorder, experiment.name, device)
    written = []
    for cell in cells if track is None else track(cells, experiment.name):
        candidates = experiment.candidates(cell, device)
        timings = experiment.measured(cell, candidates, device, effort or experiment.effort)
        for variant, timing in timings.items():
            counters = experiment.counters(cell, variant, device)
            target = experiment.target(variant, device)
            written.append(
                _record(recorder, experiment.name, cell, target, variant, timing, counters)
            )
            say(_line(cell, variant, timing))
    return written


def _record(
    recorder: results.Recorder,
    experiment: str,
    cell: Cell,
    target: str,
    variant: str,
    timing: Timing,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    counters = {"input_bytes": 4 * cell.num_rows * cell.num_cols, **timing.counters(), **more}
    return recorder.record(
        experiment=experiment,
        target=target,
        variant=variant,
        status=timing.status,
        reason=timing.reason,
        calls_per_graph=timing.calls_per_graph,
        samples_us=timing.samples_us or None,
        counters=counters,
        **cell.fields(),
    )
