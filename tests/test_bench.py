"""Is only what is exact timed, and is the time what its name says?"""

import itertools
import math
import statistics
from collections import OrderedDict
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from topk_lab import results, schedules
from topk_lab.bench import (
    EXPERIMENTS,
    PEERS,
    Candidate,
    Effort,
    Timing,
    TorchDevice,
    against_published,
    candidates,
    geomeans,
    latency,
    measure,
    run,
)

SMALLEST = {"num_rows": ["6"], "variant": ["torch.topk", "read_amax"]}
SHORT = Effort(min_samples=6, max_seconds=0, warm_up_seconds=0)


class Event:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.device.log.append("event")
        self.now = self.device.now

    def elapsed_time(self, end):
        return (end.now - self.now) / 1e3


class StandIn:
    """A device whose clock moves by what the kernels launched on it are said to cost (us).

    A launch reads a buffer, from memory at 1.6 times the cost unless it is among the last ones
    read; a graph costs something to launch, and more the first time.
    """

    target = "cuda"
    place = "cpu"
    cache_bytes = 1000
    eager_launch, graph_launch, first_graph_launch = 5.0, 10.0, 500.0

    def __init__(self, pace=lambda now: 1.0):
        self.now = 0.0
        self.pace = pace
        self.nodes = None
        self.log = []
        self.cached = OrderedDict()

    def launch(self, name, us, effect=lambda: None, nbytes=0):
        if self.nodes is not None:
            self.nodes.append((name, us, effect, nbytes))
            return
        self.now += self.eager_launch
        self._execute(name, us, effect, nbytes)

    def _execute(self, name, us, effect, nbytes):
        self.log.append(name)
        hit = nbytes and self.cached.pop(name, None)
        if nbytes:
            self.cached[name] = nbytes
            while sum(self.cached.values()) > self.cache_bytes:
                self.cached.popitem(last=False)
        self.now += us * self.pace(self.now) * (1.6 if nbytes and not hit else 1.0)
        effect()

    def capture(self, calls):
        self.nodes = []
        for call in calls:
            call()
        nodes, self.nodes = self.nodes, None
        replays = itertools.count()

        def replay():
            self.log.append("replay")
            self.now += self.graph_launch if next(replays) else self.first_graph_launch
            for node in nodes:
                self._execute(*node)

        return replay

    def event(self):
        return Event(self)

    def write_pressure(self):
        self.log.append("pressure")
        self.cached.clear()
        self.now += 60.0

    def read_other(self, nbytes):
        self.log.append(f"read {nbytes}")
        self.cached.clear()
        self.now += 60.0

    def synchronize(self):
        self.log.append("synchronize")

    def clocks(self):
        return {"clock_mhz": 1980.0 / (self.pace(self.now) or math.inf)}


class Doubling:
    """The work to be timed: out = 2 * given."""

    def __init__(self, device, name="double", us=8.0, nbytes=0, copies=1, call=None):
        self.given, self.out = 1, [None] * copies
        self.device = device

        def write(copy):
            self.out[copy] = 2 * self.given

        def launch(copy):
            device.launch(f"{name}{copy or ''}", us, lambda: write(copy), nbytes)

        calls = tuple(partial(call or launch, copy) for copy in range(copies))
        self.candidate = Candidate(calls, self.prepare, self.check, nbytes)

    def prepare(self):
        self.given, self.out = 21, [-777] * len(self.out)

    def check(self):
        wrong = [out for out in self.out if out != 42]
        return f"{wrong[0]} is left behind, 42 was due" if wrong else None


def test_a_kernel_that_runs_at_capture_but_is_not_recorded_is_found_out():
    device = StandIn()
    good = Doubling(device)
    escaped = Doubling(device, call=lambda copy: escaped.out.__setitem__(0, 2 * escaped.given))
    timings = measure({"escaped": escaped.candidate, "good": good.candidate}, device, effort=SHORT)
    assert list(timings) == ["escaped", "good"]
    assert timings["escaped"] == Timing("wrong", "-777 is left behind, 42 was due")
    assert timings["good"].status == "ok"
    assert len(timings["good"].samples_us) == 6


def test_a_graph_that_kept_the_input_of_its_capture_is_found_out():
    device = StandIn()

    def launch_with_given_of_now(copy):
        given = stale.given
        device.launch("double", 8.0, lambda: stale.out.__setitem__(0, 2 * given))

    stale = Doubling(device, call=launch_with_given_of_now)
    timing = measure({"stale": stale.candidate}, device, effort=SHORT)["stale"]
    assert timing == Timing("wrong", "2 is left behind, 42 was due")


@pytest.mark.parametrize("calls", [1, 16, 64])
def test_launch_cost_is_divided_by_the_calls_of_a_graph_and_their_number_reported(calls):
    device = StandIn()
    timing = measure(
        {"double": Doubling(device).candidate}, device, calls_per_graph=calls, effort=SHORT
    )["double"]
    assert timing.calls_per_graph == calls
    assert timing.samples_us == pytest.approx([8 + 10 / calls] * 6, abs=1e-4)


def test_the_slow_first_replay_is_no_sample():
    device = StandIn()
    timing = measure({"double": Doubling(device).candidate}, device, effort=SHORT)["double"]
    assert max(timing.samples_us) == min(timing.samples_us) == pytest.approx(8.5)


def test_caches_are_what_the_name_of_their_state_says():
    device = StandIn()
    kernels = {
        cache: Doubling(device, nbytes=400, copies=9 if cache == "cold" else 1)
        for cache in results.CACHES
    }
    timings = {
        cache: measure({"double": kernel.candidate}, device, cache=cache, effort=SHORT)["double"]
        for cache, kernel in kernels.items()
    }
    assert {cache: timing.calls_per_graph for cache, timing in timings.items()} == {
        "warm": 20,
        "pressure_256MiB": 1,
        "cold": 9,
    }
    assert timings["warm"].median_us == pytest.approx(8 + 10 / 20)
    assert timings["pressure_256MiB"].median_us == pytest.approx(1.6 * 8 + 10)
    assert timings["cold"].median_us == pytest.approx(1.6 * 8 + 10 / 9, abs=1e-4)


@pytest.mark.parametrize("copies", [1, 2, 8, 9])
def test_copies_too_small_to_fill_a_cache_are_pushed_out_by_a_read(copies):
    device = StandIn()
    timing = measure(
        {"double": Doubling(device, nbytes=400, copies=copies).candidate},
        device,
        cache="cold",
        effort=SHORT,
    )["double"]
    assert timing.calls_per_graph == copies
    # Cold whatever the copies: each is read once, and all that was cached before it is gone.
    assert timing.median_us == pytest.approx(1.6 * 8 + 10 / copies, abs=1e-4)
    reads = [word for word in device.log if word.startswith("read")]
    assert reads == (["read 3000"] * 7 if copies < 9 else [])


def test_no_more_samples_are_kept_than_asked_for():
    restless = StandIn(pace=lambda now: 1 + int(now) % 2)
    capped = Effort(min_samples=5, max_seconds=60, max_samples=17, warm_up_seconds=0)
    timing = measure({"double": Doubling(restless, us=7.3).candidate}, restless, effort=capped)
    assert len(timing["double"].samples_us) == 17
    with pytest.raises(ValueError, match="max_samples must be at least min_samples = 5, got 4"):
        Effort(min_samples=5, max_samples=4)


def test_pressure_comes_right_before_what_is_timed():
    device = StandIn()
    measure({"double": Doubling(device).candidate}, device, cache="pressure_256MiB", effort=SHORT)
    log = [word for word in device.log if word != "synchronize"]
    timed = [log[at : at + 5] for at, word in enumerate(log) if word == "pressure"]
    assert timed == [["pressure", "event", "replay", "double", "event"]] * 7


def test_an_eager_call_begins_on_an_idle_stream_and_shows_its_launch():
    device = StandIn()
    timing = measure({"double": Doubling(device).candidate}, device, mode="eager", effort=SHORT)
    assert timing["double"].calls_per_graph is None
    assert timing["double"].samples_us == (13.0,) * 6
    first = device.log.index("event")
    assert device.log[first - 2 : first + 3] == [
        "double",
        "synchronize",
        "event",
        "double",
        "event",
    ]


def test_eager_calls_take_turns_on_the_inputs_that_keep_caches_cold():
    device = StandIn()
    kernel = Doubling(device, nbytes=400, copies=9)
    timing = measure(
        {"double": kernel.candidate}, device, mode="eager", cache="cold", effort=SHORT
    )["double"]
    assert timing.samples_us == pytest.approx((1.6 * 8 + 5,) * 6)


def test_rounds_time_everyone_once_in_an_order_drawn_anew():
    device = StandIn()
    kernels = {name: Doubling(device, name).candidate for name in "abc"}
    measure(kernels, device, calls_per_graph=1, effort=replace(SHORT, min_samples=20))
    first = device.log.index("event")
    launched = [word for word in device.log[first:] if word in kernels]
    orders = ["".join(launched[at : at + 6 : 2]) for at in range(0, len(launched), 6)]
    assert len(orders) == 21
    assert {"".join(sorted(order)) for order in orders} == {"abc"}
    assert len(set(orders)) > 3


def test_a_clock_that_falls_falls_for_all_and_is_reported():
    def pace(now):
        return 1 + 0.19 * min(now / 30_000, 1)

    device = StandIn(pace)
    kernels = {
        "a": Doubling(device, "a", 8).candidate,
        "b": Doubling(device, "b", 12).candidate,
        "a again": Doubling(device, "a", 8).candidate,
    }
    timings = measure(kernels, device, effort=replace(SHORT, min_samples=40))
    assert timings["a again"].median_us / timings["a"].median_us == pytest.approx(1, abs=0.03)
    assert timings["b"].median_us / timings["a"].median_us == pytest.approx(12 / 8, abs=0.03)
    assert timings["a"].drift > 0.05
    before, after = timings["a"].clocks["clock_mhz"]
    assert before > after == pytest.approx(1980 / 1.19)
    counters = timings["a"].counters()
    assert counters["drift"] == round(timings["a"].drift, 5)
    assert counters["clock_mhz"] == [round(before, 1), round(after, 1)]


@pytest.mark.parametrize("samples", [(), (1.0, math.nan), (0.0,), (-1.0, 2.0), (math.inf,)])
def test_no_times_give_no_number(samples):
    with pytest.raises(ValueError, match="samples_us must"):
        Timing("ok", samples_us=samples)


def test_a_clock_that_stands_still_is_an_error_and_no_number():
    device = StandIn(pace=lambda now: 0.0)
    device.graph_launch = 0.0
    timing = measure({"double": Doubling(device).candidate}, device, effort=SHORT)["double"]
    assert timing == Timing("error", "samples_us must be finite and above 0, got 0.0 at 0 of 6")


def test_times_of_an_inexact_candidate_are_refused():
    with pytest.raises(ValueError, match="samples_us must be empty for status wrong"):
        Timing("wrong", "a duplicate", samples_us=(1.0,))


@pytest.mark.parametrize("error", [ValueError("k must be 512,\ngot 3"), RuntimeError("no memory")])
def test_a_candidate_that_refuses_does_not_stop_the_others(error):
    device = StandIn()

    def refuse(copy):
        raise error

    timings = measure(
        {
            "refusing": Doubling(device, call=refuse).candidate,
            "double": Doubling(device).candidate,
        },
        device,
        effort=SHORT,
    )
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    assert timings["refusing"] == Timing("error", reason)
    assert timings["double"].status == "ok"


@pytest.mark.parametrize("cache", results.CACHES)
def test_a_candidate_that_can_not_be_run_here_is_skipped_with_its_reason(cache):
    device = StandIn()
    kernels = {"absent": Candidate.skip("not here"), "double": Doubling(device).candidate}
    timings = measure(kernels, device, cache=cache, effort=SHORT)
    assert list(timings) == ["absent", "double"]
    assert timings["absent"] == Timing("skipped", "not here")
    assert timings["double"].status == "ok"
    alone = measure({"absent": Candidate.skip("not here")}, device, cache=cache)
    assert alone == {"absent": Timing("skipped", "not here")}


def test_rounds_end_when_settled_and_no_later_than_asked():
    device = StandIn()
    patient = Effort(min_samples=15, max_seconds=60, warm_up_seconds=0)
    steady = measure({"double": Doubling(device).candidate}, device, effort=patient)
    assert len(steady["double"].samples_us) == 20
    restless = StandIn(pace=lambda now: 1 + int(now) % 2)
    hasty = replace(patient, max_seconds=0)
    timing = measure({"double": Doubling(restless, us=7.3).candidate}, restless, effort=hasty)
    assert len(timing["double"].samples_us) == 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "lazy"}, "mode must be one of graph, eager, got 'lazy'"),
        ({"cache": "hot"}, "cache must be one of warm, pressure_256MiB, cold, got 'hot'"),
        ({"calls_per_graph": 0}, "calls_per_graph must be at least 1, got 0"),
        (
            {"calls_per_graph": 2, "cache": "pressure_256MiB"},
            "calls_per_graph must be None for graph with pressure_256MiB caches, got 2",
        ),
    ],
)
def test_what_can_not_be_measured_is_refused(arguments, message):
    device = StandIn()
    with pytest.raises(ValueError, match=f"^{message}$"):
        measure({"double": Doubling(device, nbytes=400).candidate}, device, **arguments)


def test_several_inputs_are_refused_where_only_one_would_be_timed():
    device = StandIn()
    kernel = Doubling(device, copies=3)
    with pytest.raises(ValueError, match="calls of double must be one for warm caches, got 3"):
        measure({"double": kernel.candidate}, device)
    with pytest.raises(ValueError, match="min_samples must be at least 1, got 0"):
        Effort(min_samples=0)


def test_without_a_gpu_nothing_is_timed_and_the_reason_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"a time must be taken on a hip or cuda device, torch .*"):
        TorchDevice()
    recorder = results.Recorder(tmp_path, run_on())
    with pytest.raises(ValueError, match="hip or cuda device"):
        run("reference_shapes", recorder)
    assert list(tmp_path.iterdir()) == []


def run_on(device="NVIDIA H200", run_id="0" * 32, time="2026-01-01T00:00:00Z", kernels="ab" * 8):
    return results.RunInfo(
        run=run_id,
        time=time,
        environment={
            "os": "Debian",
            "machine": "x86_64",
            "cpu": "a CPU",
            "cpu_threads": 16,
            "python": "3.12.3",
            "packages": {"torch": "2.11.0"},
            "device": {
                "name": device,
                "arch": "sm_90",
                "compute_units": 132,
                "memory_bytes": 1,
                "runtime": "CUDA 13.0",
                "driver": None,
            },
        },
        code={
            "package": "0.1.0",
            "git": None,
            "dirty": None,
            "kernel_hash": kernels,
            "compiler": "nvcc",
        },
    )


class Calling(StandIn):
    """Replays Python calls, each of which is said to take 10 us; those that repeat, once."""

    cache_bytes = 100_000

    def capture(self, calls):
        def replay():
            for call in dict.fromkeys(calls):
                call()
            self.now += 10.0 * len(calls)

        return replay


def test_reference_shapes_are_those_of_the_published_times():
    experiment = EXPERIMENTS["reference_shapes"]
    cells = experiment.cells()
    published = results.load_published("peers_h200")
    shapes = {(cell.num_rows, cell.num_cols, cell.workload) for cell in cells}
    assert len(cells) == 36
    assert len(shapes) == 18
    assert {shape[:2] for shape in shapes} == set(
        zip(published["rows"], published["cols"], strict=True)
    )
    assert {cell.workload: cell.workload_args for cell in cells} == {
        "normal": {},
        "masked_random": {"fraction": 0.9},
        "masked_prefix": {"finite": 524, "columns_reversed": True},
    }
    (masked,) = (cell for cell in cells[::2] if cell.workload == "masked_prefix")
    finite = np.isfinite(replace(masked, num_rows=2).logits())
    assert finite.shape == (2, 262144)
    assert finite[:, -524:].all()
    assert finite.sum() == 2 * 524
    assert experiment.axes()["cache"] == ("warm", "pressure_256MiB")
    assert experiment.axes()["variant"] == (
        *candidates.READS,
        "torch.topk",
        "vllm_generic",
        "vllm_k512",
    )


def test_axes_choose_cells_and_variants():
    experiment = EXPERIMENTS["reference_shapes"]
    chosen = experiment.chosen({"num_rows": ["24"], "num_cols": [262144], "cache": ["warm"]})
    assert [cell.workload for cell in chosen] == ["normal", "masked_random", "masked_prefix"]
    assert {cell.cache for cell in chosen} == {"warm"}
    (cell,) = experiment.chosen(
        {"num_rows": ["6"], "cache": ["warm"], "variant": ["vllm_k512", "torch.topk"]}
    )
    assert cell.variants == ("torch.topk", "vllm_k512")
    with pytest.raises(ValueError, match=r"axis must be one of num_rows, .*, got 'rows'"):
        experiment.chosen({"rows": [1]})
    with pytest.raises(ValueError, match=r"num_rows must be among 1, 8, 24, .*, got '7'"):
        experiment.chosen({"num_rows": ["7"]})


@pytest.fixture
def record(tmp_path):
    """Run reference_shapes at its smallest shape; returns what was said."""

    def run_once(kernels="ab" * 8, run_id="0" * 32, **arguments):
        recorder = results.Recorder(tmp_path, run_on(run_id=run_id, kernels=kernels), check=True)
        said = []
        arguments = {"axes": {"num_rows": ["6"]}, "effort": SHORT} | arguments
        run("reference-shapes", recorder, device=Calling(), say=said.append, **arguments)
        return said

    return run_once


def test_every_variant_of_a_cell_is_checked_timed_and_recorded(record, tmp_path):
    said = record()
    assert results.validate(tmp_path) == len(said) == 16
    assert (
        "6 x 10240 masked_random fraction=0.9, graph, warm: vllm_k512 10.00 us (0.0%, 6 samples)"
    ) in said
    frame = results.load(tmp_path / "measured" / "nvidia-h200" / "reference_shapes.jsonl")
    assert set(frame["variant"]) == set(EXPERIMENTS["reference_shapes"].axes()["variant"])
    assert set(frame["status"]) == {"ok"}
    assert set(frame["median_us"]) == {10.0}
    assert set(zip(frame["cache"], frame["calls_per_graph"], strict=True)) == {
        ("warm", 20),
        ("pressure_256MiB", 1),
    }
    cell = frame[frame["variant"] == "vllm_k512"].iloc[0]
    assert (cell["num_rows"], cell["num_cols"], cell["k"], cell["next_n"]) == (6, 10240, 512, 0)
    assert (cell["workload"], cell["workload_args"]) == ("masked_random", {"fraction": 0.9})
    assert cell["counters"]["input_bytes"] == 4 * 6 * 10240
    assert cell["policy"]["final_capacity"] == 1024


def test_an_answer_that_is_not_exact_is_recorded_without_a_time(record, tmp_path, monkeypatch):
    def reads_nothing(logits):
        return lambda: None, torch.empty(len(logits), 1)

    def off_by_one(topk, logits, row_ends, k, out):
        return lambda: out.copy_(topk(logits, k + 1, dim=1).indices[:, 1:])

    monkeypatch.setitem(candidates.READS, "read_amax", reads_nothing)
    monkeypatch.setitem(PEERS, "torch.topk", replace(PEERS["torch.topk"], launch=off_by_one))
    record(axes={"num_rows": ["6"], "cache": ["warm"]})
    frame = results.load(tmp_path).set_index("variant")
    assert frame.loc["read_amax", "status"] == frame.loc["torch.topk", "status"] == "wrong"
    assert frame.loc["read_amax", "reason"] == "6 rows; row 0: its greatest logit was not found"
    assert frame.loc["torch.topk", "reason"].startswith("6 violations; row 0: wrong_values: ")
    assert frame.loc["torch.topk", "samples_us"] is None
    assert frame.loc["vllm_generic", "status"] == "ok"


def test_cold_caches_are_fed_with_copies_that_are_all_checked():
    device = Calling()
    cell = replace(EXPERIMENTS["reference_shapes"].chosen({"num_rows": ["6"]})[0], cache="cold")
    made = EXPERIMENTS["reference_shapes"].candidates(cell, device)
    assert {len(candidate.calls) for candidate in made.values()} == {3}
    timings = measure(made, device, cache="cold", effort=SHORT)
    assert {timing.status for timing in timings.values()} == {"ok"}
    assert timings["vllm_k512"].calls_per_graph == 3
    spoiled = made["torch.topk"]
    partial = replace(spoiled, calls=(*spoiled.calls[:2], lambda: None))
    assert measure({"torch.topk": partial}, device, cache="cold")["torch.topk"].status == "wrong"


def test_an_interrupted_run_resumes_where_it_stopped(record, tmp_path):
    first = record(axes=SMALLEST | {"cache": ["warm"]})
    rest = record(axes=SMALLEST, resume=True, run_id="1" * 32)
    assert len(first) == len(rest) == 2
    assert all("pressure_256MiB" in line for line in rest)
    assert record(axes=SMALLEST, resume=True) == []
    for path in list(tmp_path.rglob("*.jsonl")):
        results.pack(path)
    assert record(axes=SMALLEST, resume=True) == []
    assert len(record(axes=SMALLEST, resume=True, kernels="cd" * 8)) == 4
    assert len(record(axes=SMALLEST | {"variant": ["vllm_k512", "torch.topk"]}, resume=True)) == 4
    assert set(results.load_runs(tmp_path)) == {"0" * 32, "1" * 32}


def test_shards_share_the_cells_out(record):
    parts = [record(shard=(i, 3), axes=SMALLEST) for i in (1, 2, 3)]
    whole = record(axes=SMALLEST)
    assert sorted(itertools.chain(*parts)) == sorted(whole)
    assert [len(part) for part in parts] == [2, 2, 0]
    with pytest.raises(ValueError, match=r"shard must be \(i, n\) with 1 <= i <= n, got \(4, 3\)"):
        record(shard=(4, 3))


def test_an_experiment_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"one of reference_shapes, neg_inf_contention, latency_vs_batch, .*, got 'nosuch'",
    ):
        run("nosuch", results.Recorder(tmp_path, run_on()))


def write_times(folder, *, mirror=1.0, torch_scale=1.0, floor_scale=1.0, spread=0.0, **run_args):
    """Records of every shape, as multiples of the published times."""
    recorder = results.Recorder(folder, run_on(**run_args), check=False)
    kernels = {
        "read_amax": ("read_once_floor", 1.5 * floor_scale),
        "read_amax_1024": ("read_once_floor", floor_scale),
        "torch.topk": ("torch.topk", torch_scale),
        "vllm_generic": ("vllm_generic", mirror),
        "vllm_k512": ("vllm_k512", mirror),
    }
    names = {"masked_random": "neg_inf_0.9_random", "masked_prefix": "neg_inf_0.998_prefix"}
    published = results.load_published("peers_h200")
    times = published.set_index(["rows", "cols", "distribution", "kernel"])
    for cell in EXPERIMENTS["reference_shapes"].cells():
        shape = (cell.num_rows, cell.num_cols, names.get(cell.workload, cell.workload))
        column = {"warm": "warm_us", "pressure_256MiB": "cold_us"}[cell.cache]
        for variant, (kernel, factor) in kernels.items():
            time = factor * times.at[(*shape, kernel), column]
            recorder.record(
                experiment="reference_shapes",
                target="cuda",
                variant=variant,
                status="ok",
                calls_per_graph=1,
                samples_us=[time * (1 - spread), time, time * (1 + spread)],
                **cell.fields(),
            )
    return results.load(folder)


@pytest.mark.parametrize(
    ("torch_scale", "floor_scale"), [(1.0, 1.0), (1.1, 1.1), (1.0, 2.0), (0.9, 1.5)]
)
def test_published_times_are_scaled_by_what_both_runs_measured(tmp_path, torch_scale, floor_scale):
    records = write_times(tmp_path, mirror=1.1, torch_scale=torch_scale, floor_scale=floor_scale)
    frame = against_published(records)
    assert len(frame) == 18 * 2 * 2
    assert frame["ratio"].tolist() == pytest.approx([1.1 / torch_scale] * 72, rel=1e-3)
    assert frame["floor_ratio"].tolist() == pytest.approx([1.1 / floor_scale] * 72, rel=1e-3)
    assert frame["unscaled"].tolist() == pytest.approx([1.1] * 72, rel=1e-3)
    shape = frame.query("num_rows == 24 and num_cols == 262144 and workload == 'masked_prefix'")
    assert shape.set_index(["variant", "cache"])["published_us"].to_dict() == {
        ("vllm_generic", "pressure_256MiB"): 80.8,
        ("vllm_generic", "warm"): 71.01,
        ("vllm_k512", "pressure_256MiB"): 65.44,
        ("vllm_k512", "warm"): 54.58,
    }


def test_the_last_run_counts_and_scales_come_from_the_same_run(tmp_path):
    write_times(tmp_path, mirror=2.0, torch_scale=1.0)
    later = {"run_id": "1" * 32, "time": "2026-02-01T00:00:00Z"}
    records = write_times(tmp_path, mirror=1.3, torch_scale=1.25, **later)
    assert against_published(records)["ratio"].tolist() == pytest.approx([1.04] * 72, rel=1e-3)
    alone = records[(records["run"] != "1" * 32) | (records["variant"] != "torch.topk")]
    assert against_published(alone)["ratio"].tolist() == pytest.approx([2.0] * 72, rel=1e-3)


def test_times_of_another_device_are_not_compared(tmp_path):
    records = write_times(tmp_path, device="AMD Instinct MI355X")
    with pytest.raises(ValueError, match=r"records must hold a run of .* on NVIDIA H200 .*got 0"):
        against_published(records)


def test_geomeans_show_spread_and_losing_shapes(tmp_path):
    frame = against_published(write_times(tmp_path, mirror=1.02, spread=0.05))
    worst = frame.query("variant == 'vllm_k512' and cache == 'warm'").index[3]
    frame.loc[worst, "ratio"] = 1.5
    table = geomeans(frame).set_index(["variant", "cache"])
    assert len(table) == 4
    losing = table.loc[("vllm_k512", "warm")]
    assert losing["geomean"] == pytest.approx((1.02**17 * 1.5) ** (1 / 18), rel=1e-3)
    assert (losing["worst"], losing["shapes"], losing["above_limit"]) == (1.5, 18, 1)
    even = table.loc[("vllm_generic", "warm")]
    assert even["geomean"] == pytest.approx(1.02, rel=1e-3)
    assert even["above_limit"] == 0
    assert 0.97 < even["low"] < even["geomean"] < even["high"] < 1.07
    assert losing["high"] - losing["low"] > even["high"] - even["low"]
    assert geomeans(frame).equals(geomeans(frame))
    assert statistics.fmean(table["best"]) == pytest.approx(1.02, rel=1e-3)


class OneSm90(Calling):
    """A stand-in of an H200's kind whose calls run on the CPU's twins."""

    arch = "sm_90"


def test_latency_cells_are_those_of_the_question():
    cells = EXPERIMENTS["latency_vs_batch"].cells()
    held = [cell for cell in cells if cell.workload_args]
    sweep = [cell for cell in cells if not cell.workload_args]
    assert {cell.num_cols for cell in sweep} == {2048, 8192, 16_384, 32_768}
    assert {cell.num_cols for cell in held} == {32_768}
    assert {cell.num_rows for cell in sweep} >= {2**power for power in range(11)}
    assert {cell.k for cell in cells} == {1024}
    pair = {"sglang_block512", "sglang_block1024"}
    assert all(pair <= set(cell.variants) for cell in cells)
    threads = {
        schedules.parse_variant(name).policy.block_size
        for cell in sweep
        if cell.cache == "warm"
        for name in cell.variants
        if name.startswith("sglang")
    }
    assert threads == {256, 512, 768, 1024}
    assert {cell.workload_args["blocks_per_unit"] for cell in held} == {1, 2}


def test_latency_is_timed_of_slots_and_says_what_is_resident(tmp_path):
    recorder = results.Recorder(tmp_path, run_on(), check=True)
    axes = {"num_rows": [2], "num_cols": [2048], "cache": ["warm"]}
    run("latency_vs_batch", recorder, device=OneSm90(), axes=axes, effort=SHORT, say=lambda line: 0)
    frame = results.load(tmp_path).set_index("variant")
    assert set(frame["status"]) == {"ok"}
    resident = {
        name: counters.get("resident_blocks") for name, counters in frame["counters"].items()
    }
    # Of 132 units: 2048 threads hold two blocks of 1024, registers three of 512.
    assert resident["sglang_block1024"] == 264
    assert resident["sglang_block512"] == 396
    assert resident["read_amax"] is None


def test_a_slot_of_another_row_is_no_column():
    tables = candidates.PageTables(2, 100, 16, "cpu")
    own = tables.tables.numpy()
    slots = torch.tensor(
        [[own[0, 6] * 16 + 3, own[1, 0] * 16], [own[1, 2] * 16 + 15, -1]], dtype=torch.int32
    )
    assert tables.columns(slots).tolist() == [[99, -2], [47, -1]]
    far = torch.tensor([[2**31 - 1, -5], [0, 0]], dtype=torch.int32)
    assert tables.columns(far)[0].tolist() == [-2, -2]


def test_blocks_are_held_apart_by_the_lds_that_they_ask_for():
    held = [
        cell
        for cell in EXPERIMENTS["latency_vs_batch"].cells()
        if cell.workload_args and cell.num_rows == 64
    ]
    for cell in held:
        wanted = cell.workload_args["blocks_per_unit"]
        for variant in cell.variants:
            counters = latency.latency_counters(cell, variant, OneSm90())
            assert counters["blocks_per_unit"] == wanted
            assert counters["resident_blocks"] == 132 * wanted
    unknown = OneSm90()
    unknown.arch = "sm_80"
    assert latency.latency_counters(held[0], "sglang_block512", unknown) == {}
