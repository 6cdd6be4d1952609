"""Does a first run find what is right and what is wrong with a device, and does it always end?

The stand-in for a HIP device answers, in children of the command as on a ROCm node. What it finds
is emulated.
"""

import collections
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from topk_lab import bench, claims, firstlight, profile, results, workloads
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One whole run."""
    folder = tmp_path_factory.mktemp("whole")
    done, reports = first_run(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout, reports


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
    assert set(ran["variant"]) == set(checks.variants())
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
    done, reports = first_run(tmp_path, *ONE, fault="broken-kernel")
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
    said = []
    outcome = firstlight.run(
        "hip", tmp_path, minutes=0.2, only=["exactness/aiter_one_block"], grace=1.0, say=said.append
    )
    report = outcome.reports["exactness/aiter_one_block"]
    assert report.status == "error"
    assert "its time was up" in report.reason
    assert "a kernel that does not end" in report.cause
    assert outcome.seconds < 40


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
    """A program of that name: runs the child, and counts what it is told to."""
    logits = workloads.make(counters.WORKLOAD, counters.NUM_ROWS, counters.NUM_COLS)
    predicted = profile.predictions(counters.VARIANT, "gfx950", logits, counters.K)
    values = tmp_path / "values.json"
    program = tmp_path / "bin" / "rocprofv3"
    program.parent.mkdir()
    program.write_text(FAKE.format(python=sys.executable, values=str(values)))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)

    def count(change):
        rows = predicted[["kernel", "hardware_counter", "predicted"]].to_numpy().tolist()
        values.write_text(json.dumps([change(*row) for row in rows]))
        return {"PATH": f"{program.parent}:{os.environ['PATH']}"}

    return count


def test_counters_stand_beside_the_emulated_ones(rocprofv3, tmp_path):
    env = rocprofv3(lambda *row: row)
    done, reports = first_run(tmp_path / "same", "--only", "counters", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    report = reports["counters"]
    assert report.status == "ok"
    assert any(note.startswith("vllm_k512_select SQ_WAVES ") for note in report.notes)
    assert any("SQ_LDS_ADDR_CONFLICT is no counter of this device" in note for note in report.notes)
    # A stand-in's counts are no hardware's.
    assert "profile" not in set(results.load(tmp_path / "same" / "record.jsonl")["experiment"])

    def doubled(kernel, name, value):
        return kernel, name, value * (2 if name == "SQ_INSTS_VMEM" else 1)

    done, reports = first_run(tmp_path / "other", "--only", "counters", env=rocprofv3(doubled))
    assert done.returncode == 1
    assert "SQ_INSTS_VMEM of vllm_k512_select is " in reports["counters"].reason
    assert "please send this record" in reports["counters"].cause


def test_counters_that_are_collected_together_share_a_block():
    for target, known in profile.HARDWARE_COUNTERS.items():
        asked = counters.groups(target)
        assert [name for group in asked for name in group].sort() == [
            counter.name for counter in known
        ].sort()
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
