"""Does the experiment on CPUs time exact answers, on the threads that it says, beside one read?"""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from topk_lab import bench, environment, figures, models, results
from topk_lab.bench import EXPERIMENTS, cpu
from topk_lab.bench.timing import Effort

EXPERIMENT = EXPERIMENTS["cpu_selection"]
QUICK = Effort(min_samples=2, max_seconds=0.0, warm_up_seconds=0.0)


def small(threads=1, workload="normal", **changes):
    cell = cpu._cell(3, 16_384, 64, threads, workload)
    return dataclasses.replace(cell, **changes)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Records of two shapes and a workload, really timed."""
    folder = tmp_path_factory.mktemp("records")
    recorder = results.Recorder(folder, environment.RunInfo.capture(kernel_hash="c0ffee" * 4))
    experiment = dataclasses.replace(
        EXPERIMENT, cells=lambda: [small(), small(num_rows=5), small(workload="constant")]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EXPERIMENTS, "cpu_selection", experiment)
        bench.run("cpu_selection", recorder, effort=QUICK, say=lambda line: None)
    return results.load(folder)


def test_cells_cover_what_is_claimed():
    cells = EXPERIMENT.cells()
    identities = [str(cell.fields()) for cell in cells]
    assert len(set(identities)) == len(identities)
    long = {
        (cell.num_rows, cell.num_cols, cell.k)
        for cell in cells
        if cell.workload == "normal" and cell.workload_args["threads"] == 2
    }
    assert {(rows, columns, k) for rows in cpu.ROWS for columns in cpu.COLUMNS for k in cpu.KS} <= (
        long
    )
    assert {cell.k for cell in cells} == {1, 64, 512, 2048, 4096}
    assert {cell.num_cols for cell in cells} >= {512, 1_048_576}
    for cell in cells:
        assert cell.k <= cell.num_cols
        assert {"torch.topk", "cpu_delegate"} <= set(cell.variants)
        assert ("read_amax" in cell.variants) == (cell.workload != "nan")
        assert (cpu.NUMPY in cell.variants) == (4 * cell.num_rows * cell.num_cols <= 2**26)


def test_every_candidate_is_exact_and_timed(recorded):
    assert set(recorded["status"]) == {"ok"}
    assert set(recorded["kind"]) == {"measured"}
    assert recorded.groupby("variant")["target"].unique().map(list).to_dict() == {
        "cpu_delegate": ["numba"],
        "numpy.argpartition": ["torch"],
        "read_amax": ["torch"],
        "torch.topk": ["torch"],
    }
    assert (recorded["median_us"] > 0).all()


def test_a_wrong_answer_has_no_time(monkeypatch):
    def wrong(k, logits):
        out = torch.zeros(len(logits), k, dtype=torch.int64)
        return lambda: out.copy_(torch.arange(k)), out

    monkeypatch.setattr(cpu, "_torch_topk", wrong)
    device = cpu.CpuDevice()
    timings = cpu.measured(small(), cpu.candidates(small(), device), device, QUICK)
    assert timings["torch.topk"].status == "wrong"
    assert timings["torch.topk"].samples_us == ()
    assert timings["cpu_delegate"].status == "ok"


def test_threads_are_set_while_it_is_timed_and_put_back():
    seen = []
    device = cpu.CpuDevice()
    cell = small(threads=2, variants=("cpu_delegate",))
    ((name, candidate),) = cpu.candidates(cell, device).items()
    (call,) = candidate.calls

    def noted():
        seen.append(torch.get_num_threads())
        call()

    before = torch.get_num_threads()
    cpu.measured(cell, {name: dataclasses.replace(candidate, calls=(noted,))}, device, QUICK)
    assert set(seen) == {2}
    assert torch.get_num_threads() == before


def test_extra_memory_is_what_a_call_allocates():
    assert 10**6 <= cpu.extra_bytes(lambda: np.ones(10**6, np.uint8)) <= 10**6 + 5000


@pytest.mark.parametrize(
    ("mode", "cache", "reason"),
    [("graph", "warm", "mode must be eager"), ("eager", "pressure_256MiB", "cache must be warm")],
)
def test_what_a_cpu_lacks_is_refused(mode, cache, reason):
    device = cpu.CpuDevice()
    candidates = cpu.candidates(small(variants=("cpu_delegate",)), device)
    if mode == "graph":
        timing = bench.measure(candidates, device, mode=mode, cache=cache)["cpu_delegate"]
        assert timing.status == "error"
        assert reason in timing.reason
    else:
        with pytest.raises(ValueError, match=reason):
            bench.measure(candidates, device, mode=mode, cache=cache, effort=QUICK)


def test_times_beside_the_floor_and_the_others(recorded):
    times = models.cpu_times(recorded)
    assert len(times) == 3
    for line in times.to_dict("records"):
        of_cell = recorded[
            (recorded["num_rows"] == line["num_rows"]) & (recorded["workload"] == line["workload"])
        ].set_index("variant")["median_us"]
        assert line["time_us"] == of_cell["cpu_delegate"]
        assert line["over_floor"] == of_cell["cpu_delegate"] / of_cell["read_amax"]
        assert line["torch_speedup"] == of_cell["torch.topk"] / of_cell["cpu_delegate"]
        assert line["numpy_speedup"] == of_cell["numpy.argpartition"] / of_cell["cpu_delegate"]
        assert line["extra_bytes"] >= 8 * (2 * 64 + 1024)
    (hard,) = models.cpu_workloads(times).to_dict("records")
    normal = times[(times["num_rows"] == 3) & (times["workload"] == "normal")]["time_us"].item()
    constant = times[times["workload"] == "constant"]["time_us"].item()
    assert (hard["workload"], hard["ratio"]) == ("constant", constant / normal)


def test_summary_counts_long_normal_rows(recorded):
    times = models.cpu_times(recorded)
    short = times.assign(num_cols=512)
    large = times.assign(num_cols=65_536, input_bytes=10**8, over_floor=7.0, extra_bytes=10**6)
    (line,) = models.cpu_summary(pd.concat([times, short, large])).to_dict("records")
    normal = times[times["workload"] == "normal"]["torch_speedup"]
    assert (line["k"], line["threads"], line["shapes"]) == (64, 1, 4)
    assert line["least_speedup"] == normal.min()
    np.testing.assert_allclose(line["torch_speedup"], np.sqrt(normal.prod()))
    assert (line["over_floor"], line["extra_share"]) == (7.0, 0.01)


def test_what_was_not_timed_is_not_there(recorded):
    times = models.cpu_times(recorded[recorded["variant"].isin(["cpu_delegate", "torch.topk"])])
    assert len(times) == 3
    assert times[["floor_us", "over_floor", "numpy_us", "numpy_speedup"]].isna().all(axis=None)
    with pytest.raises(ValueError, match="must hold times of cpu_delegate, got none"):
        models.cpu_times(recorded[recorded["variant"] != "cpu_delegate"])
    with pytest.raises(ValueError, match="must hold times of cpu_selection, got none"):
        models.cpu_times(recorded[:0])


def test_the_figure_shows_each_time_in_reads(recorded):
    times = models.cpu_times(recorded)
    normal = times[times["workload"] == "normal"]
    ax = figures.cpu_over_floor(normal)
    ours, others, numpys = ax.get_lines()[:3]
    np.testing.assert_allclose(ours.get_ydata(), normal["over_floor"])
    np.testing.assert_allclose(others.get_ydata(), normal["torch_us"] / normal["floor_us"])
    np.testing.assert_allclose(numpys.get_xdata(), normal["input_bytes"] / 1e6)
    with pytest.raises(ValueError, match="a shape twice"):
        figures.cpu_over_floor(times)
