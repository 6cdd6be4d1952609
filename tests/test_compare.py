"""Is a cell called faster or slower exactly when its times say so, and is no cell lost?"""

import doctest
import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from topk_lab import results
from topk_lab.bench import compare as comparing
from topk_lab.bench.compare import compare, describe, judge, summary
from topk_lab.cli import main

H200, MI355X = "NVIDIA H200", "AMD Instinct MI355X"
FIRST, SECOND = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"

RUN_IDS = map("{:032x}".format, itertools.count())


def run_on(device=H200, time=FIRST):
    """A run of its own."""
    gpu = {"arch": "sm_90", "compute_units": 132, "memory_bytes": 1, "runtime": "CUDA 13.0"}
    return results.RunInfo(
        run=next(RUN_IDS),
        time=time,
        environment={
            "os": "Debian",
            "machine": "x86_64",
            "cpu": "a CPU",
            "cpu_threads": 16,
            "python": "3.12.3",
            "packages": {"torch": "2.11.0"},
            "device": gpu | {"name": device, "driver": None},
        },
        code={
            "package": "0.1.0",
            "git": None,
            "dirty": None,
            "kernel_hash": "ab" * 8,
            "compiler": "nvcc",
        },
    )


def around(median, spread=0.001, n=30):
    """Times with this median, and quartiles at half the spread on both sides."""
    return [median * (1 + spread * (2 * step / (n - 1) - 1)) for step in range(n)]


def cell(samples_us=None, *, variant="vllm_k512", target="cuda", status="ok", **fields):
    """What a Recorder is given."""
    shape = {"num_rows": 24, "num_cols": 262_144, "k": 512, "workload": "normal", "seed": 0}
    timing = {"mode": "graph", "cache": "warm", "calls_per_graph": 20}
    return {
        "experiment": "reference_shapes",
        "target": target,
        "variant": variant,
        "status": status,
        "reason": None if status == "ok" else f"said {status}",
        "samples_us": samples_us,
        "next_n": 0,
        **shape,
        **timing,
        **fields,
    }


def write(path, *cells, run=None):
    recorder = results.Recorder(path, run or run_on())
    for one in cells:
        recorder.record(**one)
    return path


@pytest.fixture
def records(tmp_path):
    """Cells as `load` returns them, straight from a Recorder."""
    names = itertools.count()

    def made(*cells, **run_args):
        return results.load(
            write(tmp_path / f"{next(names)}.jsonl", *cells, run=run_on(**run_args))
        )

    return made


def only(lines):
    assert len(lines) == 1
    return lines.to_dict("records")[0]


def verdicts(lines):
    return lines["verdict"].tolist()


@pytest.mark.parametrize(
    ("b", "verdict"),
    [
        pytest.param(around(12), "slower", id="apart-beyond"),
        pytest.param(around(8), "faster", id="apart-beyond-below"),
        pytest.param(around(10), "same", id="equal"),
        pytest.param(around(10.1), "same", id="apart-but-ends-within-the-threshold"),
        pytest.param(around(10.1, spread=0.05), "same", id="overlap-within"),
        pytest.param(around(11, spread=0.4), "ambiguous", id="overlap-beyond"),
        pytest.param(around(10.19, spread=0.01), "ambiguous", id="apart-within-ends-beyond"),
        pytest.param(around(12, n=9), "ambiguous", id="nine-samples"),
        pytest.param(around(12, n=10), "slower", id="ten-samples"),
        pytest.param([12.0], "ambiguous", id="one-sample"),
    ],
)
def test_verdicts_by_interval_and_distance(b, verdict):
    assert judge(around(10), b) == verdict
    mirrored = {"slower": "faster", "faster": "slower"}.get(verdict, verdict)
    assert judge(b, around(10)) == mirrored


@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.02, 0.05, 0.3])
@pytest.mark.parametrize("base", [1.0, 3.0, 7.3, 50.0, 1234.5])
def test_a_distance_at_the_threshold_is_not_beyond_it(threshold, base):
    at, past = base * (1 + threshold), base * (1 + threshold + 1e-3)
    narrow = 1e-9
    a = around(base, spread=narrow)
    assert judge(a, around(at, spread=narrow), threshold=threshold) != "slower"
    assert judge(around(at, spread=narrow), a, threshold=threshold) != "faster"
    assert judge(a, around(past, spread=narrow), threshold=threshold) == "slower"
    assert judge(around(past, spread=narrow), a, threshold=threshold) == "faster"


def test_a_few_slow_samples_change_nothing():
    a = around(10, n=40)
    assert judge(a, [*around(10, n=36), *[500.0] * 4]) == "same"
    assert judge(a, [*around(12, n=36), *[0.5] * 4]) == "slower"


def test_a_step_of_the_timer_is_no_difference():
    def ticks(*counts, tick=0.5):
        """Samples on multiples of a tick: (value in ticks, how many)."""
        return [tick * value for value, times in counts for _ in range(times)]

    # Four of five samples on one tick: the quartiles lie on it and would be apart.
    coarse, next_tick = ticks((10, 40), (11, 5)), ticks((11, 40), (10, 5))
    assert judge(coarse, next_tick) == "ambiguous"
    assert judge(coarse, ticks((12, 40), (11, 5))) == "slower"
    assert judge(coarse, ticks((10, 41), (11, 4))) == "same"
    # The tick that one side shows holds for the other, whose samples are all alike.
    assert judge(coarse, ticks((11, 45))) == "ambiguous"
    # Ticks that are fine against the time decide nothing.
    fine = [round(time, 2) for time in around(10)]
    assert judge(fine, [round(time, 2) for time in around(10.4)]) == "slower"
    # One late sample is no tick.
    assert judge([*[5.0] * 49, 20.0], [8.0] * 50) == "slower"
    # Two values that happen to recur, far apart, are no tick where others lie between them.
    noise = [10 + 0.01 * step for step in range(20)]
    noise += [noise[0], noise[-1]]
    assert judge(noise, [time + 0.25 for time in noise]) == "slower"
    # With no step to see, samples are what they are.
    assert judge([10.0] * 20, [11.0] * 20) == "slower"
    assert judge([10.0] * 20, [10.0] * 20) == "same"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"threshold": -0.01}, ValueError, "threshold must be finite and at least 0, got -0.01"),
        ({"threshold": math.nan}, ValueError, "threshold must be finite and at least 0, got nan"),
        ({"threshold": True}, TypeError, r"threshold must be a number, got True \(bool\)"),
        ({"threshold": "2%"}, TypeError, r"threshold must be a number, got '2%' \(str\)"),
        ({"min_samples": 0}, ValueError, "min_samples must be at least 1, got 0"),
        ({"min_samples": 2.0}, TypeError, "min_samples must be an int"),
        ({"b_us": []}, ValueError, "b_us must hold at least one time, all finite and above 0"),
        ({"b_us": [1.0, math.inf]}, ValueError, "b_us must hold at least one time"),
        ({"b_us": [1.0, 0.0]}, ValueError, "b_us must hold at least one time"),
        ({"a_us": [[1.0]]}, ValueError, "a_us must hold at least one time"),
        ({"a_us": [[1.0], []]}, ValueError, r"a_us must hold .* above 0, got \[\[1.0\], \[\]\]"),
        ({"a_us": ["1", "2"]}, ValueError, r"a_us must hold .* above 0, got \['1', '2'\]"),
        ({"b_us": [True] * 9}, ValueError, r"b_us must hold .* above 0, got \[True, "),
        ({"b_us": None}, ValueError, "b_us must hold .* above 0, got None"),
    ],
)
def test_what_can_not_be_judged_is_refused(arguments, error, message):
    with pytest.raises(error, match=f"^{message}"):
        judge(**({"a_us": around(10), "b_us": around(10)} | arguments))


def test_numbers_of_numpy_are_numbers():
    assert judge(around(10), np.array(around(10.4)), threshold=np.float32(0.05)) == "same"
    assert judge(around(10), around(30), threshold=np.int64(3), min_samples=np.int8(9)) == "same"


def test_documented_example_holds():
    assert doctest.testmod(comparing).attempted == 2
    assert doctest.testmod(comparing).failed == 0


def test_lines_say_what_was_compared_and_why(records):
    a, b = records(cell(around(10))), records(cell(around(12)))
    line = only(compare(a, b))
    assert line["verdict"] == "slower"
    assert line["reason"] == "quartiles apart, medians by more than 2 %"
    assert line["ratio"] == pytest.approx(1.2)
    assert (line["variant"], line["num_cols"], line["cache"]) == ("vllm_k512", 262_144, "warm")
    assert (line["device_a"], line["device_b"], line["n_b"]) == (H200, H200, 30)
    assert line["run_a"] != line["run_b"]
    assert line["median_us_b"] == pytest.approx(12)
    q1, q3 = np.quantile(around(12), (0.25, 0.75))
    assert (line["low_us_b"], line["high_us_b"]) == pytest.approx((q1, q3))
    assert describe(line) == "24 x 262144, k 512, normal, graph of 20 calls, warm"


def test_cells_meet_by_all_that_tells_them_apart(records):
    changes = [
        {"num_rows": 25},
        {"num_cols": 9},
        {"k": 511},
        {"next_n": 6},
        {"workload": "masked_random"},
        {"workload_args": {"fraction": 0.5}},
        {"seed": 1},
        {"mode": "eager"},
        {"cache": "cold"},
        {"calls_per_graph": 10},
        {"variant": "vllm_generic"},
        {"variant": "vllm_k512[count_neg_inf=false]"},
        {"experiment": "latency_vs_batch"},
    ]
    a = records(cell(around(10)))
    for change in changes:
        lines = compare(a, records(cell(around(20), **change)))
        assert verdicts(lines) == ["missing", "new"], change
        assert lines["reason"].tolist() == ["in A alone", "in B alone"]
    every = records(*(cell(around(10), **change) for change in [{}, *changes]))
    again = records(*(cell(around(10), **change) for change in [*changes[::-1], {}]))
    lines = compare(every, again)
    assert verdicts(lines) == ["same"] * (len(changes) + 1)
    # What is printed of them tells them apart too.
    said = [
        (line["experiment"], line["variant"], describe(line)) for line in lines.to_dict("records")
    ]
    assert len(set(said)) == len(said)


def test_a_gap_in_a_column_keeps_no_cells_apart(records):
    # A column with a gap holds floats in one frame, one without holds ints in the other.
    a = records(cell(around(10)))
    b = records(cell(around(10)), cell(around(10), calls_per_graph=None, seed=None, next_n=None))
    assert a["calls_per_graph"].dtype != b["calls_per_graph"].dtype
    assert verdicts(compare(a, b)) == ["same", "new"]


def test_no_cell_is_lost(records):
    a = records(*(cell(around(10), num_rows=rows) for rows in (1, 2, 3)))
    b = records(*(cell(around(10), num_rows=rows) for rows in (4, 3, 2)))
    lines = compare(a, b)
    assert lines["num_rows"].tolist() == [1, 2, 3, 4]
    assert verdicts(lines) == ["missing", "same", "same", "new"]
    first, last = lines.iloc[0], lines.iloc[-1]
    assert (first["status_a"], last["variant_b"]) == ("ok", "vllm_k512")
    assert pd.isna([first["status_b"], last["variant_a"], first["ratio"]]).all()
    assert first["median_us_a"] == pytest.approx(10)
    assert math.isnan(first["median_us_b"])
    assert lines["ratio"].notna().tolist() == [False, True, True, False]


@pytest.mark.parametrize("broken", ["wrong", "error", "skipped"])
def test_statuses_outweigh_times(records, broken):
    good, bad = records(cell(around(10))), records(cell(status=broken))
    line = only(compare(good, bad))
    assert (line["verdict"], line["reason"]) == ("broken", f"ok -> {broken}: said {broken}")
    line = only(compare(bad, good))
    assert (line["verdict"], line["reason"]) == ("mended", f"{broken} -> ok: said {broken}")
    line = only(compare(bad, records(cell(status="wrong"))))
    assert (line["verdict"], line["reason"]) == ("failing", f"{broken} -> wrong: said wrong")
    assert summary(compare(good, bad)).empty


@pytest.mark.parametrize("sides", [(around(10), None), (None, around(10))])
def test_a_cell_that_is_timed_on_one_side_alone_does_not_pass_unseen(records, sides):
    line = only(compare(*(records(cell(samples)) for samples in sides)))
    assert (line["verdict"], math.isnan(line["ratio"])) == ("ambiguous", True)
    assert line["reason"] == f"no times in {'A' if sides[0] is None else 'B'}"


def test_cells_without_times_are_untimed(records):
    emulated = records(cell(target="gfx950"))
    line = only(compare(emulated, emulated.copy()))
    assert (line["verdict"], line["reason"]) == ("untimed", "no times in A and B")
    assert summary(compare(emulated, emulated.copy())).empty


def test_the_last_run_of_a_cell_counts(tmp_path):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    write(old, cell(around(10)))
    # The later run stands first in the file.
    write(new, cell(around(30)), run=run_on(time=SECOND))
    write(new, cell(around(10)), run=run_on(time=FIRST))
    assert only(compare(results.load(old), results.load(new)))["ratio"] == pytest.approx(3)
    write(new, cell(status="wrong"), run=run_on(time="2026-03-01T00:00:00Z"))
    assert only(compare(results.load(old), results.load(new)))["verdict"] == "broken"
    # Of one run, the later line.
    twice = write(tmp_path / "twice.jsonl", cell(around(10)), cell(around(20)))
    assert only(compare(results.load(old), results.load(twice)))["ratio"] == pytest.approx(2)
    assert only(compare(results.load(old), results.load(twice)))["verdict"] == "slower"


def test_times_of_two_devices_are_compared_only_if_asked(records):
    here = records(cell(around(10)))
    there = records(cell(around(5), target="hip"), device=MI355X)
    message = (
        f"^a and b must hold cells of the same device, got measured on {H200}, and measured on "
        f"{MI355X}; across device compares them$"
    )
    with pytest.raises(ValueError, match=message):
        compare(here, there)
    line = only(compare(here, there, across=["device"]))
    assert (line["verdict"], line["device_a"], line["device_b"]) == ("faster", H200, MI355X)
    assert (line["target_a"], line["target_b"]) == ("cuda", "hip")
    # A device that both have is enough; what the other has besides is new.
    both = pd.concat([here, there], ignore_index=True)
    assert verdicts(compare(here, both)) == ["same", "new"]
    with pytest.raises(
        ValueError, match=f"^b must hold cells of one device across devices, got .*{MI355X}$"
    ):
        compare(here, both, across="device")


def test_kinds_are_kept_apart_like_devices(records):
    measured, emulated = records(cell(around(10))), records(cell(target="gfx950"))
    with pytest.raises(ValueError, match=f"got measured on {H200}, and emulated on gfx950; across"):
        compare(measured, emulated)
    line = only(compare(measured, emulated, across=["device"]))
    assert (line["verdict"], line["kind_b"]) == ("ambiguous", "emulated")


def test_a_policy_that_changed_under_its_name_is_said(records):
    a, b = records(cell(around(10))), records(cell(around(5)))
    b["policy"] = [policy | {"block_size": 512} for policy in b["policy"]]
    lines = compare(a, b)
    assert verdicts(lines) == ["missing", "new"]
    assert lines["reason"].tolist() == [
        "in A alone, the other has it under another policy",
        "in B alone, the other has it under another policy",
    ]
    line = only(compare(a, b, across=["policy"]))
    assert line["verdict"] == "faster"
    assert line["reason"].endswith("; block_size 1024 -> 512")


def test_variants_are_judged_against_each_other(records):
    cells = [
        cell(around(10), variant="vllm_generic"),
        cell(around(5)),
        cell(around(7), variant="vllm_generic", num_rows=2),
        cell(around(7), num_rows=3),
        cell(around(1), variant="torch.topk"),
    ]
    a = records(*cells)
    for b in (None, a):
        lines = compare(a, b, baseline="vllm_generic", candidate="vllm_k512")
        assert verdicts(lines) == ["faster", "missing", "new"]
        assert lines["variant"].tolist() == [
            "vllm_generic -> vllm_k512",
            "vllm_generic",
            "vllm_k512",
        ]
        assert lines["ratio"].iloc[0] == pytest.approx(0.5)
        assert lines["num_rows"].tolist() == [24, 2, 3]
    # A's baseline against B's candidate.
    b = records(cell(around(20)), cell(around(1), variant="vllm_generic"))
    across = compare(a, b, baseline="vllm_generic", candidate="vllm_k512")
    assert across["ratio"].iloc[0] == pytest.approx(2)


def test_variants_of_the_same_records_are_taken_from_one_run(tmp_path):
    path = tmp_path / "records.jsonl"
    pair = ("vllm_generic", "vllm_k512")
    write(path, *(cell(around(time), variant=v) for v, time in zip(pair, (10, 5), strict=True)))
    # A later run of one of them alone, on a device that has slowed down.
    write(path, cell(around(50)), run=run_on(time=SECOND))
    frame = results.load(path)
    line = only(compare(frame, baseline=pair[0], candidate=pair[1]))
    assert line["ratio"] == pytest.approx(0.5)
    assert line["run_a"] == line["run_b"]
    # Between two files, and where no run has both, the last of each counts.
    other = results.load(path)
    assert only(compare(frame, other, baseline=pair[0], candidate=pair[1]))["ratio"] == (
        pytest.approx(5)
    )
    # A failure that came later counts, whatever was timed before.
    write(path, cell(status="wrong"), run=run_on(time="2026-03-01T00:00:00Z"))
    failed = compare(results.load(path), baseline=pair[0], candidate=pair[1])
    assert only(failed)["verdict"] == "broken"
    apart = frame[(frame["variant"] == pair[0]) | (frame["recorded"] == SECOND)]
    line = only(compare(apart, baseline=pair[0], candidate=pair[1]))
    assert line["ratio"] == pytest.approx(5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"b": None}, "b must be given, or baseline and candidate, got neither"),
        ({"baseline": "vllm_k512"}, "candidate must be given too where the other is, got None"),
        ({"candidate": "vllm_k512"}, "baseline must be given too where the other is, got None"),
        (
            {"baseline": "vllm_k512", "candidate": "best"},
            r"variant must be one of those of b \(vllm_k512\), got 'best'",
        ),
        ({"across": ["seed"]}, "across must be one of device, policy, got 'seed'"),
        ({"threshold": -1}, "threshold must be finite and at least 0, got -1"),
        ({"min_samples": 0}, "min_samples must be at least 1, got 0"),
        ({"b": results.load([])}, "b must hold at least one cell, got none"),
        ({"a": results.load([])}, "a must hold at least one cell, got none"),
        ({"b": pd.DataFrame({"x": [1]})}, "b must hold records, got no column kind, experiment"),
    ],
)
def test_what_can_not_be_compared_is_refused(records, arguments, message):
    given = {"a": records(cell(around(10))), "b": records(cell(around(10)))} | arguments
    with pytest.raises(ValueError, match=f"^{message}"):
        compare(**given)


def test_summary_averages_ratios_over_cells_and_by_variant(records):
    def times(*factors):
        return records(
            *(
                cell(around(10 * factor), variant=variant, num_rows=rows)
                for (rows, variant), factor in zip(
                    itertools.product((1, 2), ("vllm_k512", "vllm_generic")), factors, strict=True
                )
            ),
            cell(around(1), num_rows=9, variant="torch.topk"),
            cell(status="error", num_rows=10),
        )

    table = summary(compare(times(1, 1, 1, 1), times(2, 1, 0.5, 4)))
    assert table["variant"].tolist() == ["all", "vllm_k512", "vllm_generic", "torch.topk"]
    assert table["geomean"].tolist() == pytest.approx([4 ** (1 / 5), 1, 2, 1])
    assert table["cells"].tolist() == [5, 2, 2, 1]
    assert table["least"].tolist() == pytest.approx([0.5, 0.5, 1, 1])
    assert table["greatest"].tolist() == pytest.approx([4, 2, 4, 1])
    for line in table.to_dict("records"):
        assert line["low"] < line["geomean"] < line["high"]
    # Over the cells too: with two of 0.5 and 2, draws hold one of them twice.
    second = table.iloc[1]
    assert (second["low"], second["high"]) == pytest.approx((0.5, 2), rel=0.01)
    again = summary(compare(times(1, 1, 1, 1), times(2, 1, 0.5, 4)))
    pd.testing.assert_frame_equal(table, again)


def test_one_variant_has_one_average(records):
    a, b = (
        records(*(cell(around(time, spread=0.1), num_rows=rows) for rows in range(1, 9)))
        for time in (10, 9)
    )
    table = summary(compare(a, b))
    assert table["variant"].tolist() == ["all"]
    assert table["geomean"].iloc[0] == pytest.approx(0.9)
    # Equal ratios: what is left of the interval comes from the samples of both sides.
    assert 0.85 < table["low"].iloc[0] < 0.9 < table["high"].iloc[0] < 0.95


@pytest.mark.parametrize(
    "path", sorted((results.data_root() / "measured").glob("*/*.jsonl")), ids=lambda path: path.name
)
def test_committed_records_are_the_same_as_themselves(path):
    frame = results.load(path)
    lines = compare(frame, frame.copy())
    assert len(lines) == len(results.latest(frame))
    timed = lines[lines["ratio"].notna()]
    # A CPU has other work: no interval is too wide to be ambiguous there.
    spread = {"ambiguous"} if path.parent.name == "cpu" else set()
    assert set(timed["verdict"]) <= {"same"} | spread
    assert (timed["ratio"] == 1).all()
    assert len(timed) == results.latest(frame)["samples_us"].notna().sum()
    assert set(lines["verdict"]) <= {"same", "untimed", "failing"} | spread
    found = summary(lines.groupby("variant").head(3), draws=20)
    assert (found["geomean"] == 1).all()
    assert (found["cells"] > 0).all()


def call(*arguments):
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


@pytest.fixture
def files(tmp_path):
    """A, and a B of every verdict."""
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    sides = {
        "same": (around(10), around(10)),
        "slower": (around(10), around(12)),
        "faster": (around(10), around(8)),
        "ambiguous": (around(10), around(11, spread=0.5)),
        "untimed": (None, None),
        "missing": (around(10), ()),
        "new": ((), around(10)),
        "broken": (around(10), "wrong"),
        "mended": ("error", around(10)),
        "failing": ("wrong", "wrong"),
    }
    for path, side in ((a, 0), (b, 1)):
        cells = [
            cell(status=of[side], num_rows=rows)
            if isinstance(of[side], str)
            else cell(of[side], num_rows=rows)
            for rows, of in enumerate(sides.values(), start=1)
            if of[side] != ()
        ]
        write(path, *cells)
    assert set(sides) == set(comparing.VERDICTS)
    return a, b, list(sides)


def test_command_prints_what_changed_then_counts_and_averages(files):
    a, b, names = files
    done = call(a, b)
    assert done.exit_code == 0, done.output
    words = [line.partition(" ")[0] for line in done.stdout.splitlines()]
    shown = [word for word in words if word in comparing.VERDICTS]
    assert shown == [word for word in comparing.VERDICTS if word not in ("same", "untimed")]
    assert "1 broken, 1 slower, 1 missing, 1 failing, 1 ambiguous, 1 faster, 1 mended, 1 new, " in (
        done.stdout
    )
    mean = (1.2 * 0.8 * 1.1) ** (1 / 4)
    assert f"all: B takes {mean:.3f} [" in done.stdout
    assert "of A's time (geomean; cells 4, from 0.800 to 1.200)" in done.stdout
    assert done.stdout.startswith(f"A: measured on {H200}; 2026-01-01; kernels")
    for said in ("ok -> wrong: said wrong", "error -> ok: said error", "in B alone"):
        assert said in done.stdout
    everything = call(a, b, "--all").stdout
    assert all(f"\n{word} " in everything for word in names)
    assert "medians apart by no more than 2 %" not in everything


@pytest.mark.parametrize("word", comparing.VERDICTS)
def test_command_fails_on_the_named_verdict_alone(files, word):
    a, b, _ = files
    assert call(a, b, "--fail-on", word).exit_code == 1
    # A file against itself has these three.
    assert call(a, a, "--fail-on", word).exit_code == (word in ("same", "untimed", "failing"))


def test_a_broken_cell_fails_where_a_slower_one_would(tmp_path):
    a = write(tmp_path / "a.jsonl", cell(around(10)))
    broken = write(tmp_path / "b.jsonl", cell(status="wrong"))
    assert call(a, broken, "--fail-on", "slower").exit_code == 1
    assert call(a, broken, "--fail-on", "ambiguous").exit_code == 0
    assert call(a, broken, "--fail-on", "faster", "--fail-on", "broken").exit_code == 1
    assert call(a, broken).exit_code == 0


def test_command_takes_thresholds_variants_and_folders(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    write(a, cell(around(10)), cell(around(20), variant="vllm_generic"))
    write(b, cell(around(11)), cell(around(20), variant="vllm_generic"))
    assert call(a, b, "--fail-on", "slower").exit_code == 1
    assert call(a, b, "--fail-on", "slower", "--threshold", 0.2).exit_code == 0
    done = call(a, b, "--min-samples", 31)
    assert "2 ambiguous" in done.stdout
    assert "30 samples, 31 are needed" in done.stdout
    pair = ("--baseline", "vllm_generic", "--candidate", "vllm_k512")
    for files in ((a,), (a, a)):
        assert "all: B takes 0.500 [" in call(*files, *pair).stdout
    assert "all: B takes 0.550 [" in call(a, b, *pair).stdout


def test_variants_without_a_partner_are_counted_and_shown_if_asked(tmp_path):
    path = write(tmp_path / "a.jsonl", cell(around(10)), cell(around(9), variant="torch.topk", k=9))
    pair = ("--baseline", "vllm_k512", "--candidate", "torch.topk")
    done = call(path, *pair)
    assert done.exit_code == 0
    assert "1 missing, 1 new" in done.stdout
    assert "verdict" not in done.stdout
    assert "B takes" not in done.stdout
    assert "in A alone" in call(path, *pair, "--all").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a.jsonl",), "b must be given, or baseline and candidate"),
        (("a.jsonl", "absent.jsonl"), "record file absent.jsonl must exist"),
        (("absent.jsonl", "a.jsonl"), "record file absent.jsonl must exist"),
        (("a.jsonl", "empty.jsonl"), "b must hold at least one cell, got none"),
        (("empty.jsonl", "a.jsonl"), "a must hold at least one cell, got none"),
        (("a.jsonl", "torn.jsonl"), "torn.jsonl:1: must be JSON"),
        (("a.jsonl", "there.jsonl"), "a and b must hold cells of the same device"),
        (("a.jsonl", "a.jsonl", "--fail-on", "slow"), "--fail-on must be one of broken, slower"),
        (("a.jsonl", "a.jsonl", "--across", "seed"), "across must be one of device, policy"),
        (("a.jsonl", "a.jsonl", "--threshold", "-1"), "threshold must be finite and at least 0"),
        (("a.jsonl", "--baseline", "vllm_k512"), "candidate must be given too"),
        (
            ("a.jsonl", "--baseline", "vllm_k512", "--candidate", "best"),
            "variant must be one of those of b (vllm_k512), got 'best'",
        ),
    ],
)
def test_command_refuses_in_one_line(tmp_path, arguments, words):
    write(tmp_path / "a.jsonl", cell(around(10)))
    write(tmp_path / "there.jsonl", cell(around(10), target="hip"), run=run_on(device=MI355X))
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "torn.jsonl").write_text('{"schema": 1, "run"\n')
    done = call(*(tmp_path / word if word.endswith("jsonl") else word for word in arguments))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("topk-lab: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_line_without_cells_is_an_empty_file(tmp_path):
    write(tmp_path / "a.jsonl", cell(around(10)))
    (tmp_path / "b.jsonl").write_text(json.dumps(run_on().line()) + "\n")
    assert call(tmp_path / "a.jsonl", tmp_path / "b.jsonl").exit_code == 2


def test_a_cell_takes_one_line_whatever_its_reason(tmp_path):
    said = "a reason\nof two lines, [bold]and[/bold] " + "far too long " * 30
    a = write(tmp_path / "a.jsonl", cell(around(10)))
    b = write(tmp_path / "b.jsonl", cell(status="error", reason=said))
    (line,) = (line for line in call(a, b).stdout.splitlines() if line.startswith("broken"))
    assert line.endswith(f"ok -> error: {' '.join(said.split())}")


def test_comparing_needs_no_torch():
    loaded = "import sys, topk_lab.bench.compare; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", loaded], check=True)
