import dataclasses

import pytest
from click.testing import CliRunner

from topk_lab import claims, notebooks, reproduce, results, targets, verify
from topk_lab.cli import main

SMALL = (("one_d_lengths", "vllm_k512", None), ("neg_inf_rule", "vllm_k512", None))


@pytest.fixture
def small(monkeypatch):
    """A programme of three checks, without notebooks."""
    monkeypatch.setattr(reproduce, "PROGRAMME", SMALL)
    monkeypatch.setattr(notebooks, "names", lambda: [])


def test_programme_decides_every_exact_claim_on_listed_targets():
    asked = {
        claim.experiment
        for claim in claims.load_claims()
        if not claim.why and claim.kind != "time" and set(claim.targets) & set(reproduce.TARGETS)
    }
    planned = {experiment for experiment, _, _ in reproduce.PROGRAMME}
    assert asked <= planned


def test_reproduction_writes_page_and_records(small, tmp_path):
    said = []
    outcome = reproduce.reproduce(tmp_path, chosen=("numba", "gfx950"), say=said.append)
    assert outcome.failures == ()
    assert outcome.page == tmp_path / "index.html"
    frame = results.load(tmp_path / "records")
    assert len(frame) == 16
    assert set(frame["kind"]) == {"measured", "emulated"}
    verdicts = outcome.claims.set_index("id")["found"]
    assert verdicts["vllm-56743.neg-inf-legacy-pads"] == "212 on numba, gfx950"
    assert [name for name, _ in outcome.stages] == [
        "8 checks on numba",
        "8 checks on gfx950",
        f"{len(outcome.claims)} claims",
        "0 notebooks",
    ]
    assert all(seconds >= 0 for _, seconds in outcome.stages)


def test_records_of_an_earlier_run_are_replaced(small, tmp_path):
    for _ in range(2):
        reproduce.reproduce(tmp_path, chosen=("numba",), say=lambda line: None)
    assert len(results.load(tmp_path / "records")) == 8


def test_a_wrong_kernel_fails_the_command(small, tmp_path, monkeypatch):
    honest = targets.run

    def loses_the_last(*arguments, **options):
        outcome = honest(*arguments, **options)
        outcome.indices[0, -1] = outcome.indices[0, 0]
        return outcome

    monkeypatch.setattr(targets, "run", loses_the_last)
    done = CliRunner().invoke(main, ["reproduce", "--out", str(tmp_path), "--target", "numba"])
    assert done.exit_code == 1
    assert "FAILED wrong" in done.stderr
    assert (tmp_path / "index.html").is_file()


def test_a_claim_that_records_contradict_fails(small, tmp_path, monkeypatch):
    honest = verify.run

    def fewer_wrong_slots(check):
        finding = honest(check)
        if check.id == "legacy-pads":
            return dataclasses.replace(finding, counters={"wrong_slots": 211})
        return finding

    monkeypatch.setattr(verify, "run", fewer_wrong_slots)
    outcome = reproduce.reproduce(
        tmp_path, chosen=("numba", "gfx950", "gfx942"), say=lambda line: None
    )
    assert outcome.failures == ("claim vllm-56743.neg-inf-legacy-pads is not reproduced",)


def test_missing_kernels_stop_before_anything_is_written(small, tmp_path, monkeypatch):
    monkeypatch.setenv("TOPK_LAB_CODE", str(tmp_path))
    done = CliRunner().invoke(main, ["reproduce", "--out", str(tmp_path / "report")])
    assert done.exit_code == 2
    assert "target gfx950 is not usable" in done.stderr
    assert not (tmp_path / "report").exists()


def test_kept_records_take_the_place_of_the_committed_ones(small, tmp_path, monkeypatch):
    data = tmp_path / "data"
    data.mkdir()
    outcome = reproduce.reproduce(tmp_path / "out", chosen=("numba",), say=lambda line: None)
    assert outcome.failures == ()
    monkeypatch.setattr(results, "data_root", lambda: data)
    for _ in range(2):
        kept = reproduce.keep(tmp_path / "out" / "records")
    assert [path.relative_to(data).as_posix() for path in kept] == [
        "measured/cpu/neg_inf_rule.jsonl",
        "measured/cpu/one_d_lengths.jsonl",
    ]
    assert len(results.load(data)) == 8
