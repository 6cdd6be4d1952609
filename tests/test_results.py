"""Do records hold what ran, refuse what is not so, and come back unchanged?"""

import getpass
import json
import math
import os
import re
import socket
import sys
import threading

import numpy as np
import pytest

from topk_lab import environment, results, schedules


@pytest.fixture
def run():
    return environment.RunInfo.capture(kernel_hash="ab" * 32, compiler="/opt/x/bin/clang 22.1")


def gpu_run(name="NVIDIA H200", run_id="0" * 32, time="2026-01-01T00:00:00Z"):
    device = {
        "name": name,
        "arch": "sm_90",
        "compute_units": 132,
        "memory_bytes": 1 << 37,
        "runtime": "CUDA 13.0",
        "driver": "580.1",
    }
    place = {
        "os": "Debian",
        "machine": "x86_64",
        "cpu": "a CPU",
        "cpu_threads": 2,
        "python": "3.11.7",
        "packages": {"numpy": "2.4.6"},
        "device": device,
    }
    code = {"package": "1", "git": "a" * 40, "dirty": True, "kernel_hash": None, "compiler": None}
    return environment.RunInfo(run_id, time, place, code)


CELL = {"experiment": "boundaries", "target": "gfx950", "variant": "vllm_k512", "status": "ok"}


def lines_of(path):
    return [json.loads(text) for text in path.read_text().splitlines()]


def rewrite(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_capture_says_where_and_on_what_code(run):
    assert re.fullmatch("[0-9a-f]{32}", run.run)
    assert run.environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert run.environment["packages"]["numpy"] == np.__version__
    assert run.environment["device"] is None
    assert run.code["kernel_hash"] == "ab" * 32
    assert run.code["compiler"] == "clang 22.1"
    assert run.run != environment.RunInfo.capture().run


def test_capture_keeps_host_user_and_paths_out(run):
    text = json.dumps(run.line())
    private = [socket.gethostname(), getpass.getuser(), os.path.expanduser("~"), os.getcwd()]
    for word in private:
        # A name of a few letters may be part of any other word.
        assert len(word) < 5 or word not in text


def test_capture_of_a_device_that_is_not_there_says_so(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(RuntimeError, match="target cuda must be a device that this torch sees"):
        environment.RunInfo.capture(target="cuda")


def test_cells_come_back_as_written(tmp_path, run):
    recorder = results.Recorder(tmp_path, run, check=True)
    recorder.record(
        **CELL,
        num_rows=128,
        num_cols=262145,
        k=512,
        next_n=1,
        workload="boundaries",
        workload_args={"case": "four-splits-after-64k"},
        counters={
            "splits": np.array([4, 4]),
            "wave_instructions": np.int64(12),
            "member": "k512_long",
        },
    )
    recorder.record(
        **CELL | {"target": "numba", "status": "wrong", "reason": "row 3: duplicate 17"}, seed=5
    )
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.jsonl")) == [
        "emulated/gfx950/boundaries.jsonl",
        "measured/cpu/boundaries.jsonl",
    ]
    assert results.validate(tmp_path) == 2
    frame = results.load(tmp_path)
    assert list(frame["kind"]) == ["emulated", "measured"]
    first, second = frame.to_dict("records")
    assert first["counters"] == {
        "splits": [4, 4],
        "wave_instructions": 12,
        "member": "k512_long",
    }
    assert first["workload_args"] == {"case": "four-splits-after-64k"}
    assert (first["num_rows"], first["n"], first["device"]) == (128, 0, "gfx950")
    assert first["policy"]["final_capacity"] == 1024
    assert second["status"] == "wrong"
    assert second["reason"] == "row 3: duplicate 17"
    assert second["kernel_hash"] == "ab" * 32
    assert results.load_runs(tmp_path) == {run.run: run.line()}


def test_variant_is_spelled_one_way_with_its_whole_policy(tmp_path, run):
    recorder = results.Recorder(tmp_path, run)
    as_text = recorder.record(
        **CELL | {"variant": "vllm_k512[final_pad=neg_flt_max,fits_rule=false]"}
    )
    variant = schedules.parse_variant("vllm_k512[fits_rule=false,final_pad=neg_flt_max]")
    as_value = recorder.record(**CELL | {"variant": variant})
    assert as_text["variant"] == "vllm_k512[fits_rule=false,final_pad=neg_flt_max]"
    assert as_text["variant"] == as_value["variant"]
    assert as_text["policy"] == as_value["policy"]
    assert as_text["policy"]["fits_rule"] is False
    assert recorder.record(**CELL | {"variant": "torch", "target": "torch"})["policy"] == {}


def test_times_are_summed_up_and_say_how_they_were_taken(tmp_path):
    recorder = results.Recorder(tmp_path, gpu_run(), check=True)
    timed = {
        **CELL,
        "target": "cuda",
        "mode": "graph",
        "cache": "warm",
        "calls_per_graph": 20,
        "samples_us": [4.0, 1.0, 2.0, 3.0, 10.0],
    }
    cell = recorder.record(**timed)
    summary = [cell[name] for name in ("q1_us", "median_us", "q3_us", "n")]
    assert summary == [2.0, 3.0, 4.0, 5]
    assert (tmp_path / "measured" / "nvidia-h200" / "boundaries.jsonl").is_file()
    assert results.load(tmp_path)["device"].tolist() == ["NVIDIA H200"]
    alone = recorder.record(**timed | {"samples_us": [7.5]})
    assert [alone[name] for name in ("q1_us", "median_us", "q3_us", "n")] == [7.5, 7.5, 7.5, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "mi355x"}, "target must be one of"),
        ({"status": "good"}, "status must be one of ok, wrong, error, skipped"),
        ({"status": "error"}, "reason must be given exactly when status is not ok"),
        ({"reason": "but"}, "reason must be given exactly when status is not ok"),
        ({"samples_us": [1.0], "mode": "graph", "cache": "warm"}, "target that is not emulated"),
        ({"target": "cuda", "samples_us": [1.0], "cache": "warm"}, "a mode and a cache"),
        (
            {"target": "cuda", "samples_us": [], "mode": "graph", "cache": "warm"},
            "at least one time",
        ),
        (
            {"target": "cuda", "samples_us": [float("nan")], "mode": "graph", "cache": "warm"},
            "all finite",
        ),
        ({"mode": "lazy"}, "mode must be one of"),
        ({"cache": "hot"}, "cache must be one of warm, pressure_256MiB, cold"),
        ({"experiment": "Bad name"}, "experiment: 'Bad name' does not match"),
        ({"num_rows": -1}, "num_rows: -1"),
        ({"variant": "vllm_k512[block=1]"}, "policy field must be one of"),
    ],
)
def test_recorder_refuses_what_the_schema_does_not_know(tmp_path, change, message):
    recorder = results.Recorder(tmp_path, gpu_run(), check=True)
    with pytest.raises(ValueError, match=message):
        recorder.record(**CELL | change)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_paths_in_texts_are_cut_to_their_last_part(tmp_path, run):
    recorder = results.Recorder(tmp_path, run, check=True)
    cell = recorder.record(
        **CELL
        | {
            "status": "error",
            "reason": "can't read '/home/me/build/gfx950.hsaco' (see ~/x/log.txt), 3/4 int32/64",
        },
        workload_args={"file": "/data/private/row.npy"},
    )
    assert cell["reason"] == "can't read 'gfx950.hsaco' (see log.txt), 3/4 int32/64"
    assert cell["workload_args"] == {"file": "row.npy"}


def test_one_file_takes_all_cells_and_the_run_line_once(tmp_path, run):
    path = tmp_path / "mine.jsonl"
    recorder = results.Recorder(path, run)
    for target in ("numba", "gfx942", "numba"):
        recorder.record(**CELL | {"target": target})
    assert ["environment" in line for line in lines_of(path)] == [True, False, False, False]


def test_appending_at_once_keeps_lines_whole(tmp_path, run):
    path = tmp_path / "mine.jsonl"

    def append():
        recorder = results.Recorder(path, run, check=False)
        for seed in range(50):
            recorder.record(**CELL, seed=seed, workload_args={"note": "x" * 500})

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results.load(path)) == 200
    assert results.validate(path) == 200


def test_a_line_cut_off_is_reported_not_continued(tmp_path, run):
    path = tmp_path / "mine.jsonl"
    results.Recorder(path, run).record(**CELL)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(results.RecordError, match=r"mine\.jsonl:2: must be JSON"):
        results.load(path)
    with pytest.raises(results.RecordError, match="its last line was cut off"):
        results.Recorder(path, run).record(**CELL)


@pytest.mark.parametrize(
    ("where", "change", "message"),
    [
        (0, {"host": "node7"}, "1: the line: .*'host' was unexpected"),
        (1, {"user": "me"}, "2: the line: .*'user' was unexpected"),
        (1, {"kind": "measured"}, "2: kind: 'measured' is not one of"),
        (1, {"reason": "x"}, "2: reason: 'x' is not of type 'null'"),
        (1, {"status": "wrong", "reason": "see /home/me/log"}, "2: reason: "),
        (1, {"samples_us": [1.0], "n": 1}, "2: "),
        (1, {"run": "f" * 32}, "2: run: no run line"),
        (1, {"workload_args": {"a": {"b": 1}}}, r"2: workload_args\.a: "),
        (1, {"counters": {"log": "see /home/me/log"}}, r"2: counters\.log: "),
    ],
)
def test_validate_names_file_line_and_fault(tmp_path, run, where, change, message):
    path = tmp_path / "mine.jsonl"
    results.Recorder(path, run).record(**CELL)
    assert results.validate(path) == 1
    lines = lines_of(path)
    lines[where] |= change
    rewrite(path, lines)
    with pytest.raises(results.RecordError, match=r"^mine\.jsonl:" + message):
        results.validate(path)


def test_validate_compares_summaries_with_their_samples(tmp_path):
    path = tmp_path / "mine.jsonl"
    timing = {"mode": "graph", "cache": "cold", "samples_us": [1.0, 2.0, 3.0]}
    results.Recorder(path, gpu_run()).record(**CELL | {"target": "cuda"} | timing)
    lines = lines_of(path)
    lines[1]["median_us"] = 1.5
    rewrite(path, lines)
    with pytest.raises(results.RecordError, match=r"median_us: 1\.5 does not follow"):
        results.validate(path)


def test_a_folder_of_measurements_holds_nothing_emulated(tmp_path, run):
    path = tmp_path / "measured" / "cpu" / "boundaries.jsonl"
    results.Recorder(path, run).record(**CELL)
    with pytest.raises(results.RecordError, match="kind: must be measured in this folder"):
        results.validate(tmp_path)


def test_without_jsonschema_only_checking_fails(tmp_path, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    results.Recorder(tmp_path, run, check=False).record(**CELL)
    assert len(results.load(tmp_path)) == 1
    with pytest.raises(RuntimeError, match="checking records needs jsonschema"):
        results.validate(tmp_path)
    with pytest.raises(RuntimeError, match="checking records needs jsonschema"):
        results.Recorder(tmp_path, run, check=True)


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (0, {"run": [1]}, r"mine\.jsonl:1: run must be a str, got \[1\]"),
        (0, {"time": None}, r"mine\.jsonl:1: time must be a str, got None"),
        (0, {"code": "none"}, r"mine\.jsonl:1: code must be a dict, got 'none'"),
        (0, {"code": {"git": None}}, r"mine\.jsonl:1: code must have dirty, kernel_hash, compil"),
        (1, {"run": [1]}, r"mine\.jsonl:2: must be a cell with its run line before it"),
        (1, {"samples_us": "10"}, r"mine\.jsonl:2: samples_us must be null or a list.*, got '10'"),
        (1, {"samples_us": []}, r"mine\.jsonl:2: samples_us must be null or a list.*, got \[\]"),
        *(
            (1, {"samples_us": [1.0, wrong]}, rf"2: samples_us must be .* above 0, got {said}")
            for wrong, said in ((0, "0"), (-1.5, "-1.5"), (math.nan, "nan"), ("x", "'x'"))
        ),
    ],
)
def test_load_refuses_what_no_frame_can_hold(tmp_path, run, line, change, message):
    path = tmp_path / "mine.jsonl"
    results.Recorder(path, run).record(**CELL)
    lines = lines_of(path)
    lines[line] |= change
    rewrite(path, lines)
    with pytest.raises(results.RecordError, match=message):
        results.load(path)


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path):
    (tmp_path / "mine.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(results.RecordError, match=r"mine\.jsonl: must be UTF-8, got .* byte 0xff"):
        results.load(tmp_path)


def test_load_refuses_cells_without_their_run_and_other_schemas(tmp_path, run):
    path = tmp_path / "mine.jsonl"
    results.Recorder(path, run).record(**CELL)
    lines = lines_of(path)
    rewrite(path, lines[1:])
    with pytest.raises(results.RecordError, match="must be a cell with its run line before it"):
        results.load(path)
    rewrite(path, [lines[0] | {"schema": 2}])
    with pytest.raises(results.RecordError, match="must be a record of schema 1"):
        results.load(path)
    with pytest.raises(FileNotFoundError, match=r"record file gone\.jsonl must exist"):
        results.load(tmp_path / "gone.jsonl")


def test_latest_keeps_the_last_run_of_each_cell(tmp_path):
    path = tmp_path / "mine.jsonl"
    newer = gpu_run(run_id="1" * 32, time="2026-03-01T00:00:00Z")
    older = gpu_run(run_id="2" * 32, time="2026-02-01T00:00:00Z")
    for run, status in ((newer, "ok"), (older, "wrong")):
        recorder = results.Recorder(path, run)
        for case in ("a", "b"):
            recorder.record(
                **CELL | {"status": status, "reason": None if status == "ok" else "no"},
                workload_args={"case": case},
            )
    only_old = {"status": "wrong", "reason": "no", "variant": "vllm_generic"}
    results.Recorder(path, older).record(**CELL | only_old)
    frame = results.latest(results.load(path))
    assert list(frame["status"]) == ["ok", "ok", "wrong"]
    assert list(frame["variant"]) == ["vllm_k512", "vllm_k512", "vllm_generic"]


def test_compact_drops_what_a_later_run_replaced(tmp_path):
    path = tmp_path / "mine.jsonl"
    for number, time in enumerate(("2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z")):
        recorder = results.Recorder(path, gpu_run(run_id=str(number) * 32, time=time))
        recorder.record(**CELL, seed=0)
        recorder.record(**CELL, seed=number)
    before = results.latest(results.load(path))
    assert results.compact(path) == 2
    assert results.validate(path) == 2
    after = results.load(path)
    assert sorted(after["seed"]) == sorted(before["seed"]) == [0, 1]
    assert set(after["run"]) == {"1" * 32}
    assert list(tmp_path.iterdir()) == [path]


def test_a_packed_file_is_read_checked_and_compacted_as_any_other(tmp_path):
    path = tmp_path / "measured" / "nvidia-h200" / "boundaries.jsonl"
    for number, time in enumerate(("2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z")):
        recorder = results.Recorder(tmp_path, gpu_run(run_id=str(number) * 32, time=time))
        recorder.record(**CELL | {"target": "cuda"}, seed=0)
        recorder.record(**CELL | {"target": "cuda"}, seed=number)
    before = results.load(path)
    runs = results.load_runs(path)
    target = results.pack(path)
    assert target == results.packed(path) == results.packed(target)
    assert [file.name for file in path.parent.iterdir()] == ["boundaries.jsonl.gz"]
    after = results.load(tmp_path)
    assert after.drop(columns="file").equals(before.drop(columns="file"))
    assert set(after["file"]) == {"boundaries.jsonl.gz"}
    assert results.load_runs(tmp_path) == runs
    assert results.validate(tmp_path) == 4
    assert results.provenance(after) == results.provenance(before)
    assert results.compact(target) == 2
    assert [file.name for file in path.parent.iterdir()] == ["boundaries.jsonl.gz"]
    assert set(results.load(target)["run"]) == {"1" * 32}
    assert target.stat().st_mode & 0o777 == 0o644


def test_the_same_lines_pack_to_the_same_bytes(tmp_path):
    contents = set()
    for name in ("a", "b"):
        path = tmp_path / name / "boundaries.jsonl"
        results.Recorder(path, gpu_run()).record(**CELL)
        os.utime(path, (len(contents), len(contents)))
        contents.add(results.pack(path).read_bytes())
    (content,) = contents
    # RFC 1952: no flags, so no name; and no time.
    assert content[3] == 0
    assert content[4:8] == bytes(4)


def test_what_is_recorded_beside_a_packed_file_is_joined_to_it(tmp_path):
    path = tmp_path / "boundaries.jsonl"
    for number in range(2):
        results.Recorder(path, gpu_run(run_id=str(number) * 32)).record(**CELL, seed=number)
        beside = results.load(tmp_path)
        results.pack(path)
        assert list(beside["seed"]) == list(range(number + 1)), "packed cells first: they are older"
    assert list(results.load(tmp_path)["seed"]) == [0, 1]
    assert results.validate(tmp_path) == 2


def test_packing_needs_whole_records_and_leaves_what_it_can_not_pack(tmp_path):
    path = tmp_path / "boundaries.jsonl"
    results.Recorder(path, gpu_run()).record(**CELL)
    target = results.pack(path)
    with pytest.raises(ValueError, match=r"path must be a file named \*\.jsonl, got .*\.gz"):
        results.pack(target)
    with pytest.raises(ValueError, match=r"destination must be .* got .*\.gz, which is packed"):
        results.Recorder(target, gpu_run())
    with pytest.raises(FileNotFoundError, match=r"record file boundaries\.jsonl must exist"):
        results.pack(path)
    path.write_text('{"schema": 1, "run"')
    content = target.read_bytes()
    with pytest.raises(results.RecordError, match=r"boundaries\.jsonl:1: must be JSON"):
        results.pack(path)
    assert target.read_bytes() == content
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name, target.name]
    path.unlink()
    for damaged in (content[:-9], b"not gzip", content[:20] + b"\0\0" + content[22:]):
        target.write_bytes(damaged)
        with pytest.raises(results.RecordError, match=r"boundaries\.jsonl\.gz: must be a whole"):
            results.load(tmp_path)


def test_validate_names_the_packed_file(tmp_path, run):
    path = tmp_path / "measured" / "cpu" / "boundaries.jsonl"
    results.Recorder(path, run).record(**CELL)
    results.pack(path)
    with pytest.raises(results.RecordError, match=r"^boundaries\.jsonl\.gz:2: kind: must be"):
        results.validate(tmp_path)


def test_devices_keep_their_cells_apart(tmp_path):
    path = tmp_path / "mine.jsonl"
    for number, name in enumerate(("NVIDIA H200", "AMD Instinct MI355X")):
        run = gpu_run(name, run_id=str(number) * 32)
        results.Recorder(path, run).record(**CELL | {"target": "cuda"})
    assert len(results.latest(results.load(path))) == 2


def test_committed_records_of_one_experiment_are_read_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "data_root", lambda: tmp_path)
    recorder = results.Recorder(tmp_path, gpu_run(), check=False)
    for experiment in ("boundaries", "boundaries_of_another", "sglang"):
        for target in ("gfx950", "cuda"):
            recorder.record(**CELL | {"experiment": experiment, "target": target})
    results.pack(tmp_path / "measured" / "nvidia-h200" / "boundaries.jsonl")
    assert len(results.load_committed()) == 6
    found = results.load_committed("boundaries")
    assert list(found["experiment"]) == ["boundaries"] * 2
    assert list(found["target"]) == ["cuda", "gfx950"]
    assert results.load_committed("nosuch").empty


def test_published_tables_say_their_kind_and_origin():
    peers = results.load_published("peers_h200")
    assert results.only_kind(peers) == "published"
    assert set(peers["hardware"]) == {"NVIDIA H200, driver 580.159, CUDA 13.0, PyTorch 2.11"}
    assert results.only_kind(results.load_published("neg_inf_atomics")) == "derived"
    assert results.load_published("related_figures")["hardware"].tolist()[0] == "MI355X"
    with pytest.raises(ValueError, match=r"name must be one of gsm8k, .*got 'peers'"):
        results.load_published("peers")


def test_kinds_do_not_share_an_axis(tmp_path, run):
    recorder = results.Recorder(tmp_path, run)
    recorder.record(**CELL)
    recorder.record(**CELL | {"target": "numba"})
    frame = results.load(tmp_path)
    with pytest.raises(ValueError, match="numbers of one kind, got emulated, measured"):
        results.only_kind(frame)
    assert results.only_kind(frame[frame["target"] == "numba"]) == "measured"
    with pytest.raises(ValueError, match="got none"):
        results.only_kind(frame[["status"]])


def test_provenance_says_kind_place_day_and_code(tmp_path):
    recorder = results.Recorder(tmp_path, gpu_run())
    recorder.record(**CELL)
    recorder.record(**CELL | {"target": "cuda"})
    assert results.provenance(results.load(tmp_path)) == (
        "measured on NVIDIA H200; emulated on gfx950; 2026-01-01; code aaaaaaaaaa; "
        "with uncommitted changes"
    )
    assert results.provenance(results.load([])) == "no records"
    text = results.provenance(results.load_published("sglang_36004_kernel"))
    assert text.startswith("published: SGLang pull request 36004")
    assert text.endswith("; AMD Instinct MI355X (gfx950); 2026-08-22")
