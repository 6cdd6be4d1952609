"""Are a profile's counters those of its launches, and do they agree with what was published?"""

import pytest
from click.testing import CliRunner

from topk_lab import profile as profiling
from topk_lab import results, targets, workloads
from topk_lab.cli import main

MASKED = {"num_rows": 1, "num_cols": 131_072, "workload": "masked_blocks"}
FUSED = "delegate[launches=fused]"
WITHOUT = "vllm_k512[count_neg_inf=false]"


@pytest.fixture(scope="module")
def masked():
    """The published case, by variant: a row of 131072 in 8 splits, 7 of 8 logits masked."""
    return {
        variant: profiling.profile(variant, "gfx950", **MASKED)
        for variant in ("vllm_k512", WITHOUT)
    }


def test_step_0_atomics_are_those_that_were_published(masked):
    before, after = masked[WITHOUT].atomics, masked["vllm_k512"].atomics
    for table in (before, after):
        assert table["split"].tolist() == list(range(8))
        assert set(table["logits"]) == {16_384}
        assert set(table["neg_inf"]) == {14_336}
        assert set(table["steps"]) == {1}
        assert set(table["hot_bin"]) == {2016}
    assert set(before["step0_hot"]) == {14_336}
    assert set(before["step0_source"]) == {16_384}
    assert after["step0_hot"].between(1, 1024).all()
    assert (after["step0_source"] == 2048 + after["step0_hot"]).all()


def test_the_compiler_adds_up_what_the_lanes_of_a_wave_counted(masked):
    # 2048 logits one by one, and one lane of each of 16 waves for all its -inf.
    assert set(masked["vllm_k512"].atomics["isa_add_lanes"]) == {2048 + 16}
    assert set(masked[WITHOUT].atomics["isa_add_lanes"]) == {16_384}
    for found in masked.values():
        assert (found.atomics["compiled"] == found.atomics["isa_add_lanes"]).all()
    waiting = {
        variant: found.counters.query("counter == 'lds_atomic_serialized_lanes'")["value"].iloc[0]
        for variant, found in masked.items()
    }
    assert waiting[WITHOUT] > 100 * waiting["vllm_k512"]


@pytest.mark.parametrize("variant", ["vllm_k512", "vllm_generic"])
def test_a_profile_counts_what_was_launched(amd_target, variant):
    found = profiling.profile(variant, amd_target, 2, 20_000, workload="normal")
    logits = targets.aligned(workloads.make("normal", 2, 20_000))
    outcome = targets.run(amd_target, variant, logits, 512, count="full")
    assert len(outcome.counts) == found.counters["launch"].nunique()
    for number, counted in enumerate(outcome.counts):
        table = found.counters[found.counters["launch"] == number]
        assert dict(zip(table["counter"], table["value"], strict=True)) == counted.as_dict()
        assert set(table["kernel"]) == {outcome.plan.launches[number].kernel}
    # Every logit is read twice; beyond that, each wave reads its row's length.
    first = outcome.counts[0].events
    assert first["global_lines_64_read"] >= 2 * logits.nbytes / 64
    assert first["global_lines_64_read"] <= 2.4 * logits.nbytes / 64
    sums = found.blocks.groupby(["launch", "counter"])["value"].sum()
    assert sums[0, "global_bytes_read"] == first["global_bytes_read"]
    assert not (found.atomics["step0_source"] != found.atomics["logits"]).any()


def test_every_hardware_counter_is_a_formula_of_emulated_ones(masked):
    found = masked["vllm_k512"]
    for number, table in found.hardware.groupby("launch"):
        counts = found.counters[found.counters["launch"] == number]
        values = dict(zip(counts["counter"], counts["value"], strict=True))
        for row in table.itertuples():
            assert row.predicted == pytest.approx(eval(row.formula, {}, values))
            assert row.relation in ("=", "<=")
            assert 0 <= row.tolerance <= 0.25
            assert row.because or row.tolerance == 0
    predicted = found.hardware.set_index(["launch", "hardware_counter"])["predicted"]
    assert predicted[0, "SQ_WAVES"] == 16 * found.blocks.query("launch == 0")["block"].nunique()
    assert 0 < predicted[0, "VALUUtilization"] <= 100
    of_64 = predicted[0, "TCC_REQ_sum"]
    assert of_64 / 2 <= predicted[0, "TCP_TOTAL_CACHE_ACCESSES_sum"] < 0.6 * of_64
    line_of_64 = profiling.HARDWARE_COUNTERS["gfx90a"]
    assert any(
        counter.name == "TCP_TOTAL_CACHE_ACCESSES_sum"
        and counter.terms == ("global_lines_64_read", "global_lines_64_written")
        for counter in line_of_64
    )


def test_the_command_prints_and_records_the_counters(tmp_path, masked):
    asked = ["profile", "--target", "gfx950", "--cols", "131072", "--workload", "masked_blocks"]
    done = CliRunner().invoke(main, [*asked, "--record", str(tmp_path)])
    assert done.exit_code == 0, done.output
    first, *rest = done.stdout.splitlines()
    assert first == "vllm_k512 on gfx950: 1 rows of 131072, k 512, masked_blocks; emulated"
    assert "launch 0: vllm_k512_select" in rest
    assert "launch 1: vllm_k512_merge" in rest
    said = done.stdout
    assert "SQ_LDS_BANK_CONFLICT = (within 10%)" in said
    assert "neg_inf 14336, steps 1, hot_bin 2016, step0_hot 1024, step0_source 3072" in said
    assert "compiled 2064, isa_add_lanes 2064" in said

    (cell,) = results.load(tmp_path).to_dict("records")
    assert (cell["kind"], cell["experiment"], cell["status"]) == ("emulated", "profile", "ok")
    counters = cell["counters"]
    hardware = masked["vllm_k512"].hardware.set_index(["hardware_counter", "launch"])["predicted"]
    assert counters["rocprofv3_sq_insts_lds"] == hardware["SQ_INSTS_LDS"].tolist()
    assert counters["lds_instructions"] == counters["rocprofv3_sq_insts_lds"]
    assert counters["histograms_neg_inf"] == 8 * 14_336
    assert counters["histograms_isa_add_lanes"] == 8 * 2064


def test_the_command_goes_through_workloads_in_one_run(tmp_path):
    asked = ["profile", "--cols", "2000", "--record", str(tmp_path), "--workload"]
    done = CliRunner().invoke(main, [*asked, "normal,all_neg_inf"])
    assert done.exit_code == 0, done.output
    frame = results.load(tmp_path)
    assert frame["workload"].tolist() == ["normal", "all_neg_inf"]
    assert frame["run"].nunique() == 1
    refused = CliRunner().invoke(main, [*asked, "normal,none"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "workload must be one of normal, " in refused.stderr


def test_the_command_says_when_an_answer_is_wrong(monkeypatch):
    studied = "vllm_k512[fits_rule=false,final_pad=neg_flt_max]"
    wrong = profiling.profile(studied, "gfx950", 1, 1000, workload="masked_prefix", finite=300)
    assert wrong.reason is not None
    right = profiling.profile("vllm_k512", "gfx950", 1, 1000, workload="masked_prefix", finite=300)
    assert right.reason is None
    monkeypatch.setattr(profiling, "profile", lambda *shape, **rest: wrong)
    done = CliRunner().invoke(main, ["profile", "--cols", "1000"])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"topk-lab: {studied} on gfx950 is wrong: normal: ")
    assert "launch 0" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "numba"], "target must be one of gfx90a, gfx942, gfx950, got 'numba'"),
        (["--workload", "none"], "workload must be one of normal, "),
        (["--variant", "reference"], "target must be one of numba for reference"),
        (["--k", "100"], "100"),
    ],
)
def test_the_command_refuses_in_one_line(arguments, words):
    done = CliRunner().invoke(main, ["profile", "--cols", "20000", *arguments])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


@pytest.mark.parametrize("target", targets.AMD_TARGETS)
def test_predictions_are_committed_for_owners_of_a_device(target):
    records = results.load(results.data_root() / "emulated" / target / "profile.jsonl")
    assert set(records["status"]) == {"ok"}
    by_workload = records["variant"].isin(["delegate", FUSED, "shared_histogram"])
    cells = records[~by_workload].set_index(["variant", "workload"])["counters"]
    assert len(cells) == 12
    for variant, atomics in (("vllm_k512", range(1, 1025)), (WITHOUT, [14_336])):
        counters = cells[variant, "masked_blocks"]
        assert counters["histograms_neg_inf"] == 4 * 8 * 14_336
        assert counters["histograms_step0_hot"] in range(
            4 * 8 * atomics[0], 4 * 8 * atomics[-1] + 1
        )
    names = {counter.name for counter in profiling.HARDWARE_COUNTERS[target]}
    for counters in records["counters"]:
        assert {f"rocprofv3_{name.lower()}" for name in names} <= counters.keys()


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_every_workload_of_the_rivals_is_committed(target):
    records = results.load(results.data_root() / "emulated" / target / "profile.jsonl")
    for variant in ("delegate", "shared_histogram"):
        mine = records[records["variant"] == variant]
        for _, cells in mine.groupby("num_cols"):
            assert sorted(cells["workload"]) == sorted(workloads.names())
        assert mine["num_cols"].nunique() == 2
    (cells,) = (part for _, part in records[records["variant"] == FUSED].groupby("num_cols"))
    assert sorted(cells["workload"]) == sorted(workloads.names())


@pytest.mark.parametrize("variant", ["sglang_block512", "aiter_one_block"])
def test_one_block_a_row_adds_up_nothing(variant):
    found = profiling.profile(variant, "gfx950", 2, 16_384, workload="masked_blocks")
    assert found.reason is None
    table = found.atomics
    assert table["split"].tolist() == [0, 0]
    assert set(table["step0_hot"]) == {14_336}
    assert set(table["step0_source"]) == {16_384}


def test_blocks_that_share_a_row_count_a_chunk_each():
    found = profiling.profile("shared_histogram", "gfx950", 2, 40_960, workload="masked_blocks")
    assert found.reason is None
    assert found.counters["kernel"].unique().tolist() == [
        f"shared_histogram_{name}" for name in ("clear", "count", "select")
    ]
    table = found.atomics
    assert table["split"].tolist() == [*range(32)] * 2
    assert set(table["step0_source"]) == {1280}
    assert table["neg_inf"].sum() == 2 * 40_960 * 7 // 8
    # An atomic a logit, and nothing else, is added in LDS.
    assert set(table["isa_add_lanes"]) == {1280}
