"""Does a first run find what is right and what is wrong with a device, and does it always end?

The stand-in for a HIP device answers, in children of the command as on a ROCm node. What it finds
is emulated.
"""

import collections
import dataclasses
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from topk_lab import bench, claims, environment, firstlight, profile, results, workloads
from topk_lab.bench import Effort
from topk_lab.contributions import unseal
from topk_lab.firstlight import checks, counters, page, supervisor, timing
from topk_lab.firstlight.report import Report
from topk_lab.firstlight.state import EXPERIMENT, found

DEVICE = Path(__file__).parent / "hip_stand_in" / "device.py"


def command(*arguments, arch="gfx950", fault=None):
    stand_in = ["--arch", arch, *(["--fault", fault] if fault else [])]
    return [sys.executable, str(DEVICE), *stand_in, "--", *map(str, arguments)]


def first_run(folder, *arguments, env=None, **stand_in):
    done = subprocess.run(
        command("firstlight", "--target", "hip", "--out", folder, *arguments, **stand_in),
        capture_output=True,
        text=True,
        env=os.environ | (env or {}),
    )
    reports, _ = found(folder / "record.jsonl")
    return done, reports


ONE = ("--only", "exactness/aiter_one_block", "--only", "fresh_lengths/aiter_one_block")


@pytest.fixture(scope="session")
def whole(tmp_path_factory, worker_id):
    """One whole run, whichever worker asks first."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared if worker_id == "master" else shared.parent
    folder, told = shared / "whole", shared / "whole.txt"
    with (shared / "whole.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            done, _ = first_run(folder)
            assert done.returncode == 0, done.stdout + done.stderr
            told.write_text(done.stdout)
    return folder, told.read_text(), found(folder / "record.jsonl")[0]


def test_every_check_runs_and_says_so(whole):
    folder, said, reports = whole
    assert list(reports) == firstlight.parts()
    assert not any(report.failed for report in reports.values())
    skipped = {unit for unit, report in reports.items() if report.status == "skipped"}
    assert skipped <= {"counters"}
    for unit in reports:
        assert f"] {unit}: " in said
    text = (folder / "firstlight.md").read_text()
    assert "Numbers on this page are emulated: a stand-in answered, no device." in text
    assert "8 replays instead of 200" in text
    assert all(f"| {check.name} |" in text for check in firstlight.CHECKS)


def test_the_record_is_emulated_and_holds_no_time(whole):
    record = whole[0] / "record.jsonl"
    assert results.validate(record) > 100
    frame = results.load(record)
    assert set(frame["kind"]) == {"emulated"}
    assert set(frame["target"]) == {"gfx950"}
    assert frame["samples_us"].isna().all()
    assert not any("seconds" in cell for cell in frame["counters"])
    ran = frame[frame["experiment"] != EXPERIMENT]
    assert set(ran["status"]) == {"ok"}
    # Of the delegate selection every member, launched in each way, is a variant to check.
    assert {name.partition("[")[0] for name in ran["variant"]} == set(checks.variants())
    assert {"workloads", "fresh_lengths", "graph_replays", "side_streams"} <= set(ran["experiment"])
    assert set(timing._CELLS) <= set(ran["experiment"])
    assert str(Path.home()) not in record.read_text()


def without(record, unit):
    """The record as it is where a run was interrupted before this part had ended."""
    unseal(record)
    kept = [
        line
        for line in record.read_text().splitlines(keepends=True)
        if json.loads(line).get("workload_args", {}).get("check") != unit
    ]
    record.write_text("".join(kept))


def test_an_interrupted_run_goes_on_where_it_stopped(whole, tmp_path):
    folder, _, before = whole
    copy = tmp_path / "record.jsonl"
    shutil.copy(folder / "record.jsonl", copy)
    without(copy, "large_lds")
    without(copy, "exactness/vllm_k512")
    done, reports = first_run(tmp_path)
    assert done.returncode == 0
    assert f"{len(before) - 3} of {len(before)} parts done" in done.stdout
    ran = [line.split("] ")[1] for line in done.stdout.splitlines() if ": holds" in line]
    assert [line.split(":")[0] for line in ran] == ["ready", "exactness/vllm_k512", "large_lds"]
    assert set(reports) == set(before)
    # What was found exact is not run again within a part.
    assert reports["exactness/vllm_k512"].done == 4
    frame = results.load(copy)
    exact = frame[(frame["experiment"] == "workloads") & (frame["variant"] == "vllm_k512")]
    assert len(exact) == 4
    assert set(exact["run"]) == set(results.load(folder / "record.jsonl")["run"])
    assert len(results.load_runs(copy)) == 2


def test_another_package_or_device_starts_anew(whole, tmp_path):
    folder = whole[0]
    record = tmp_path / "record.jsonl"
    text = (folder / "record.jsonl").read_text()
    digest = results.load(folder / "record.jsonl")["counters"].iloc[0]["package_digest"]
    record.write_text(text.replace(digest, "0" * 16))
    done, reports = first_run(tmp_path, "--only", "code_objects")
    assert f"starts anew: package was 0.1.0 {'0' * 16}, is 0.1.0 {digest}" in done.stdout
    assert "the record of before is now record-before-1.jsonl" in done.stdout
    assert list(reports) == ["ready", "code_objects"]
    done, _ = first_run(tmp_path, "--only", "code_objects", arch="gfx942")
    assert "starts anew: device was gfx950" in done.stdout
    assert (tmp_path / "record-before-2.jsonl").exists()


def test_a_kernel_that_leaves_a_step_out_is_wrong(tmp_path):
    done, reports = first_run(tmp_path, *ONE[:2], fault="broken-kernel")
    assert done.returncode == 1
    report = reports["exactness/aiter_one_block"]
    assert report.status == "wrong"
    assert "wrong_values" in report.reason
    assert "a miscompiled step" in report.cause
    assert "again: topk-lab firstlight --target hip --only exactness/aiter_one_block" in done.stderr
    text = (tmp_path / "firstlight.md").read_text()
    assert "topk-lab verify --variant aiter_one_block --target hip --cases workloads" in text
    frame = results.load(tmp_path / "record.jsonl")
    assert "wrong" in set(frame[frame["experiment"] == "workloads"]["status"])


def test_lengths_that_were_served_stale_once_are_told(tmp_path):
    done, reports = first_run(tmp_path, *ONE, fault="stale-lengths")
    assert done.returncode == 1
    assert reports["exactness/aiter_one_block"].status == "ok"
    report = reports["fresh_lengths/aiter_one_block"]
    assert report.status == "wrong"
    assert "replay 1: stale lengths: the answer is that of the lengths of replay 0" in report.reason
    assert "scalar cache" in report.cause


def test_a_missing_kernel_is_named(tmp_path):
    done, reports = first_run(tmp_path, "--only", "code_objects", *ONE, fault="missing-symbol")
    assert done.returncode == 1
    for unit in ("code_objects", "exactness/aiter_one_block"):
        assert reports[unit].status == "error"
        assert "aiter_one_block_select on hip device 0 (gfx950)" in reports[unit].reason
        assert "hipErrorNotFound" in reports[unit].reason
        assert "make build" in reports[unit].cause


def test_a_second_runtime_ends_the_run_at_once(tmp_path):
    done, reports = first_run(tmp_path, fault="second-runtime")
    assert done.returncode == 1
    assert list(reports) == ["ready"]
    assert "this process has two HIP runtimes" in reports["ready"].reason
    assert "LD_LIBRARY_PATH" in reports["ready"].cause
    assert "- exactness: not run" in (tmp_path / "firstlight.md").read_text()
    assert results.validate(tmp_path / "record.jsonl") == 1


def test_a_device_that_can_not_be_used_for_once_costs_no_record(whole, tmp_path):
    copy = tmp_path / "record.jsonl"
    shutil.copy(whole[0] / "record.jsonl", copy)
    before = results.load(copy)
    done, reports = first_run(tmp_path, fault="second-runtime")
    assert done.returncode == 1
    assert "record.jsonl of before is left as it is" in done.stdout
    assert set(reports) == set(firstlight.parts())
    assert len(results.load(copy)) == len(before)


def test_a_device_that_could_not_be_used_leaves_nothing_to_go_on_from(tmp_path):
    first_run(tmp_path, fault="second-runtime")
    done, reports = first_run(tmp_path, "--only", "code_objects")
    assert done.returncode == 0
    assert "begins on gfx950" in done.stdout
    assert list(reports) == ["ready", "code_objects"]
    assert not list(tmp_path.glob("record-before-*"))


def test_a_fault_that_ends_the_process_ends_one_part_only(tmp_path):
    done, reports = first_run(
        tmp_path, *ONE, "--only", "side_streams/vllm_k512", fault="memory-fault"
    )
    assert done.returncode == 1
    for unit in ("exactness/aiter_one_block", "fresh_lengths/aiter_one_block"):
        assert reports[unit].status == "error"
        assert "ended by SIGABRT: Memory access fault by GPU node-1" in reports[unit].reason
        assert "AMD_SERIALIZE_KERNEL=3" in reports[unit].cause
    assert reports["side_streams/vllm_k512"].status == "ok"


def test_a_kernel_that_does_not_end_takes_no_more_than_its_time(tmp_path, monkeypatch):
    stand_in = tuple(command(fault="endless-kernel"))
    monkeypatch.setattr(supervisor, "COMMAND", stand_in)
    monkeypatch.setattr(supervisor._Run, "_share", lambda run, unit, left: 2.0)
    said = []
    outcome = firstlight.run(
        "hip", tmp_path, only=["exactness/aiter_one_block"], grace=1.0, say=said.append
    )
    report = outcome.reports["exactness/aiter_one_block"]
    assert report.status == "error"
    assert "its time was up" in report.reason
    assert "a kernel that does not end" in report.cause
    assert any("exactness/aiter_one_block: error; it had not ended" in line for line in said)


def test_what_has_no_time_is_skipped_and_taken_up_later(tmp_path):
    done, reports = first_run(tmp_path, "--minutes", "0.02", "--only", "replays/delegate")
    assert done.returncode == 0
    assert reports["replays/delegate"] == Report("skipped", "time")
    assert "- replays/delegate: skipped: time" in (tmp_path / "firstlight.md").read_text()
    _, reports = first_run(tmp_path, "--only", "replays/delegate")
    assert reports["replays/delegate"].status == "ok"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--only", "speed"), "--only must be one of ready, code_objects"),
        (("--minutes", "0"), "minutes must be above 0, got 0.0"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, options, message):
    done = subprocess.run(
        command("firstlight", "--target", "hip", "--out", tmp_path, *options),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert message in done.stderr


def test_a_machine_without_a_device_is_told_the_fix(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "topk_lab", "firstlight", "--target", "cuda"),
            *("--out", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
    )
    import torch

    if torch.cuda.is_available():
        pytest.skip("a device is there")
    assert done.returncode == 1
    assert "install PyTorch for CUDA" in done.stderr


FAKE = """#!{python}
import csv, json, pathlib, subprocess, sys
arguments = sys.argv[1:]
names = arguments[1:arguments.index("--output-format")]
folder = pathlib.Path(arguments[arguments.index("-d") + 1], "node-7")
child = arguments[arguments.index("--") + 1:]
done = subprocess.run(child, capture_output=True, text=True)
if done.returncode:
    sys.exit(done.stderr)
if "SQ_LDS_ADDR_CONFLICT" in names:
    sys.exit("SQ_LDS_ADDR_CONFLICT is no counter of this device")
folder.mkdir(parents=True)
counted = json.loads(pathlib.Path({values!r}).read_text())
with (folder / "firstlight_counter_collection.csv").open("w", newline="") as file:
    lines = csv.writer(file)
    lines.writerow(["Dispatch_Id", "Kernel_Name", "Counter_Name", "Counter_Value"])
    lines.writerow([1, "vectorized_elementwise_kernel", names[0], 7])
    for kernel, name, value in counted:
        if name in names:
            lines.writerow([2, kernel + ".kd", name, value / 2])
            lines.writerow([2, kernel + ".kd", name, value / 2])
"""


@pytest.fixture
def rocprofv3(tmp_path):
    """A program of that name on PATH: runs the child, and counts what is predicted."""
    logits = workloads.make(counters.WORKLOAD, counters.NUM_ROWS, counters.NUM_COLS)
    predicted = profile.predictions(counters.VARIANT, "gfx950", logits, counters.K)
    values = tmp_path / "values.json"
    program = tmp_path / "bin" / "rocprofv3"
    program.parent.mkdir()
    program.write_text(FAKE.format(python=sys.executable, values=str(values)))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)

    rows = predicted[["kernel", "hardware_counter", "predicted"]].to_numpy().tolist()
    values.write_text(json.dumps(rows))
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def test_counters_stand_beside_the_emulated_ones(rocprofv3, tmp_path):
    done, reports = first_run(tmp_path / "run", "--only", "counters", env=rocprofv3)
    assert done.returncode == 0, done.stdout + done.stderr
    report = reports["counters"]
    assert report.status == "ok"
    assert any(note.startswith("vllm_k512_select SQ_WAVES ") for note in report.notes)
    assert any("SQ_LDS_ADDR_CONFLICT is no counter of this device" in note for note in report.notes)
    # A stand-in's counts are no hardware's.
    assert "profile" not in set(results.load(tmp_path / "run" / "record.jsonl")["experiment"])


def test_counters_that_disagree_are_told(tmp_path):
    predicted = pd.DataFrame(
        {
            "kernel": "vllm_k512_select",
            "hardware_counter": ["SQ_INSTS_VMEM", "TCC_REQ_sum", "SQ_WAVES"],
            "predicted": [1000.0, 500.0, 16.0],
            "relation": ["=", "<=", "="],
            "tolerance": [0.01, 0.10, 0.0],
        }
    )
    captured = environment.RunInfo.capture(kernel_hash="c0ffee00")
    recorder = results.Recorder(tmp_path / "record.jsonl", captured)
    memory = SimpleNamespace(target="hip", opened=SimpleNamespace(arch="gfx950"))
    context = checks.Context("hip", memory, recorder, 0.0)
    kernel = "vllm_k512_select"
    counted = {(kernel, "SQ_INSTS_VMEM"): 1010.0, (kernel, "TCC_REQ_sum"): 7.0}
    report = counters._judged(context, predicted, counted, ["SQ_WAVES: none"], (2, 2))
    assert report.status == "ok"
    assert len(report.notes) == 3
    (cell,) = results.load(recorder.destination).to_dict("records")
    assert (cell["kind"], cell["experiment"]) == ("measured", "profile")
    assert cell["counters"] == {"rocprofv3_sq_insts_vmem": [1010.0], "rocprofv3_tcc_req_sum": [7.0]}
    report = counters._judged(
        context, predicted, counted | {(kernel, "SQ_INSTS_VMEM"): 1011.0}, [], (2, 2)
    )
    assert report.status == "wrong"
    assert "SQ_INSTS_VMEM of vllm_k512_select is 1011, 1000 (within 1%) was predicted" in (
        report.reason
    )
    assert "please send this record" in report.cause
    report = counters._judged(context, predicted, {}, ["SQ_WAVES: none"], (0, 2))
    assert (report.status, report.reason) == ("skipped", "nothing was counted: SQ_WAVES: none")


def test_counters_that_are_collected_together_share_a_block():
    for target, known in profile.HARDWARE_COUNTERS.items():
        asked = counters.groups(target)
        assert sorted(name for group in asked for name in group) == sorted(
            counter.name for counter in known
        )
        for group in asked:
            assert len({name.partition("_")[0] for name in group}) == 1
            assert len(group) <= 7


def test_a_file_without_a_column_is_refused(tmp_path):
    file = tmp_path / "a_counter_collection.csv"
    file.write_text("Dispatch_Id,Kernel_Name,Counter_Name\n1,k,SQ_WAVES\n")
    with pytest.raises(ValueError, match="must have a column Counter_Value"):
        list(counters.collected(file))


def test_the_sample_of_the_matrix_is_spread_and_the_same_every_time():
    sample = timing.matrix_sample()
    assert sample == timing.matrix_sample()
    cases = {json.dumps(cell.workload_args, sort_keys=True) for cell in sample}
    assert (len(sample), len(cases)) == (200, 100)
    assert collections.Counter(cell.cache for cell in sample) == {
        "warm": 100,
        "pressure_256MiB": 100,
    }
    of_matrix = bench.EXPERIMENTS["vllm_matrix"].cells()
    assert all(cell in of_matrix for cell in sample)
    for axis in sample[0].workload_args:
        times = collections.Counter(cell.workload_args[axis] for cell in sample)
        assert max(times.values()) - min(times.values()) <= 4, axis
        assert set(times) == {
            cell.workload_args[axis]
            for cell in of_matrix
            if cell.workload_args["buffer"] in ("live", "full")
        }


def test_cases_that_a_claim_names_come_first():
    named = {
        (claim.query["workload_args.context"], claim.query["workload_args.buffer"])
        for claim in claims.load_claims()
        if claim.experiment == "vllm_matrix" and claim.cells <= 2
    }
    first = timing.matrix_sample()[: 2 * len(named)]
    assert {
        (cell.workload_args["context"], cell.workload_args["buffer"]) for cell in first
    } == named
    latency = timing.cells("latency_vs_batch")
    asked = {8, 16, 32, 64, 128, 256}
    assert {cell.num_rows for cell in latency[: 4 * len(asked)]} == asked
    assert len(timing.cells("reference_shapes")) == 36


class Clocked:
    """A device that is timed: what is queued runs at once, a graph is its calls."""

    target, place, arch, cache_bytes = "cuda", "cpu", "sm_90", 2**20

    def capture(self, calls):
        return lambda: [call() for call in calls]

    def event(self):
        event = SimpleNamespace(elapsed_time=lambda end: 1e3 * (end.now - event.now))
        event.record = lambda: setattr(event, "now", time.perf_counter())
        return event

    def write_pressure(self):
        pass

    def synchronize(self):
        pass

    def clocks(self):
        return {}


@pytest.fixture
def timed(tmp_path, monkeypatch):
    """What a part that takes times is given, on a device that the host plays."""
    for name, experiment in list(bench.EXPERIMENTS.items()):
        clocked = dataclasses.replace(experiment, device=Clocked)
        monkeypatch.setitem(bench.EXPERIMENTS, name, clocked)
    monkeypatch.setattr(timing, "QUICK_LOGITS", 70_000)
    monkeypatch.setattr(timing, "EFFORT", Effort(min_samples=2, max_seconds=0, warm_up_seconds=0))
    captured = environment.RunInfo.capture(kernel_hash="c0ffee00")
    device = {"name": "a host", "arch": "sm_90", "compute_units": 1, "memory_bytes": 1}
    device |= {"runtime": "CUDA 13.0", "driver": None}
    run = dataclasses.replace(captured, environment=captured.environment | {"device": device})
    recorder = results.Recorder(tmp_path / "record.jsonl", run)
    memory = SimpleNamespace(target="cuda")
    return checks.Context("cuda", memory, recorder, time.monotonic() + 60, quick=True)


def test_times_are_taken_recorded_and_not_taken_again(timed):
    report = timing.run(timed, "reference_shapes")
    assert (report.status, report.done, report.planned) == ("ok", 2, 2)
    frame = results.load(timed.recorder.destination)
    assert len(frame) == sum(len(cell.variants) for cell in timing.cells("reference_shapes", True))
    assert set(frame["status"]) == {"ok"}
    assert frame["median_us"].notna().all()
    assert set(frame["kind"]) == {"measured"}
    assert timing.run(timed, "reference_shapes").done == 2
    assert len(results.load(timed.recorder.destination)) == len(frame)


def test_times_that_there_is_no_time_for_are_left_out(timed):
    timed.deadline = time.monotonic()
    report = timing.run(timed, "reference_shapes")
    assert (report.status, report.done, report.short) == ("ok", 0, 2)
    assert report.left_over
    assert report.line() == "holds; 0 of 2 cells, 2 skipped: time"


def test_a_time_of_a_wrong_answer_is_none(timed, monkeypatch):
    honest = bench.candidates.operator

    def forgets(variant, k, row_ends, logits):
        call, out = honest(variant, k, row_ends, logits)
        return (lambda: None) if variant == "vllm_k512" else call, out

    monkeypatch.setattr(bench.candidates, "operator", forgets)
    report = timing.run(timed, "reference_shapes")
    assert report.status == "wrong"
    assert "2 of 16 times, first vllm_k512 on " in report.reason
    assert "unwritten" in report.reason


def test_shares_are_those_of_ten_minutes():
    total = sum(check.seconds for check in firstlight.CHECKS)
    assert 540 <= total <= 660
    for check in firstlight.CHECKS:
        assert sum(map(check.share, check.parts())) == pytest.approx(check.seconds)


def test_parts_are_found_by_name():
    for unit in firstlight.parts():
        check, part = checks.check_of(unit)
        assert unit == (f"{check.name}/{part}" if part else check.name)
    with pytest.raises(ValueError, match="check must be one of ready"):
        checks.check_of("exactness/torch")


def test_times_of_a_device_are_shown_with_the_claims_that_they_decide(tmp_path, mi355x_record):
    text = page.build(mi355x_record, "hip")
    assert "Numbers on this page are measured." in text
    assert "AMD Instinct MI355X, gfx950" in text
    assert "### latency_vs_batch" in text
    assert "| sglang_block512 | sglang_block1024 |" in text
    assert "reproduced" in text
    assert "topk-lab data add" in text
    assert text.count("| 32768 | normal | warm | 36.90 | 23.10 |") == 6
