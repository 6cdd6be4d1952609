"""The sources' own lists and every workload, on the twins and on the compiled AMD code."""

import dataclasses

import numpy as np
import pytest
from click.testing import CliRunner

from topk_lab import cli, crowds, registry, results, schedules, targets, verify, workloads
from topk_lab.contract import assert_exact
from topk_lab.reference import increments
from topk_lab.verify import contention, lists, paging, sglang

LISTS = ("masked_replay", "mixed_replay", "one_d_lengths", "neg_inf_rule")
SGLANG = ("sglang_block512", "sglang_block1024")
ONE_BLOCK = (*SGLANG, "aiter_one_block")
LINEAGES = (
    *("vllm_k512", "vllm_k512_uncrowded", "vllm_generic"),
    *(*ONE_BLOCK, "shared_histogram", "delegate"),
)


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


@pytest.mark.parametrize("variant", LINEAGES)
def test_every_workload_is_exact(vllm_target, variant):
    for check in verify.checks("workloads", variant, vllm_target):
        found(check)


@pytest.mark.parametrize("variant", LINEAGES)
def test_kernel_and_twin_agree_pass_by_pass(amd_target, variant):
    reached = [
        found(check).counters["steps"]
        for check in verify.checks("pass_by_pass", variant, amd_target)
    ]
    if variant in SGLANG:
        assert len(reached) == len(lists.STASH_WORKLOADS) == 8
        # Of seven rows five are longer than k, and none takes more than five passes.
        assert min(reached) >= 5
        assert max(reached) == 25
        return
    if variant == "aiter_one_block":
        assert len(reached) == len(lists.DIGIT_WORKLOADS) == 11
        # Of six rows four are longer than k, each is traced twice: a pass at least, three at most.
        assert min(reached) >= 8
        assert max(reached) == 24
        assert min(reached) < 24
        return
    if variant == "shared_histogram":
        assert len(reached) == len(lists.SHARED_WORKLOADS) == 17
        # Of seven rows five are longer than k: two are shared by nine blocks. Each block has a
        # record, and each row one of its own, and up to three for the digits of its ties.
        assert min(reached) == 2 * 9 + 3 + 5
        assert max(reached) == 2 * 9 + 3 + 5 * 4
        return
    if variant == "delegate":
        shapes = lists.WORKLOAD_SHAPES["delegate"]
        assert len(reached) == len(lists.DELEGATE_WORKLOADS) * len(shapes) == 23 * 19
        # Rows of -inf alone take no pass. Of at most six that are longer than k, each traced twice,
        # some take more than three.
        assert min(reached) == 0
        assert max(reached) > 2 * 6 * 3
        return
    assert len(reached) == len(lists.TRACED_WORKLOADS)
    assert min(reached) >= 2
    # Normal rows end after a step or two, equal leading bits take all four.
    assert max(reached) >= 2 * min(reached)


@pytest.mark.parametrize(
    ("variant", "asked_for"),
    [
        ("aiter_one_block", (1, 512, 2048, 5000)),
        ("aiter_one_block[digit_bits=11]", (1, 512, 2048, 5000)),
        ("delegate", (1, 512, 1024, 2048, 4096)),
    ],
)
def test_stable_answers_are_those_of_the_reference(vllm_target, variant, asked_for):
    asked = set()
    for check in verify.checks("stable_answers", variant, vllm_target):
        found(check)
        asked.add((check.workload, check.k))
    assert asked == {(name, k) for name in workloads.names() for k in asked_for}


def test_each_member_is_verified_on_rows_that_take_it():
    for member in schedules.DELEGATE_POLICIES:
        planned = verify.checks("workloads", f"delegate[member={member}]", "numba")
        assert planned
        forms = set()
        for check in planned:
            shape = (check.num_rows, check.num_cols, check.k)
            assert schedules.delegate_policy(check.variant, *shape)[0] == member
            (part,) = schedules.delegate_parts(check.variant, *shape)
            forms.add(part.form)
        due = {"two"}
        due |= {"fused"} if schedules.DELEGATE_POLICIES[member].fused_delegates > 0 else set()
        due |= {"fused_global"} if member in schedules.FUSED_GLOBAL else set()
        assert forms == due
    (fused,) = {
        check.variant
        for check in verify.checks(
            "workloads", "delegate[member=k512_pair,launches=fused]", "numba"
        )
    }
    assert fused == "delegate[member=k512_pair,launches=fused]"


def test_variants_that_promise_no_lowest_index_are_not_asked_for_it():
    for variant in ("vllm_k512", "vllm_generic", *SGLANG, "shared_histogram", "reference"):
        assert verify.checks("stable_answers", variant, "numba") == []


@pytest.mark.parametrize("target", ["numba", "gfx950"])
def test_another_of_equal_logits_is_noticed(monkeypatch, target):
    # Held against the contract alone, the last slot of a row of ones may name any of them.
    check = next(
        check
        for check in verify.checks("stable_answers", "aiter_one_block", target)
        if check.id == "constant-10000"
    )
    monkeypatch.setattr(lists, "violations", lambda *arguments, **promises: None)

    def another(outcome, variant, options):
        if variant == "aiter_one_block":
            outcome.indices[0, -1] += 1
        return outcome

    tampered(monkeypatch, another)
    finding = verify.run(check)
    assert (finding.status, finding.reason) == ("wrong", "row 0 is not that of the reference")


def test_legacy_pads_take_212_slots_from_real_logits(vllm_target):
    by_id = {
        check.id: found(check) for check in verify.checks("neg_inf_rule", "vllm_k512", vllm_target)
    }
    wrong_slots = {label: finding.counters["wrong_slots"] for label, finding in by_id.items()}
    assert wrong_slots.pop("legacy-pads") == 212
    assert set(wrong_slots) == {
        *("rule", "rule-legacy-pads", "tied-pads", "pads-after-all", "shortcut", "uncrowded")
    }
    assert set(wrong_slots.values()) == {0}


@pytest.mark.parametrize("num_cols", contention.ATOMICS_LENGTHS)
def test_atomics_of_masked_rows_are_those_of_the_derived_table(amd_target, num_cols):
    table = results.load_published("neg_inf_atomics").set_index("row_end").loc[num_cols]
    by_variant = {
        check.variant: found(check).counters
        for check in verify.checks("neg_inf_atomics", "vllm_k512", amd_target)
        if check.num_cols == num_cols
    }
    without, counted = by_variant["vllm_k512[count_neg_inf=false]"], by_variant["vllm_k512"]
    assert without["splits"] == counted["splits"] == [table["splits"]]
    assert round(without["neg_inf_atomics_per_split"]) == table["atomics_before"]
    assert counted["neg_inf_atomics_most"] <= table["atomics_after_at_most"]
    # One by one in each step; what threads count is added up by each of 16 waves, of which the
    # shortest share has work for half.
    assert without["compiled_hot"] == without["steps"] * sum(without["neg_inf_atomics"])
    waves = 8 if table["split_columns"] < 4096 else 16
    assert counted["compiled_hot"] == pytest.approx(
        counted["steps"] * waves * table["splits"], abs=counted["steps"]
    )
    assert without["lds_atomic_serialized_lanes"] > 40 * counted["lds_atomic_serialized_lanes"]


@pytest.mark.parametrize("variant", contention.COUNTED)
def test_lanes_that_add_something_are_those_that_the_increments_say(amd_target, variant):
    checks = list(verify.checks("neg_inf_contention", variant, amd_target))
    assert len(checks) == 18 * len(crowds.LENGTHS)
    for check in checks:
        if check.num_cols == crowds.LENGTHS[0]:
            found(check)


def test_lanes_that_nobody_expects_are_noticed(monkeypatch):
    check = next(
        check
        for check in verify.checks("neg_inf_contention", "vllm_k512", "gfx950")
        if check.id == "masked_random-0.5-16384"
    )
    honest = increments.pass_atomics

    def one_too_many(*arguments):
        made = honest(*arguments)
        return made._replace(compiled=made.compiled + 1)

    monkeypatch.setattr(increments, "pass_atomics", one_too_many)
    finding = verify.run(check)
    assert finding.status == "wrong"
    assert "lanes added something" in finding.reason


def test_compilers_hand_out_slots_wave_by_wave(amd_target):
    for check in verify.checks("lds_atomics", "vllm_k512", amd_target):
        counters = found(check).counters
        assert counters["returning"] == counters["shared_returning"] > 20
        assert counters["summing_increments"] == 0
        assert counters["increments"] >= 20


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("variant", LINEAGES)
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
    monkeypatch.setattr(verify.lists, "splits_observed", lambda outcome: [7] * len(outcome.splits))
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
    assert list(frame["status"]) == ["ok", "wrong", *["ok"] * 5]
    assert set(frame["kind"]) == {"emulated"}
    assert set(frame["compiler"]) != {None}
    assert results.validate(tmp_path) == 7


# ---- the SGLang lineage --------------------------------------------------------------------------


@pytest.mark.parametrize("variant", SGLANG)
def test_the_sources_unit_test_passes(vllm_target, variant):
    waves = {"sglang_block512": 8, "sglang_block1024": 16}[variant]
    due = [
        f"{batch}x{length}-{table}"
        for batch in (1, 48)
        for length in (2048, 8192, 32_768)
        for table in ("identity", "shuffled")
    ]
    ids = []
    for check in verify.checks("sglang", variant, vllm_target):
        finding = found(check)
        ids.append(check.id)
        assert (check.num_rows, check.k) == (int(check.id.split("x")[0]), 1024)
        if vllm_target != "numba":
            assert finding.counters["waves_per_block"] == waves
    assert ids == due


def test_experiments_ask_nothing_of_variants_that_take_no_k_of_1024():
    assert verify.checks("sglang", "vllm_k512", "numba") == []
    assert len(verify.checks("sglang", "vllm_generic", "numba")) == 12
    assert verify.checks("exactness_under_overflow", "vllm_k512", "numba") == []
    assert verify.checks("exactness_under_overflow", "sglang_block512[stash_kib=48]", "numba") == []
    for variant, target in (("sglang_block512", "gfx950"), ("sglang_block1024", "numba")):
        assert verify.checks("sglang_index_sets", variant, target) == []


@pytest.fixture
def few_rows(monkeypatch):
    """The comparison of index sets, on few rows."""
    monkeypatch.setattr(sglang, "SET_BATCHES", (3,))
    monkeypatch.setattr(sglang, "SET_LENGTHS", (2048, 6000))
    monkeypatch.setattr(sglang, "SET_SEEDS", (0,))
    (check,) = verify.checks("sglang_index_sets", "sglang_block1024", "gfx950")
    return check


def test_both_block_sizes_keep_the_same_set(amd_target, few_rows):
    (check,) = verify.checks("sglang_index_sets", "sglang_block1024", amd_target)
    counters = found(check).counters
    assert (counters["rows"], counters["equal_value_rows"]) == (6, 6)
    assert counters["rows"] - counters["identical_rows"] <= counters["tied_rows"]


def tampered(monkeypatch, change):
    """Let `change` at every outcome of the variants under test; the twin's trace stays honest."""
    honest = targets.run

    def run(target, variant, logits, k, **options):
        return change(honest(target, variant, logits, k, **options), variant, options)

    monkeypatch.setattr(targets, "run", run)


def test_an_index_set_that_differs_is_noticed(monkeypatch, few_rows):
    def one_block_size_takes_another(outcome, variant, options):
        if variant == "sglang_block512":
            row = outcome.indices[1]
            row[0] = next(index for index in range(2048) if index not in row)
            row.sort()
        return outcome

    tampered(monkeypatch, one_block_size_takes_another)
    finding = verify.run(few_rows)
    assert finding.status == "wrong"
    assert finding.reason.startswith("sglang_block512: 1 violations; row 1: wrong_values")


def test_an_index_set_that_differs_without_a_tie_is_noticed(monkeypatch, few_rows):
    # Both are exact, each for itself: only the comparison can tell.
    monkeypatch.setattr(sglang, "violations", lambda *arguments, **promises: None)

    def one_is_shifted(outcome, variant, options):
        if variant == "sglang_block512":
            outcome.indices[1] = np.arange(1024)
        return outcome

    tampered(monkeypatch, one_is_shifted)
    finding = verify.run(few_rows)
    assert (finding.status, finding.reason) == ("wrong", "2 rows kept other values")
    assert finding.counters["identical_rows"] == finding.counters["equal_value_rows"] == 4

    monkeypatch.setattr(sglang, "chosen_keys", lambda logits, starts, indices: indices * 0)
    finding = verify.run(few_rows)
    assert (finding.status, finding.reason) == ("wrong", "2 sets differ, only 0 cutoffs are tied")


@pytest.mark.parametrize("variant", SGLANG)
def test_every_distribution_is_exact_or_wrong_as_due(vllm_target, variant):
    dues = {}
    for check in verify.checks("exactness_under_overflow", variant, vllm_target):
        finding = verify.run(check)
        assert check.holds(finding), verify.line(check, finding)
        dues[check.id] = check.due
        recall = finding.counters["recall"]
        assert (finding.status == "ok") == (min(recall) == 1.0)
        if check.due == "wrong":
            assert 0.2 < finding.counters["mean_recall"] < 0.9
            assert min(finding.counters["bin_population"]) > finding.counters["capacity"]
    assert {name: due for name, due in dues.items() if "rescan" in name} == {
        f"{name}-{num_cols}-rescan-5120": "ok" for name, _, num_cols in sglang.DISTRIBUTIONS
    }
    # Bins of about the size of the largest stash, which is the twin's alone.
    by_chance = {"uniform-131072-drop-16384", "tiny-32768-drop-16384"}
    assert {name for name, due in dues.items() if due == "either"} == (
        by_chance if vllm_target == "numba" else set()
    )
    assert sum(due == "wrong" for due in dues.values()) == 6 + (vllm_target == "numba")


@pytest.mark.parametrize("target", ["numba", "gfx950"])
def test_a_drop_that_is_exact_where_it_must_be_wrong_fails(monkeypatch, target):
    check = next(
        check
        for check in verify.checks("exactness_under_overflow", "sglang_block1024", target)
        if check.id == "near_one-32768-drop-5120"
    )
    assert check.due == "wrong"
    assert check.holds(verify.run(check))
    honest = targets.run

    def never_drops(target, variant, *arguments, **options):
        return honest(target, variant.split("[")[0], *arguments, **options)

    monkeypatch.setattr(targets, "run", never_drops)
    finding = verify.run(check)
    assert (finding.status, finding.counters["mean_recall"]) == ("ok", 1.0)
    assert not check.holds(finding)
    assert "as due" not in verify.line(check, finding)


def test_the_command_fails_where_a_drop_is_exact(monkeypatch):
    monkeypatch.setattr(sglang, "DISTRIBUTIONS", (("near_one", {}, 32_768),))
    ask = ["verify", "--cases", "exactness_under_overflow", "--variant", "sglang_block1024"]
    done = CliRunner().invoke(cli.main, ask)
    assert (done.exit_code, done.output.count("wrong (as due)")) == (0, 3)
    assert "4 of 4 checks as due" in done.output
    honest = targets.run

    def never_drops(target, variant, *arguments, **options):
        return honest(target, variant.split("[")[0], *arguments, **options)

    monkeypatch.setattr(targets, "run", never_drops)
    done = CliRunner().invoke(cli.main, ask)
    assert done.exit_code == 1
    assert "1 of 4 checks as due" in done.output


@pytest.mark.parametrize(
    ("due", "holding"),
    [("ok", {"ok"}), ("wrong", {"wrong"}), ("either", {"ok", "wrong"})],
)
def test_a_check_holds_where_it_finds_what_is_due(due, holding):
    check = verify.checks("neg_inf_rule", "vllm_k512", "numba")[0]
    check = dataclasses.replace(check, due=due)
    for status in ("ok", "wrong", "error"):
        finding = verify.Finding(status, None if status == "ok" else "why")
        assert check.holds(finding) == (status in holding)
        assert ("as due" in verify.line(check, finding)) == (
            status == "wrong" and "wrong" in holding
        )


# ---- page tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", LINEAGES)
def test_every_form_of_page_table_gives_the_right_slots(vllm_target, variant):
    ids = []
    for check in verify.checks("page_tables", variant, vllm_target):
        found(check)
        ids.append(check.id)
    rising = [label for label, *_, order in paging.FORMS if order == "index"]
    assert len(rising) == 2
    orders = (*ONE_BLOCK, "delegate")
    due = [label for label, *_ in paging.FORMS if variant in orders or label not in rising]
    assert ids == due


def test_the_references_slots_are_checked_too():
    for variant, target in (("reference", "numba"), ("torch", "torch")):
        for check in verify.checks("page_tables", variant, target):
            found(check)


def page_check(label, variant, target):
    return next(
        check for check in verify.checks("page_tables", variant, target) if check.id == label
    )


@pytest.mark.parametrize("target", ["numba", "gfx950"])
@pytest.mark.parametrize("variant", ["sglang_block1024", "vllm_k512"])
def test_wrong_slots_are_noticed(monkeypatch, variant, target):
    def one_off(outcome, variant, options):
        outcome.slots[2, 7] += 1
        return outcome

    honest = targets.run
    reasons = []
    for label in ("pages-of-64", "shared-by-a-sequence", "pages-of-1", "absent-and-far-pages"):
        check = page_check(label, variant, target)
        tampered(monkeypatch, one_off)
        finding = verify.run(check)
        assert finding.status == "wrong"
        reasons.append(finding.reason)
        monkeypatch.setattr(targets, "run", honest)
    assert all(reason.startswith("row 2 has slot") for reason in reasons)
    assert all(" in place 7, due was" in reason for reason in reasons)


@pytest.mark.parametrize("label", ["slots-alone", "rising-slots-alone"])
def test_wrong_slots_alone_are_noticed(monkeypatch, label):
    def one_off(outcome, variant, options):
        if options.get("slots_only"):
            outcome.slots[3, 100] += 1
        return outcome

    check = page_check(label, "sglang_block1024", "gfx950")
    tampered(monkeypatch, one_off)
    finding = verify.run(check)
    assert finding.status == "wrong"
    assert finding.reason.startswith("row 3 has slot")


def test_a_slot_that_nobody_wrote_is_noticed(monkeypatch):
    def unwritten(outcome, variant, options):
        outcome.slots[0, -1] = -777
        return outcome

    check = page_check("one-page", "vllm_k512", "gfx950")
    tampered(monkeypatch, unwritten)
    assert verify.run(check).reason.startswith("row 0 has slot -777 in place 511, due was")


def test_indices_that_nobody_asked_for_are_noticed(monkeypatch):
    def written_all_the_same(outcome, variant, options):
        if options.get("slots_only"):
            outcome.indices[5, 0] = 3
        return outcome

    check = page_check("slots-alone", "sglang_block512", "gfx950")
    tampered(monkeypatch, written_all_the_same)
    assert verify.run(check).reason == "indices were written where slots alone were asked for"


def test_slots_of_another_row_are_noticed_by_the_sources_test(monkeypatch):
    def shifted(outcome, variant, options):
        outcome.slots[1] = outcome.slots[0]
        return outcome

    check = next(
        check
        for check in verify.checks("sglang", "sglang_block512", "gfx950")
        if check.id == "48x2048-shuffled"
    )
    tampered(monkeypatch, shifted)
    finding = verify.run(check)
    assert (finding.status, finding.reason) == ("wrong", "slots are not those of the indices")


def test_due_slots_are_those_of_the_contract():
    indices = np.array([[0, 130, -1], [65, 191, 64]], np.int32)
    table = np.array([[5, -3, 2**31 // 64 - 1]], np.int32)
    assert paging.due_slots(indices, table, 64).tolist() == [
        [320, 2**31 - 62, -1],
        [-1, 2**31 - 1, -1],
    ]
    table[0, 2] += 1
    assert paging.due_slots(indices, table, 64)[0, 1] == -1


def test_shuffled_tables_hold_every_page_once():
    table = paging.shuffled_tables(3, 50, seed=1)
    assert sorted(table.reshape(-1).tolist()) == list(range(150))
    assert (paging.shuffled_tables(3, 50, seed=1) == table).all()
    assert (paging.shuffled_tables(3, 50, seed=2) != table).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bounds", "vllm_k512", "numba"), "cases must be one of"),
        (("sglang", "sglang_block512[overflow=drop]", "numba"), "for study only"),
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
    for variant in LINEAGES:
        outcome = targets.run(amd_target, variant, logits, 512, values=True, **given)
        assert_exact(logits, outcome.indices, values=outcome.values, **given)
    stable = targets.run(amd_target, "aiter_one_block", logits, 512, tie_break="lowest", **given)
    reference = targets.run("numba", "reference", logits, 512, **given)
    np.testing.assert_array_equal(stable.indices, reference.indices)


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("spare", range(4))
def test_a_walk_in_row_order_takes_any_alignment(amd_target, first, spare):
    # Rows that begin and end anywhere between two 16-byte loads, up to the end of their buffer.
    for length in (513, 4095, 4096, 4097, 9000):
        storage = targets.aligned(np.full((1, first + length + spare), np.nan, np.float32))
        logits = storage[:, first : first + length]
        logits[:] = workloads.make("few_values", 1, length, seed=length)
        for k in (1, 512, length - 1):
            stable = targets.run(amd_target, "aiter_one_block", logits, k, tie_break="lowest")
            due = targets.run("numba", "reference", logits, k)
            np.testing.assert_array_equal(stable.indices, due.indices)


@pytest.mark.parametrize("k", [1, 2, 63, 511, 1023, 1024])
@pytest.mark.parametrize("variant", SGLANG)
def test_sglang_takes_any_k_up_to_1024(amd_target, variant, k):
    for name in ("normal", "few_values"):
        logits = workloads.make(name, 2, 6000)
        for order in ("any", "index"):
            outcome = targets.run(amd_target, variant, logits, k, order=order)
            assert_exact(logits, outcome.indices, order=order)


@pytest.mark.parametrize("k", [1, 2, 63, 1025, 4097, 5999, 6000, 6001, 9000])
@pytest.mark.parametrize("variant", ["aiter_one_block", "aiter_one_block[digit_bits=11]"])
def test_one_block_takes_any_k(amd_target, variant, k):
    for name in ("normal", "few_values"):
        logits = workloads.make(name, 2, 6000)
        for promises in ({}, {"tie_break": "lowest"}, {"order": "index"}):
            outcome = targets.run(amd_target, variant, logits, k, values=True, **promises)
            assert_exact(logits, outcome.indices, k=k, values=outcome.values, **promises)


@pytest.mark.parametrize(
    ("num_cols", "value", "better"),
    [
        pytest.param(6000, np.finfo(np.float32).max, np.inf, id="whole-inf-above-the-greatest"),
        pytest.param(40_000, np.finfo(np.float32).max, np.inf, id="inf-above-the-greatest"),
        pytest.param(40_000, np.finfo(np.float32).max, np.nan, id="nan-above-the-greatest"),
        pytest.param(40_000, np.inf, np.nan, id="nan-above-inf"),
    ],
)
def test_a_cut_at_the_greatest_keys_keeps_what_is_above_it(amd_target, num_cols, value, better):
    logits = np.full((1, num_cols), value, np.float32)
    logits[0, 100:170:7] = better
    outcome = targets.run(amd_target, "delegate", logits, 512, values=True)
    assert_exact(logits, outcome.indices, values=outcome.values)


@pytest.mark.parametrize("k", [1, 2, 63, 1025, 4095, 4096])
def test_a_shared_histogram_takes_any_k_up_to_4096(amd_target, k):
    for num_rows, num_cols, blocks in ((2, 6000, 1), (5, 40_960, 12)):
        for name in ("normal", "few_values"):
            logits = workloads.make(name, num_rows, num_cols)
            outcome = targets.run(amd_target, "shared_histogram", logits, k, values=True)
            assert_exact(logits, outcome.indices, k=k, values=outcome.values)
            assert set(outcome.splits.tolist()) == {blocks}


@pytest.mark.parametrize("ties", [127, 128, 129, 2047, 2048, 2049, 30_000])
@pytest.mark.parametrize("alike", [True, False], ids=["equal", "near-equal"])
def test_a_threshold_bin_of_any_size_is_resolved(vllm_target, ties, alike):
    # Both sides of what is ranked, and of what the list holds, spread over the chunks of 32 blocks.
    rng = np.random.default_rng(ties)
    logits = rng.uniform(-2, 0.5, (2, 41_000)).astype(np.float32)
    for row in logits:
        chosen = rng.permutation(41_000)
        row[chosen[:100]] = 3.0
        near = np.nextafter(np.float32(1), np.float32(2)) + np.arange(ties) * np.float32(2**-22)
        row[chosen[100 : 100 + ties]] = 1.0 if alike else near[:ties].clip(max=1.0117)
    for k in (101, min(100 + ties // 2, 4000), min(100 + ties, 4096)):
        for seed in (None,) if vllm_target == "numba" else (None, 1, 2):
            call = {"values": True, "traced": True, "seed": seed}
            outcome = targets.run(vllm_target, "shared_histogram", logits, k, **call)
            assert_exact(logits, outcome.indices, values=outcome.values)
            record = outcome.steps[:, -1, 0]
            assert record["bin_size"].tolist() == [ties] * 2
            assert record["above"].tolist() == [100] * 2
            assert record["fits"].tolist() == [ties <= 2048] * 2
            digits = (outcome.steps["step"][:, -1, 1:] >= 0).any(axis=1)
            assert digits.tolist() == [ties > 128] * 2


@pytest.mark.parametrize("k", [1, 2, 63, 1024, 2048])
def test_generic_takes_any_k_up_to_2048(amd_target, k):
    for num_cols in (3000, 13_000):
        logits = workloads.make("normal", 2, num_cols)
        assert_exact(logits, targets.run(amd_target, "vllm_generic", logits, k).indices)


@pytest.mark.parametrize("ends", [[-1, 0, 511, 512, 513, -(2**31), 2**31 - 1]])
def test_lengths_outside_the_row_are_clamped(vllm_target, ends):
    logits = np.broadcast_to(np.arange(1024, dtype=np.float32), (len(ends), 1024))
    given = {"row_ends": np.array(ends, np.int32)}
    for variant in LINEAGES:
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
        "sglang_block1024": (workloads.make("few_values", 2, 5200), 0),
        "aiter_one_block": (workloads.make("few_values", 2, 9001), 0),
        "shared_histogram": (workloads.make("masked_blocks", 1, 40_960), 32),
    }
    for variant, (logits, splits) in calls.items():
        for seed in range(50):
            for tie_break in registry.VARIANTS[variant].tie_breaks:
                options = {"tie_break": tie_break}
                outcome = targets.run(amd_target, variant, logits, 512, seed=seed, **options)
                assert_exact(logits, outcome.indices, **options)
                assert set(outcome.splits.tolist()) == {splits}


def test_checks_of_what_is_not_compiled_are_refused_before_any_runs():
    with pytest.raises(ValueError, match="is not compiled; it runs on target numba only"):
        verify.checks("page_tables", "sglang_block512[stash_kib=128]", "gfx950")
    assert verify.checks("page_tables", "sglang_block512[stash_kib=128]", "numba")


def test_a_case_outside_a_gate_runs_what_the_gate_picks():
    for variant in ("vllm_k512", "vllm_k512_uncrowded"):
        runs = {check.id: check.variant for check in verify.checks("boundaries", variant, "numba")}
        assert runs.pop("native-fallback") == "vllm_generic"
        assert set(runs.values()) == {variant}
