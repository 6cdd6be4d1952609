import dataclasses

import pytest

from topk_lab import schedules
from topk_lab.schedules import POLICIES, active_splits, gate_refusal, max_splits, parse_variant

KIBI = 1024


@pytest.mark.parametrize(
    ("num_rows", "num_cols", "expected"),
    [
        pytest.param(32, 16 * KIBI, 1, id="32-rows-at-16k"),
        pytest.param(32, 16 * KIBI + 1, 16, id="32-rows-after-16k"),
        pytest.param(33, 16 * KIBI + 1, 1, id="33-rows-after-16k"),
        pytest.param(128, 64 * KIBI, 1, id="128-rows-at-64k"),
        pytest.param(128, 64 * KIBI + 1, 10, id="128-rows-after-64k"),
        pytest.param(129, 256 * KIBI, 1, id="129-rows-at-256k"),
        pytest.param(129, 256 * KIBI + 1, 3, id="129-rows-after-256k"),
        pytest.param(160, 256 * KIBI + 1, 3, id="160-rows-after-256k"),
        pytest.param(161, 256 * KIBI + 1, 2, id="161-rows-after-256k"),
        pytest.param(256, 1024 * KIBI, 2, id="256-rows-at-1mi"),
        pytest.param(257, 1024 * KIBI, 1, id="257-rows-at-1mi"),
    ],
)
def test_k512_maximum_splits_follow_the_shape(num_rows, num_cols, expected):
    for variant in ("vllm_k512", "vllm_k512_uncrowded"):
        assert max_splits(variant, num_rows, num_cols) == expected


@pytest.mark.parametrize(
    ("num_rows", "row_len", "expected"),
    [
        pytest.param(32, 16 * KIBI, 1, id="32-rows-at-16k"),
        pytest.param(32, 16 * KIBI + 1, 8, id="32-rows-after-16k"),
        pytest.param(32, 128 * KIBI, 8, id="32-rows-at-128k"),
        pytest.param(32, 128 * KIBI + 1, 10, id="32-rows-after-128k"),
        pytest.param(32, 256 * KIBI, 10, id="32-rows-at-256k"),
        pytest.param(32, 256 * KIBI + 1, 16, id="32-rows-after-256k"),
        pytest.param(33, 64 * KIBI, 1, id="33-rows-at-64k"),
        pytest.param(33, 64 * KIBI + 1, 4, id="33-rows-after-64k"),
        pytest.param(128, 512 * KIBI, 4, id="128-rows-at-512k"),
        pytest.param(128, 512 * KIBI + 1, 10, id="128-rows-after-512k"),
        pytest.param(129, 256 * KIBI, 1, id="129-rows-at-256k"),
        pytest.param(129, 256 * KIBI + 1, 3, id="129-rows-after-256k"),
        pytest.param(256, 256 * KIBI + 1, 2, id="256-rows-after-256k"),
        pytest.param(384, 1024 * KIBI, 1, id="384-rows-at-1mi"),
    ],
)
def test_k512_active_splits_follow_the_live_length(num_rows, row_len, expected):
    for variant in ("vllm_k512", "vllm_k512_uncrowded"):
        assert active_splits(variant, num_rows, row_len, 16) == expected


def test_active_splits_never_pass_the_workspace_or_starve_a_merge():
    assert active_splits("vllm_k512", 32, 1024 * KIBI, 3) == 3
    assert active_splits("vllm_k512", 1, 16 * KIBI + 1, 16) * 512 <= 16 * KIBI + 1
    assert active_splits("vllm_k512", 1, 0, 16) == 1


@pytest.mark.parametrize(
    ("num_rows", "row_len", "expected"),
    [
        pytest.param(1, 16 * KIBI, 1, id="1-row-at-16k"),
        pytest.param(1, 16 * KIBI + 1, 8, id="1-row-after-16k"),
        pytest.param(1, 64 * KIBI, 8, id="1-row-at-64k"),
        pytest.param(1, 64 * KIBI + 1, 16, id="1-row-after-64k"),
        pytest.param(4, 256 * KIBI, 16, id="4-rows-at-256k"),
        pytest.param(4, 256 * KIBI + 1, 32, id="4-rows-after-256k"),
        pytest.param(5, 256 * KIBI + 1, 16, id="5-rows-after-256k"),
        pytest.param(8, 1024 * KIBI, 16, id="8-rows-at-1mi"),
        pytest.param(9, 1024 * KIBI, 8, id="9-rows-at-1mi"),
        pytest.param(16, 16 * KIBI + 1, 8, id="16-rows-after-16k"),
        pytest.param(17, 16 * KIBI + 1, 4, id="17-rows-after-16k"),
        pytest.param(32, 1024 * KIBI, 4, id="32-rows-at-1mi"),
        pytest.param(33, 1024 * KIBI, 2, id="33-rows-at-1mi"),
        pytest.param(64, 16 * KIBI + 1, 2, id="64-rows-after-16k"),
        pytest.param(65, 1024 * KIBI, 1, id="65-rows-at-1mi"),
        pytest.param(384, 1024 * KIBI, 1, id="384-rows-at-1mi"),
    ],
)
def test_h200_splits_fill_the_device_once(num_rows, row_len, expected):
    variant = "vllm_k512[splits=h200]"
    assert active_splits(variant, num_rows, row_len, 48) == expected
    assert max_splits(variant, num_rows, row_len) == expected
    # A graph's width is the greatest length: no length asks for more than was launched.
    assert max_splits(variant, num_rows, 1024 * KIBI) >= expected


def test_fixed_splits_are_launched_and_work_unless_a_merge_would_starve():
    for count in (1, 7, 48):
        variant = f"vllm_k512[splits=fixed_{count}]"
        assert {max_splits(variant, *shape) for shape in ((1, 1), (384, 1024 * KIBI))} == {count}
        assert active_splits(variant, 384, 1024 * KIBI, count) == count
        assert active_splits(variant, 384, 3 * 512 + 511, count) == min(count, 3)
        assert active_splits(variant, 1, 0, count) == 1
        assert parse_variant(variant).ablation == "fixed_splits"
    assert parse_variant("vllm_k512[splits=fixed_4,fits_rule=false]").ablation is None
    assert parse_variant("vllm_k512[splits=h200]").ablation == "h200_splits"
    assert str(parse_variant("vllm_k512[splits=k512]")) == "vllm_k512"


def test_generic_splits_depend_on_the_width_alone():
    assert max_splits("vllm_generic", 1, 199_999) == 1
    assert max_splits("vllm_generic", 500, 200_000) == 10
    assert active_splits("vllm_generic", 1, 5, 10) == 10


@pytest.mark.parametrize(
    ("shape", "refusal"),
    [
        ((384, 1024 * KIBI, 512), None),
        ((385, 1024, 512), "num_rows must be at most 384 for vllm_k512, got 385"),
        ((1, 1024 * KIBI + 1, 512), "num_cols must be at most 1048576 for vllm_k512, got 1048577"),
        ((1, 1024, 513), "k must be 512 for vllm_k512, got 513"),
    ],
)
def test_k512_gate_names_what_it_refuses(shape, refusal):
    assert gate_refusal("vllm_k512", *shape) == refusal
    uncrowded = refusal and refusal.replace("vllm_k512", "vllm_k512_uncrowded")
    assert gate_refusal("vllm_k512_uncrowded", *shape) == uncrowded


def test_generic_takes_k_up_to_2048():
    assert gate_refusal("vllm_generic", 10**6, 10**6, 2048) is None
    assert gate_refusal("vllm_generic", 1, 1, 2049) == (
        "k must be in [1, 2048] for vllm_generic, got 2049"
    )


@pytest.mark.parametrize(
    ("pad", "fits_rule", "sound"),
    [
        ("after_all", False, True),
        ("after_all", True, True),
        ("neg_inf", True, True),
        ("neg_inf", False, False),
        ("neg_flt_max", True, False),
        ("neg_flt_max", False, False),
    ],
)
def test_a_policy_is_sound_only_if_pads_order_after_every_item(pad, fits_rule, sound):
    policy = dataclasses.replace(POLICIES["vllm_k512"], final_pad=pad, fits_rule=fits_rule)
    assert policy.sound is sound


def test_both_mirrors_are_sound():
    assert all(policy.sound for policy in POLICIES.values())


def test_variant_text_round_trips_with_its_changes():
    text = "vllm_k512[fits_rule=false,final_pad=neg_flt_max]"
    variant = parse_variant(text)
    assert str(variant) == text
    assert variant.ablation == "no_fits_rule_pad_neg_flt_max"
    assert parse_variant(str(variant)) == variant
    assert str(parse_variant("vllm_k512[fits_rule=true]")) == "vllm_k512"
    assert parse_variant("vllm_k512[final_capacity=512]").ablation is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "vllm_k513",
            "^variant must be one of vllm_generic, vllm_k512, vllm_k512_uncrowded, "
            "sglang_block512, sglang_block1024, aiter_one_block, shared_histogram, delegate, got "
            "'vllm_k513'$",
        ),
        ("vllm_k512[fits_rule=0]", "policy field fits_rule must be true or false, got '0'"),
        ("vllm_k512[capacity=1]", "policy field must be one of .*, got 'capacity=1'"),
        ("vllm_k512[final_pad=zero]", "policy field final_pad must be one of after_all, "),
        ("vllm_k512[final_capacity=-1]", "must be a whole number up to 1048576, got '-1'"),
        ("vllm_k512[fits_rule=true", r"variant must read name\[field=value,...\]"),
        (
            "sglang_block512[stash_kib=64]",
            "^policy field stash_kib must be one of 40, 48, 128, got 64$",
        ),
        ("sglang_block512[stash_kib=0]", "stash_kib must be one of 40, 48, 128, got 0"),
        (
            "sglang_block512[stash_kib=40.0]",
            "stash_kib must be a whole number up to 1048576, got '40.0'",
        ),
        ("sglang_block512[stash_kib=]", "stash_kib must be a whole number up to 1048576, got ''"),
        (
            "sglang_block1024[overflow=lose]",
            "^policy field overflow must be one of rescan, drop, got 'lose'$",
        ),
        (
            "sglang_block1024[fits_rule=true]",
            "^policy field must be one of block_size, stash_kib, overflow, got 'fits_rule=true'$",
        ),
        ("vllm_k512[overflow=drop]", "policy field must be one of .*, got 'overflow=drop'"),
        ("sglang_block512[overflow]", "policy field must be one of .*, got 'overflow'"),
        (
            "aiter_one_block[digit_bits=10]",
            "^policy field digit_bits must be one of 11, 12, got 10$",
        ),
        (
            "aiter_one_block[digit_bits=all]",
            "digit_bits must be a whole number up to 1048576, got 'all'",
        ),
        ("aiter_one_block[block_size=7]", "block_size must be one of 256, 512, 768, 1024, got 7"),
        (
            "aiter_one_block[max_k=4]",
            "^policy field must be one of block_size, digit_bits, got 'max_k=4'$",
        ),
        (
            "shared_histogram[max_k=4]",
            "^policy field must be one of block_size, tie_capacity, rank_limit, got 'max_k=4'$",
        ),
        (
            "shared_histogram[tie_capacity=-1]",
            "tie_capacity must be a whole number up to 1048576, got '-1'",
        ),
    ],
)
def test_bad_variant_text_is_refused_by_name(text, message):
    with pytest.raises(ValueError, match=message):
        parse_variant(text)


@pytest.mark.parametrize("name", ["sglang_block512", "sglang_block1024"])
def test_sglang_takes_any_shape_and_k_up_to_1024(name):
    for shape in ((0, 0, 1), (10**6, 2**31 - 1, 1024), (1, 1, 1024)):
        assert gate_refusal(name, *shape) is None
    for k in (0, -1, 1025, 2048):
        assert gate_refusal(name, 1, 8, k) == f"k must be in [1, 1024] for {name}, got {k}"


@pytest.mark.parametrize("name", ["sglang_block512", "sglang_block1024"])
def test_sglang_never_splits_a_row(name):
    for num_rows, num_cols in ((1, 2**31 - 1), (32, 16 * KIBI + 1), (10**6, 1)):
        assert max_splits(name, num_rows, num_cols) == 1
        assert active_splits(name, num_rows, num_cols, 1) == 1


@pytest.mark.parametrize(("stash_kib", "capacity"), [(40, 5120), (48, 6144), (128, 16_384)])
def test_a_stash_holds_two_lists_of_4_byte_positions(stash_kib, capacity):
    policy = parse_variant(f"sglang_block512[stash_kib={stash_kib}]").policy
    assert policy.stash_capacity == capacity == stash_kib * KIBI // (2 * 4)


def test_the_sglang_mirrors_differ_in_their_threads_alone():
    small, large = POLICIES["sglang_block512"], POLICIES["sglang_block1024"]
    assert (small.block_size, large.block_size) == (512, 1024)
    assert dataclasses.replace(small, block_size=1024) == large
    assert (small.stash_kib, small.max_k, small.overflow) == (40, 1024, "rescan")


def test_a_drop_is_unsound_and_refused_outside_of_studies():
    variant = parse_variant("sglang_block1024[stash_kib=48,overflow=drop]")
    because = "overflow=drop loses candidates beyond 6144 in the threshold bin"
    assert variant.policy.unsound_because == because
    assert not variant.policy.sound
    variant.refuse_unsound(study=True)
    with pytest.raises(ValueError, match=f"is not exact .{because}.; it is for study only"):
        variant.refuse_unsound(study=False)
    for kib in schedules.STASH_KIB:
        parse_variant(f"sglang_block1024[stash_kib={kib}]").refuse_unsound(study=False)


def test_sglang_text_round_trips_with_its_changes():
    for text, ablation in (
        ("sglang_block512", ""),
        ("sglang_block512[stash_kib=48]", "stash48"),
        ("sglang_block1024[block_size=768]", "block768"),
        ("sglang_block1024[stash_kib=48,overflow=drop]", "drop_stash48"),
        ("sglang_block512[stash_kib=128]", None),
    ):
        variant = parse_variant(text)
        assert str(variant) == text
        assert variant.ablation == ablation
        assert parse_variant(str(variant)) == variant
    assert str(parse_variant("sglang_block512[overflow=rescan,stash_kib=40]")) == "sglang_block512"
    reordered = parse_variant("sglang_block512[overflow=drop,stash_kib=48]")
    assert str(reordered) == "sglang_block512[stash_kib=48,overflow=drop]"
    # The name says where a policy comes from: changed fields do not make it another variant.
    as_large = parse_variant("sglang_block512[block_size=1024]")
    assert as_large.policy == POLICIES["sglang_block1024"]
    assert as_large != parse_variant("sglang_block1024")


@pytest.mark.parametrize(
    ("num_rows", "blocks", "start"),
    [
        (1, 32, 40_960),
        (2, 32, 40_960),
        (3, 21, 40_960),
        (8, 8, 40_960),
        (9, 7, 49_152),
        (16, 4, 49_152),
        (17, 4, 65_536),
        (32, 4, 65_536),
        (33, 4, 114_688),
        (64, 4, 114_688),
    ],
)
def test_a_row_is_shared_by_64_blocks_over_the_rows_from_4_to_32(num_rows, blocks, start):
    assert max_splits("shared_histogram", num_rows, start - 1) == 1
    assert max_splits("shared_histogram", num_rows, start) == blocks
    assert max_splits("shared_histogram", num_rows, 2**31 - 1) == blocks
    # At work by the live length, under the same rule.
    assert active_splits("shared_histogram", num_rows, start - 1, blocks) == 1
    assert active_splits("shared_histogram", num_rows, start, blocks) == blocks
    assert active_splits("shared_histogram", num_rows, start, 1) == 1


def test_more_rows_than_a_quarter_of_the_compute_units_are_not_shared():
    assert max_splits("shared_histogram", 65, 2**31 - 1) == 1
    assert active_splits("shared_histogram", 65, 2**31 - 1, 1) == 1
    assert max_splits("shared_histogram", 0, 2**31 - 1) == 32


def test_a_shared_histogram_takes_any_shape_and_k_up_to_4096():
    for call in ((0, 0, 1), (10**6, 2**31 - 1, 4096), (1, 1, 4096)):
        assert gate_refusal("shared_histogram", *call) is None
    for k in (0, -1, 4097):
        due = f"k must be in [1, 4096] for shared_histogram, got {k}"
        assert gate_refusal("shared_histogram", 1, 8, k) == due


def test_one_block_takes_any_shape_and_any_k_that_int32_slots_can_count():
    for shape in ((0, 0, 1), (10**6, 2**31 - 1, 1024), (1, 1, 5000), (1, 8, 2**31 - 1024)):
        assert gate_refusal("aiter_one_block", *shape) is None
    due = "k must be at most 2147482624 for aiter_one_block, got 2147482625"
    assert gate_refusal("aiter_one_block", 1, 8, 2**31 - 1023) == due
    for k in (0, -1):
        due = f"k must be at least 1 for aiter_one_block, got {k}"
        assert gate_refusal("aiter_one_block", 1, 8, k) == due


def test_one_block_never_splits_a_row():
    for num_rows, num_cols in ((1, 2**31 - 1), (32, 16 * KIBI + 1), (10**6, 1)):
        assert max_splits("aiter_one_block", num_rows, num_cols) == 1
        assert active_splits("aiter_one_block", num_rows, num_cols, 1) == 1


def test_one_block_text_round_trips_with_its_changes():
    for text, ablation in (
        ("aiter_one_block", ""),
        ("aiter_one_block[digit_bits=11]", "digit11"),
        ("aiter_one_block[block_size=512]", None),
    ):
        variant = parse_variant(text)
        assert (str(variant), variant.ablation) == (text, ablation)
        assert variant.policy.sound
        variant.refuse_unsound(study=False)
    assert str(parse_variant("aiter_one_block[digit_bits=12]")) == "aiter_one_block"


def test_every_ablation_differs_from_its_variant():
    for name, ablations in schedules.ABLATIONS.items():
        for suffix, fields in ablations.items():
            policy = dataclasses.replace(POLICIES[name], **fields)
            assert schedules.Variant(name, policy).ablation == suffix


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sglang_block512[max_k=4]", "policy field must be one of block_size, stash_kib, overflow"),
        ("vllm_k512[max_k=4]", "policy field must be one of block_size, merge_block_size, final_"),
        ("vllm_generic[splits=k512]", "policy field must be one of .*, got 'splits=k512'"),
        (
            "vllm_k512[splits=generic]",
            "splits must be one of k512, h200, fixed_1 to fixed_48, got 'generic'",
        ),
        ("vllm_k512[splits=fixed_49]", "fixed_1 to fixed_48, got 'fixed_49'"),
        ("vllm_k512[splits=fixed_0]", "fixed_1 to fixed_48, got 'fixed_0'"),
        ("vllm_k512[splits=fixed]", "fixed_1 to fixed_48, got 'fixed'"),
        (
            "vllm_k512[increments=some]",
            "increments must be one of each, opaque, wave, crowd, native, got 'some'",
        ),
        ("vllm_k512[equal_shortcut=1]", "equal_shortcut must be true or false, got '1'"),
        ("sglang_block512[stash_kib=40,stash_kib=48]", "policy field stash_kib must be given once"),
        ("sglang_block512[block_size=7]", "block_size must be one of 256, 512, 768, 1024, got 7"),
    ],
)
def test_fields_that_would_mean_nothing_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_variant(text)
