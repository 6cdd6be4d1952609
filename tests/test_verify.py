"""The sources' own lists and every workload, on the twins and on the compiled AMD code."""

import numpy as np
import pytest

from topk_lab import registry, results, targets, verify, workloads
from topk_lab.contract import assert_exact

LISTS = ("masked_replay", "mixed_replay", "one_d_lengths", "neg_inf_rule")


def found(check):
    finding = verify.run(check)
    assert finding.status == check.due, verify.line(check, finding)
    return finding


@pytest.mark.parametrize("experiment", LISTS)
def test_k512_is_exact_and_split_as_due(vllm_target, experiment):
    for check in verify.checks(experiment, "vllm_k512", vllm_target):
        found(check)


def test_boundary_cases_are_cut_as_published(vllm_target):
    seen = {}
    for check in verify.checks("boundaries", "vllm_k512", vllm_target):
        finding = found(check)
        seen[check.id] = (check.variant, set(finding.counters["splits"]))
    assert [splits for _, splits in seen.values()] == [
        {1}, {4}, {1}, {3}, {3}, {1}, {2}, {2}, {1}, {1}, {10}
    ]  # fmt: skip
    assert {variant for variant, _ in list(seen.values())[:-1]} == {"vllm_k512"}
    assert seen["native-fallback"][0] == "vllm_generic"


@pytest.mark.parametrize("variant", ["vllm_k512", "vllm_generic"])
def test_every_workload_is_exact(vllm_target, variant):
    for check in verify.checks("workloads", variant, vllm_target):
        found(check)


@pytest.mark.parametrize("variant", ["vllm_k512", "vllm_generic"])
def test_kernel_and_twin_agree_pass_by_pass(amd_target, variant):
    reached = [
        found(check).counters["steps"]
        for check in verify.checks("pass_by_pass", variant, amd_target)
    ]
    assert len(reached) == len(verify.TRACED_WORKLOADS)
    assert min(reached) >= 2
    # Normal rows end after a step or two, equal leading bits take all four.
    assert max(reached) >= 2 * min(reached)


def test_legacy_pads_take_212_slots_from_real_logits(vllm_target):
    by_id = {
        check.id: found(check) for check in verify.checks("neg_inf_rule", "vllm_k512", vllm_target)
    }
    assert by_id["legacy-pads"].counters["wrong_slots"] == 212
    assert by_id["rule"].counters["wrong_slots"] == 0


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("variant", ["vllm_k512", "vllm_generic"])
def test_answers_hold_whatever_the_order_of_waves(amd_target, variant, seed):
    names = ("normal", "masked_random", "same_leading_bits", "pivot_bins-1024", "few_values")
    for check in verify.checks("workloads", variant, amd_target, seed):
        if check.id.startswith(names) and check.num_cols < 100_000:
            found(check)


def test_one_plan_serves_every_replay():
    plans_built = [
        found(check).counters["plans"]
        for check in verify.checks("masked_replay", "vllm_k512", "gfx950")
    ]
    assert set(plans_built) == {1}


def test_a_reference_row_is_checked_too():
    for check in verify.checks("workloads", "reference", "numba"):
        found(check)


@pytest.mark.parametrize("target", ["numba", "gfx950"])
def test_wrong_splits_are_noticed(monkeypatch, target):
    monkeypatch.setattr(verify, "_splits_observed", lambda outcome: [7] * len(outcome.splits))
    check = verify.checks("one-d-lengths", "vllm_k512", target)[0]
    finding = verify.run(check)
    assert finding.status == "wrong"
    assert finding.reason == "row 0 was cut into 7 splits, 1 were due"


def test_a_trace_that_differs_is_named():
    check = verify.checks("pass_by_pass", "vllm_k512", "gfx950")[0]
    honest = targets.run

    def shifted(target, *arguments, **options):
        outcome = honest(target, *arguments, **options)
        if target == "numba":
            outcome.steps["histogram"][0, 0, 0, 600] += 1
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "run", shifted)
        finding = verify.run(check)
    assert finding.status == "wrong"
    assert "histogram is" in finding.reason
    assert "row 0, block 0, step 0, bin 600" in finding.reason


def test_a_different_set_in_the_untraced_kernel_is_noticed(monkeypatch):
    check = verify.checks("pass_by_pass", "vllm_k512", "gfx950")[0]
    honest = targets.run

    def untraced_loses_one(target, *arguments, **options):
        outcome = honest(target, *arguments, **options)
        if not options.get("traced"):
            outcome.indices[0, 0] = -1
        return outcome

    monkeypatch.setattr(targets, "run", untraced_loses_one)
    finding = verify.run(check)
    assert finding.reason == "the traced and the untraced kernel kept different logits"


def test_findings_become_records(tmp_path):
    recorder = verify.recorder(tmp_path, ("gfx950",))
    for check in verify.checks("neg-inf-rule", "vllm_k512", "gfx950"):
        verify.record(recorder, check, verify.run(check))
    frame = results.load(tmp_path)
    assert list(frame["status"]) == ["ok", "wrong"]
    assert set(frame["kind"]) == {"emulated"}
    assert set(frame["compiler"]) != {None}
    assert results.validate(tmp_path) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bounds", "vllm_k512", "numba"), "cases must be one of"),
        (("boundaries", "torch", "numba"), "target must be one of torch for torch"),
        (("boundaries", "vllm_k512[fits_rule=false]", "numba"), "for study only"),
    ],
)
def test_checks_refuse_what_they_do_not_know(arguments, message):
    with pytest.raises(ValueError, match=message):
        verify.checks(*arguments)


def test_emulated_selection_takes_starts_values_and_strided_rows(amd_target):
    storage = np.full((3, 1037), np.nan, np.float32)
    logits = storage[:, 3:1033]
    logits[:] = np.random.default_rng(5).standard_normal((3, 1030), np.float32)
    given = {
        "row_ends": np.array([1030, 900, 3], np.int32),
        "row_starts": np.array([1, 700, 2], np.int32),
    }
    for variant in ("vllm_k512", "vllm_generic"):
        outcome = targets.run(amd_target, variant, logits, 512, values=True, **given)
        assert_exact(logits, outcome.indices, values=outcome.values, **given)


@pytest.mark.parametrize("k", [1, 2, 63, 1024, 2048])
def test_generic_takes_any_k_up_to_2048(amd_target, k):
    for num_cols in (3000, 13_000):
        logits = workloads.make("normal", 2, num_cols)
        assert_exact(logits, targets.run(amd_target, "vllm_generic", logits, k).indices)


@pytest.mark.parametrize("ends", [[-1, 0, 511, 512, 513, -(2**31), 2**31 - 1]])
def test_lengths_outside_the_row_are_clamped(vllm_target, ends):
    logits = np.broadcast_to(np.arange(1024, dtype=np.float32), (len(ends), 1024))
    given = {"row_ends": np.array(ends, np.int32)}
    for variant in ("vllm_k512", "vllm_generic"):
        outcome = targets.run(vllm_target, variant, logits, 512, **given)
        assert_exact(logits, outcome.indices, **given)


def test_variants_refuse_targets_that_they_do_not_run_on():
    with pytest.raises(ValueError, match="target must be one of numba for reference"):
        targets.run("gfx950", "reference", np.zeros((1, 8), np.float32), 2)
    with pytest.raises(TypeError, match="logits must be float32, got float64"):
        targets.run("gfx950", "vllm_k512", np.zeros((1, 8)), 2)
    everywhere = {"numba", *targets.AMD_TARGETS, *targets.DEVICE_TARGETS}
    assert set(registry.VARIANTS["vllm_k512"].targets) == everywhere


def test_sound_kernels_raise_no_false_alarm_in_50_seeds(amd_target):
    calls = {
        "vllm_k512": (workloads.make("masked_blocks", 1, 16_385), 8),
        "vllm_generic": (workloads.make("few_values", 2, 1600), 0),
    }
    for variant, (logits, splits) in calls.items():
        for seed in range(50):
            outcome = targets.run(amd_target, variant, logits, 512, seed=seed)
            assert_exact(logits, outcome.indices)
            assert set(outcome.splits.tolist()) == {splits}
