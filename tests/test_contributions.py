"""Is a contributed run taken as it was measured, and one that was edited refused?"""

import json
import shutil

import pytest
from click.testing import CliRunner

from topk_lab import claims, contributions, evidence, readme, results
from topk_lab.cli import main
from topk_lab.results import RecordError


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A copy of the committed data, in the place of it."""
    copy = tmp_path / "data"
    shutil.copytree(results.data_root(), copy)
    monkeypatch.setattr(results, "data_root", lambda: copy)
    return copy


def verdicts():
    asked = [claim for claim in claims.load_claims() if claim.experiment == "latency_vs_batch"]
    judged = claims.evaluate(results.load_committed("latency_vs_batch"), asked)
    return judged.set_index("id")["verdict"]


def test_a_claim_about_an_mi355x_gets_a_verdict(data, mi355x_record):
    before = verdicts()
    filed = contributions.add(mi355x_record)
    folder = data / "measured" / "amd-instinct-mi355x"
    assert filed == {folder / "firstlight.jsonl": 1, folder / "latency_vs_batch.jsonl": 48}
    assert results.validate(folder) == 49
    after = verdicts()
    changed = {name: after[name] for name in after.index if after[name] != before[name]}
    assert changed["sglang-36004.speedup-128k"] == "reproduced"
    assert changed["sglang-36004.flat"] == "reproduced"
    # The synthetic ratio is the same at every length, the published one is not.
    assert changed["sglang-36004.speedup-8k"] == "not reproduced"
    assert before["sglang-36004.flat"].startswith("published only")
    assert all(name.startswith("sglang-36004.") for name in changed)


def test_the_command_says_where_cells_went_and_what_claims_make_of_them(tmp_path, mi355x_record):
    arguments = ["data", "add", str(mi355x_record), "--root", str(tmp_path / "root")]
    told = CliRunner().invoke(main, arguments)
    assert told.exit_code == 0, told.output
    assert "48 cells: amd-instinct-mi355x/latency_vs_batch.jsonl" in told.output
    assert f"{len(claims.load_claims())} claims: " in told.output
    assert "topk-lab report" in told.output


def test_no_table_mixes_two_devices(data, mi355x_record, monkeypatch):
    before = readme._latency_block(results.load_committed("latency_vs_batch"))
    contributions.add(mi355x_record)
    assert readme._latency_block(results.load_committed()) == before
    assert set(evidence.times("latency_vs_batch", "replay")["device"]) == {"NVIDIA H200"}
    monkeypatch.setenv("TOPK_LAB_DEVICE", "mi355x")
    shown = evidence.times("latency_vs_batch", "replay")
    assert set(shown["device"]) == {"AMD Instinct MI355X"}
    assert len(shown) == 48
    monkeypatch.setenv("TOPK_LAB_DEVICE", "B200")
    with pytest.raises(ValueError, match="TOPK_LAB_DEVICE must be part of one of NVIDIA H200"):
        evidence.times("latency_vs_batch", "replay")


def test_the_same_run_twice_is_the_run_once(tmp_path, mi355x_record):
    first = contributions.add(mi355x_record, tmp_path / "root")
    texts = {path: path.read_bytes() for path in first}
    assert contributions.add(mi355x_record, tmp_path / "root") == first
    assert {path: path.read_bytes() for path in first} == texts


def test_what_was_packed_is_joined_and_stays_packed(tmp_path, mi355x_record):
    (latency,) = (
        path
        for path in contributions.add(mi355x_record, tmp_path / "root")
        if path.stem == "latency_vs_batch"
    )
    packed = results.pack(latency)
    filed = contributions.add(mi355x_record, tmp_path / "root")
    assert packed in filed
    assert not latency.exists()
    assert len(results.load(packed)) == 48


def rewritten(path, change, resealed=False):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if resealed:
        contributions.seal(path)


def _faster(lines):
    lines[-2].update(samples_us=[1.0], median_us=1.0, q1_us=1.0, q3_us=1.0, n=1)


def _one_left_out(lines):
    del lines[-2]


def _no_seal(lines):
    del lines[-1]


def _newer_schema(lines):
    for line in lines:
        line["schema"] = 2


def _no_run(lines):
    del lines[0]


def _of(group, field, value):
    def change(lines):
        lines[0][group][field] = value

    return change


def _summary(lines):
    lines[-2]["median_us"] += 1


def _emulated(lines):
    lines[-2].update(
        kind="emulated",
        target="gfx950",
        **dict.fromkeys(("samples_us", "median_us", "q1_us", "q3_us")),
        n=0,
    )


@pytest.mark.parametrize(
    ("change", "resealed", "message"),
    [
        pytest.param(
            _faster, False, r"seal\.sha256: is not that of the lines before it", id="a-time-edited"
        ),
        pytest.param(
            _one_left_out, False, r"seal\.cells: says 49, the file has 48", id="a-cell-left-out"
        ),
        pytest.param(_no_seal, False, "seal: must be the last line", id="no-seal"),
        pytest.param(
            _newer_schema,
            False,
            r"record\.jsonl:1: schema: 2 is newer than 1, the newest that topk_lab 0\.1\.0 reads",
            id="newer-schema",
        ),
        pytest.param(_no_run, False, r"seal\.sha256", id="no-run-line"),
        pytest.param(
            _of("code", "package", "0.0.9"),
            True,
            r"code\.package: must be 0\.1\.0, the version here, got 0\.0\.9",
            id="stale-package",
        ),
        pytest.param(
            _of("code", "kernel_hash", "c0ffee00"),
            True,
            r"code\.kernel_hash: must be [0-9a-f]{16}, .* got c0ffee00",
            id="other-kernels",
        ),
        pytest.param(
            _of("code", "dirty", True), True, r"code\.dirty: topk_lab or kernels", id="edited-code"
        ),
        pytest.param(
            _of("environment", "device", None), True, r"environment\.device", id="no-device"
        ),
        pytest.param(
            _of("environment", "cpu", "see /home/someone/cpu"),
            True,
            r"environment\.cpu",
            id="a-path",
        ),
        pytest.param(_summary, True, "median_us: .* does not follow", id="a-summary-edited"),
        pytest.param(_emulated, True, "kind: must be measured on hip or cuda", id="emulated"),
    ],
)
def test_what_can_not_be_taken_is_refused_by_field(
    mi355x_record, tmp_path, change, resealed, message
):
    rewritten(mi355x_record, change, resealed)
    with pytest.raises(RecordError, match=message):
        contributions.add(mi355x_record, tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_a_record_without_a_run_can_not_be_sealed(mi355x_record):
    with pytest.raises(RecordError, match="run: a record must have a run line"):
        rewritten(mi355x_record, _no_run, resealed=True)


def test_a_file_that_is_none_is_refused(tmp_path):
    told = CliRunner().invoke(main, ["data", "add", str(tmp_path / "record.jsonl")])
    assert told.exit_code == 2
    assert "FILE must be a record of topk-lab firstlight" in told.output
    other = tmp_path / "other.jsonl"
    other.write_text("not JSON\n")
    told = CliRunner().invoke(main, ["data", "add", str(other)])
    assert told.exit_code == 2
    assert "other.jsonl:1: must be JSON" in told.output


def test_a_seal_is_no_cell_and_can_be_taken_off(mi355x_record):
    text = mi355x_record.read_text()
    assert results.validate(mi355x_record) == len(results.load(mi355x_record)) == 49
    contributions.unseal(mi355x_record)
    assert "seal" not in mi355x_record.read_text()
    contributions.unseal(mi355x_record)
    contributions.seal(mi355x_record)
    contributions.seal(mi355x_record)
    assert mi355x_record.read_text() == text
