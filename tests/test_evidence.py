"""Do a notebook's numbers come from where its mode says, and does nothing fall back?"""

import pytest
import torch

from topk_lab import evidence, results

needs_no_device = pytest.mark.skipif(torch.cuda.is_available(), reason="a device is there")


def test_replay_gives_the_last_committed_record_of_each_cell():
    found = evidence.times("reference_shapes", "replay")
    committed = results.load_committed()
    expected = results.latest(committed[committed["experiment"] == "reference_shapes"])
    assert len(found) == len(expected)
    assert set(found["kind"]) == {"measured"}
    assert not found.duplicated(
        ["device", "variant", "num_rows", "num_cols", "workload", "cache"]
    ).any()


@needs_no_device
def test_modes_come_to_what_the_machine_has():
    assert evidence.resolve("auto") == "replay"
    assert evidence.resolve("live-cpu") == "live-cpu"
    with pytest.raises(ValueError, match=r"must have a hip or cuda device, torch .* sees none"):
        evidence.resolve("live")
    with pytest.raises(ValueError, match="mode must be one of auto, live, live-cpu, replay"):
        evidence.resolve("fast")


@needs_no_device
def test_live_without_a_device_is_refused_not_replayed():
    for ask in (
        lambda: evidence.times("latency_vs_batch", "live"),
        lambda: evidence.checks("sglang", "live", variants=["sglang_block512"], targets=["numba"]),
        lambda: evidence.profiles(
            "live", variants=["vllm_k512"], target="gfx950", num_rows=1, num_cols=1024, k=512
        ),
    ):
        with pytest.raises(ValueError, match="mode live must have a hip or cuda device"):
            ask()


def test_checks_of_this_machine_are_made_now():
    found = evidence.checks(
        "sglang", "live-cpu", variants=["sglang_block512"], targets=["numba", "gfx950"]
    )
    assert len(found) == 24
    assert set(zip(found["target"], found["kind"], strict=True)) == {
        ("numba", "measured"),
        ("gfx950", "emulated"),
    }
    assert set(found["status"]) == {"ok"}
    waves = {counters.get("waves_per_block") for counters in found["counters"]}
    assert waves == {None, 8}


def test_profiles_are_emulated_now_or_looked_up_by_shape():
    shape = {"target": "gfx950", "num_rows": 1, "num_cols": 2048, "k": 1024}
    found = evidence.profiles("live-cpu", variants=["sglang_block1024"], **shape)
    (cell,) = found.to_dict("records")
    assert cell["counters"]["waves"] == [16]
    assert cell["counters"]["histograms_step0_source"] == 2048
    masked = evidence.profiles(
        "live-cpu", variants=["sglang_block1024"], workloads=["normal", "all_neg_inf"], **shape
    )
    assert masked["workload"].tolist() == ["normal", "all_neg_inf"]
    one, other = (counters["lds_atomic_serialized_lanes"][0] for counters in masked["counters"])
    assert one < other
    with pytest.raises(ValueError, match="the recorded profiles, got 'sglang_block1024' on normal"):
        evidence.profiles("replay", variants=["sglang_block1024"], **shape)


def test_an_experiment_that_nobody_recorded_is_refused():
    with pytest.raises(ValueError, match="experiment must be one that records hold, got 'nosuch'"):
        evidence.times("nosuch", "replay")
