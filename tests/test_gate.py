"""Does the gate decide as vLLM does, on both sides of every bound, and say so with the numbers?"""

import dataclasses
import doctest

import pandas as pd
import pytest
from click.testing import CliRunner

import topk_lab
from topk_lab import gate, registry, schedules
from topk_lab.cli import main
from topk_lab.gate import launches, rules

KIBI = 1024
MEBI = 1024 * KIBI

SHAPE = ("num_rows", "num_cols", "k")

# The call that every rule but the last lets pass: each test changes what it is about.
SHORT = {
    "phase": "decode",
    "compress_ratio": 4,
    "arch": "gfx950",
    "k": 1024,
    "num_rows": 1,
    "num_cols": 65536,
    "max_len": 65536,
}


def decided(**changes):
    decision = gate.decide(**(SHORT | changes))
    return decision.kernel, decision.rule.number


@pytest.mark.parametrize(
    ("call", "supported"),
    [
        pytest.param(("decode", 4, "gfx950", 1, 65536), True, id="decode-cr4-1-row-65536"),
        pytest.param(("decode", 4, "gfx950", 257, 250_000), True, id="decode-cr4-257-rows-250000"),
        pytest.param(("decode", 2, "gfx950", 384, 1_048_576), True, id="decode-cr2-384-rows-1mi"),
        pytest.param(("prefill", 4, "gfx950", 1), True, id="prefill-cr4-1-row"),
        pytest.param(("prefill", 4, "gfx950", 20_000), True, id="prefill-cr4-20000-rows"),
        pytest.param(("prefill", 1, "gfx950", 1), False, id="prefill-cr1"),
        pytest.param(("decode", 4, "gfx950", 1, 65537), False, id="decode-cr4-1-row-65537"),
        pytest.param(("decode", 4, "gfx950", 256, 125_000), False, id="decode-cr4-256-rows-125000"),
    ],
)
def test_upstream_examples_of_the_generic_support_test(call, supported):
    assert gate.supports_aiter(*call) is supported
    phase, compress_ratio, arch, num_rows, *max_len = call
    # At a k that no preference knows the whole table says the same.
    kernel = gate.decide(
        phase, compress_ratio, arch, 1024, num_rows, max_len=max_len[0] if max_len else None
    ).kernel
    assert kernel == (f"aiter_{phase}" if supported else "native")


@pytest.mark.parametrize(
    ("shape", "preferred"),
    [
        pytest.param((128, 524_288, 512), True, id="128-rows-524288"),
        pytest.param((385, 524_288, 512), False, id="385-rows"),
        pytest.param((128, 1_048_577, 512), False, id="1048577-cols"),
        pytest.param((128, 524_288, 1024), False, id="k-1024"),
        pytest.param((1, 1, 512), True, id="1-row-1-col"),
        pytest.param((384, 1_048_576, 512), True, id="384-rows-1mi-cols"),
        pytest.param((0, 524_288, 512), False, id="no-rows"),
        pytest.param((128, None, 512), False, id="unknown-width"),
        pytest.param((128, 524_288, 511), False, id="k-511"),
        pytest.param((128, 524_288, 513), False, id="k-513"),
    ],
)
def test_upstream_examples_of_the_native_preference(shape, preferred):
    assert gate.prefers_native(*shape) is preferred
    num_rows, num_cols, k = shape
    rule = gate.decide("decode", 4, "gfx950", k, num_rows, num_cols, max_len=1).rule.number
    assert rule == (2 if preferred else 6)


def test_the_preference_is_asked_before_the_support_test():
    call = {"num_rows": 384, "num_cols": MEBI, "max_len": MEBI, "compress_ratio": 2}
    assert gate.supports_aiter("decode", 2, "gfx950", 384, MEBI)
    assert decided(**call, k=512) == ("native", 2)
    assert decided(**call) == ("aiter_decode", 6)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"compress_ratio": 1}, ("native", 1), id="cr-1"),
        pytest.param({"compress_ratio": 2}, ("aiter_decode", 6), id="cr-2"),
        pytest.param({"arch": "gfx942"}, ("native", 1), id="gfx942"),
        pytest.param({"arch": "gfx950:sramecc+:xnack-"}, ("aiter_decode", 6), id="gfx950-features"),
        pytest.param({"arch": "gfx9500"}, ("native", 1), id="another-arch-of-the-same-start"),
        pytest.param({"num_rows": 256, "max_len": 65537}, ("native", 3), id="256-rows-above-64k"),
        pytest.param({"num_rows": 256}, ("aiter_decode", 6), id="256-rows-at-64k"),
        pytest.param({"num_rows": 257, "max_len": 65537}, ("aiter_decode", 6), id="257-rows"),
        pytest.param({"num_rows": 0, "max_len": 65537}, ("native", 3), id="no-rows-above-64k"),
        pytest.param({"aiter": False}, ("native", 4), id="no-aiter"),
        pytest.param({"phase": "prefill"}, ("aiter_prefill", 5), id="prefill"),
        pytest.param({"phase": "prefill", "k": 512}, ("aiter_prefill", 5), id="prefill-k-512"),
        pytest.param({"phase": "prefill", "aiter": False}, ("native", 4), id="prefill-no-aiter"),
        pytest.param(
            {"phase": "prefill", "max_len": MEBI}, ("aiter_prefill", 5), id="prefill-has-no-max-len"
        ),
    ],
)
def test_both_sides_of_every_bound(changes, expected):
    assert decided(**changes) == expected


@pytest.mark.parametrize(
    ("num_rows", "limit"),
    [
        pytest.param(0, 64 * KIBI, id="no-rows"),
        pytest.param(48, 64 * KIBI, id="48-rows"),
        pytest.param(49, 128 * KIBI, id="49-rows"),
        pytest.param(96, 128 * KIBI, id="96-rows"),
        pytest.param(97, 256 * KIBI, id="97-rows"),
        pytest.param(192, 256 * KIBI, id="192-rows"),
        pytest.param(384, 256 * KIBI, id="384-rows"),
        pytest.param(385, 256 * KIBI, id="385-rows"),
    ],
)
def test_the_experiment_goes_by_rows_and_live_length(num_rows, limit):
    call = {"policy": "live_length", "num_rows": num_rows, "k": 512}
    assert decided(**call, max_len=limit) == ("aiter_decode", 6)
    assert decided(**call, max_len=limit + 1) == ("native", 3)
    assert decided(**call, max_len=1, full_graph=True) == ("native", 2)
    assert decided(**call, max_len=1, aiter=False) == ("native", 4)
    assert decided(**call, max_len=1, compress_ratio=1) == ("native", 1)


def test_the_two_tables_differ_where_the_preference_holds_and_rows_are_short():
    truth = gate.truth_table("merged", "live_length")
    wide = truth.pivot(index=list(truth.columns[1:-2]), columns="policy", values="kernel")
    assert set(wide.columns) == {"merged", "live_length"}
    changed = wide[wide["merged"] != wide["live_length"]].reset_index()
    assert set(changed["phase"]) == {"decode"}
    assert set(changed["arch"]) == {"gfx950"}
    assert set(zip(changed["merged"], changed["live_length"], strict=True)) == {
        ("native", "aiter_decode"),
        ("aiter_decode", "native"),
    }


@pytest.mark.parametrize("policy", gate.POLICIES)
def test_truth_tables_are_total_and_use_every_rule(policy):
    truth = gate.truth_table(policy)
    axes = list(truth.columns[1:-2])
    assert not truth.duplicated(axes).any()
    assert set(truth["kernel"]) == set(gate.KERNELS)
    by_number = {rule.number: rule for rule in gate.POLICIES[policy]}
    assert set(truth["rule"]) == set(by_number) == set(range(1, 7))
    for line in truth.to_dict("records"):
        query = rules.Query(**{name: line[name] for name in axes})
        first = next(rule for rule in gate.POLICIES[policy] if rule.matches(query))
        assert (line["rule"], line["kernel"]) == (first.number, first.kernel)
    # The last rule of either phase holds for whatever comes.
    last = {rule.phases: rule for rule in gate.POLICIES[policy][-2:]}
    assert all(rule.holds(query) for rule in last.values())
    assert set(last) == {("prefill",), ("decode",)}


def test_the_truth_table_has_both_sides_of_every_bound():
    truth = gate.truth_table()
    for axis, sides in {
        "num_rows": {0, 1, 256, 257, 384, 385},
        "num_cols": {None, MEBI, MEBI + 1},
        "max_len": {65536, 65537},
        "compress_ratio": {1, 2},
        "k": {511, 512, 513},
    }.items():
        assert set(truth[axis]) == sides
        for value in sides:
            others = sides - {value}
            rest = [name for name in truth.columns[1:-2] if name != axis]
            kernels = truth.set_index([axis, *rest])["rule"]
            assert any(
                not kernels.loc[[value]].droplevel(0).equals(kernels.loc[[other]].droplevel(0))
                for other in others
            ), f"{axis} {value} never matters"


@pytest.mark.parametrize("policy", gate.POLICIES)
def test_collapsed_tables_say_the_same(policy):
    def covers(cell, value):
        spelled = "unknown" if value is None else str(value)
        return cell == "any" or spelled in cell.split(", ")

    short = gate.truth_table(policy, collapse=True)
    assert len(short) < 30
    lines = short.to_dict("records")
    truth = gate.truth_table(policy)
    axes = list(truth.columns[1:-2])
    for asked in truth.to_dict("records")[::7]:
        matching = [line for line in lines if all(covers(line[axis], asked[axis]) for axis in axes)]
        assert [line["rule"] for line in matching] == [asked["rule"]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param({"full_graph": True, "max_model_len": 262_144}, 262_144, id="full-undivided"),
        pytest.param(
            {"full_graph": True, "max_model_len": 262_144, "max_seq_len": 8},
            262_144,
            id="full-both",
        ),
        pytest.param({"max_seq_len": 262_147}, 65_536, id="floor-divided"),
        pytest.param({"max_seq_len": 3, "max_model_len": 262_144}, 0, id="shorter-than-a-column"),
    ],
)
def test_max_len_is_the_models_under_full_graphs_and_the_batchs_otherwise(arguments, expected):
    assert gate.decode_max_len(4, **arguments) == expected


def test_under_full_graphs_a_long_model_sends_few_rows_to_native():
    # 16385 columns at most, yet long: the model's tokens are not divided by the compression.
    call = (256, 16_385, 1024)
    assert topk_lab.dispatch(*call).variant == "aiter_one_block"
    captured = topk_lab.dispatch(*call, full_graph=True)
    assert captured.variant == "vllm_generic"
    assert captured.decision.rule.number == 3
    assert "max_model_len = 65540 (tokens) stands for the length in rule 3" in captured.sentence
    assert topk_lab.dispatch(257, 16_385, 1024, full_graph=True).variant == "aiter_one_block"


@pytest.mark.parametrize(
    ("num_rows", "num_cols", "k"),
    [(24, 262_144, 512), (384, MEBI, 512), (385, MEBI, 512), (1, MEBI + 1, 512), (9, 4096, 511)],
)
def test_layers_without_compression_go_through_the_host_gate_alone(num_rows, num_cols, k):
    found = topk_lab.dispatch(num_rows, num_cols, k, compress_ratio=1)
    assert found.decision.rule.number == 1
    assert found.variant == registry.gated(num_rows, num_cols, k)
    assert found.splits == schedules.max_splits(found.variant, num_rows, num_cols)


def test_only_decode_on_gfx950_is_launched_through_the_gate():
    for changes, reason in (
        (
            {"arch": "gfx942", "compress_ratio": 4},
            "(gfx942 is not gfx950), outside the gfx950 gate, so",
        ),
        ({"phase": "prefill"}, "outside the gfx950 gate (only decode is launched through it)"),
        ({"num_rows": 0}, "outside the gfx950 gate (num_rows must be at least 1, got 0)"),
    ):
        call = {"num_rows": 24, "num_cols": 4096, "k": 512, "compress_ratio": 1} | changes
        found = topk_lab.dispatch(**call)
        assert (found.variant, found.splits) == ("vllm_generic", 1)
        assert reason in found.sentence


SENTENCES = {
    "preferred": (
        {},
        "24 rows of 262144 columns at k = 512 are inside the gfx950 gate (rule 2), so vllm_k512 "
        "serves them with up to 16 splits a row",
    ),
    "preferred-one-block": (
        {"num_rows": 1, "num_cols": 16384},
        "1 row of 16384 columns at k = 512 is inside the gfx950 gate (rule 2), so vllm_k512 "
        "serves it with one block a row",
    ),
    "captured": (
        {"full_graph": True},
        "24 rows of 262144 columns at k = 512 are inside the gfx950 gate (rule 2), so vllm_k512 "
        "serves them with up to 16 splits a row. A captured FULL graph fixes grid and workspace of "
        "16 splits a row by the width of 262144, which stands for the length; of these each replay "
        "takes as many as its live lengths ask for",
    ),
    "k-1024": (
        {"k": 1024},
        "24 rows of 262144 columns at k = 1024 go to the native kernels by rule 3 (num_rows 24 is "
        "at most 256, and max_len 262144 above 65536), outside the gfx950 gate (k must be 512 for "
        "vllm_k512, got 1024), so vllm_generic serves them with 10 splits a row; vLLM itself has a "
        "launch of up to 8 splits for k = 1024 here",
    ),
    "generic-captured": (
        {"num_cols": MEBI + 1, "full_graph": True},
        "24 rows of 1048577 columns at k = 512 go to the native kernels by rule 3 (num_rows 24 is "
        "at most 256, and max_len 4194308 above 65536), outside the gfx950 gate (num_cols must be "
        "at most 1048576 for vllm_k512, got 1048577), so vllm_generic serves them with 10 splits a "
        "row. A captured FULL graph fixes grid and workspace of 10 splits a row by the width of "
        "1048577, which stands for the length; each replay cuts and merges short live rows alike; "
        "max_model_len = 4194308 (tokens) stands for the length in rule 3",
    ),
    "aiter-captured": (
        {"num_rows": 385, "full_graph": True, "max_model_len": 131_072},
        "385 rows of 262144 columns at k = 512 go to AITER's decode by rule 6 (num_rows 385 is "
        "above 256), so aiter_one_block serves them with one block a row. A captured FULL graph "
        "fixes one block a row, whatever its length; max_model_len = 131072 (tokens) stands for "
        "the length in rule 6",
    ),
    "aiter-short": (
        {"num_rows": 385, "max_seq_len": 4000},
        "385 rows of 262144 columns at k = 512 go to AITER's decode by rule 6 (max_len 1000 is at "
        "most 65536), so aiter_one_block serves them with one block a row",
    ),
    "no-aiter": (
        {"num_rows": 385, "aiter": False},
        "385 rows of 262144 columns at k = 512 go to the native kernels by rule 4 (AITER can't be "
        "imported), outside the gfx950 gate (num_rows must be at most 384 for vllm_k512, got 385), "
        "so vllm_generic serves them with 10 splits a row",
    ),
    "prefill-native": (
        {"phase": "prefill", "compress_ratio": 1},
        "24 rows of 262144 columns at k = 512 go to the native kernels by rule 1 (compress_ratio 1 "
        "is at most 1), outside the gfx950 gate (only decode is launched through it), so "
        "vllm_generic serves them with 10 splits a row; vLLM itself launches prefill without "
        "splits",
    ),
    "prefill-aiter": (
        {"phase": "prefill"},
        "24 rows of 262144 columns at k = 512 go to AITER's prefill by rule 5 (compress_ratio 4 on "
        "gfx950, and AITER is there), so aiter_one_block serves them with one block a row; AITER "
        "itself may spread few long rows over several blocks, and answers in absolute columns, "
        "from which vLLM subtracts the row starts",
    ),
    "experiment": (
        {"policy": "live_length", "num_rows": 48},
        "48 rows of 262144 columns at k = 512 go to the native kernels by rule 3 of live_length "
        "(max_len 262144 is above 65536, the limit of num_rows 48), inside the gfx950 gate, so "
        "vllm_k512 serves them with up to 10 splits a row",
    ),
    "experiment-captured": (
        {"policy": "live_length", "full_graph": True, "num_cols": 4096},
        "24 rows of 4096 columns at k = 512 go to the native kernels by rule 2 of live_length "
        "(under a FULL graph no live length is known), inside the gfx950 gate, so vllm_k512 serves "
        "them with one block a row. A captured FULL graph fixes one block a row by the width of "
        "4096, which stands for the length",
    ),
    "experiment-aiter": (
        {"policy": "live_length", "num_rows": 96, "num_cols": 131_072},
        "96 rows of 131072 columns at k = 512 go to AITER's decode by rule 6 of live_length "
        "(max_len 131072 is at most 131072, the limit of num_rows 96), so aiter_one_block serves "
        "them with one block a row",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_the_sentence_names_the_numbers(changes, sentence):
    found = topk_lab.dispatch(**({"num_rows": 24, "num_cols": 262_144, "k": 512} | changes))
    assert str(found) == found.sentence == sentence


@pytest.mark.parametrize(
    ("num_rows", "splits"), [(32, 8), (33, 4), (64, 4), (65, 3), (256, 3), (257, None)]
)
def test_launches_of_k_1024_that_have_no_mirror_are_named(num_rows, splits):
    found = topk_lab.dispatch(num_rows, 200_000, 1024, compress_ratio=1)
    said = f"vLLM itself has a launch of up to {splits} splits for k = 1024 here"
    found_elsewhere = topk_lab.dispatch(num_rows, 200_000, 1024, arch="gfx942")
    below = topk_lab.dispatch(num_rows, 199_999, 1024, compress_ratio=1)
    # On gfx950 the call of compress_ratio 1 is native and outside the gate.
    assert found.variant == "vllm_generic"
    assert (said in found.sentence) is (splits is not None)
    assert "vLLM itself" not in found_elsewhere.sentence + below.sentence


def test_every_combination_is_dispatched_within_its_variants_gate():
    truth = gate.truth_table()
    known = truth[truth["num_cols"].notna() & (truth["num_rows"] > 0)]
    for line in known.to_dict("records")[::5]:
        asked = {name: line[name] for name in ("phase", "compress_ratio", "arch", "aiter")}
        found = topk_lab.dispatch(
            *(line["num_rows"], line["num_cols"], line["k"]),
            **asked,
            max_seq_len=line["max_len"] * line["compress_ratio"]
            if line["phase"] == "decode"
            else None,
        )
        assert (found.decision.kernel, found.decision.rule.number) == (line["kernel"], line["rule"])
        if found.variant == "vllm_k512":
            assert (line["arch"], line["phase"]) == ("gfx950", "decode")
            assert schedules.gate_refusal("vllm_k512", *(line[n] for n in SHAPE)) is None
        assert (found.variant == "aiter_one_block") == line["kernel"].startswith("aiter")
        for name in SHAPE:
            assert str(line[name]) in found.sentence


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"phase": "Decode"}, ValueError, "phase must be one of prefill, decode, got 'Decode'"),
        ({"phase": None}, ValueError, "phase must be one of prefill, decode, got None"),
        ({"arch": 950}, TypeError, "arch must be a str, got int"),
        (
            {"arch": "sm_90"},
            ValueError,
            "arch must be an AMD architecture such as gfx950, got 'sm_90'",
        ),
        ({"arch": "GFX950"}, ValueError, "arch must be an AMD architecture such as gfx950"),
        ({"compress_ratio": 0}, ValueError, "compress_ratio must be at least 1, got 0"),
        ({"compress_ratio": True}, TypeError, r"compress_ratio must be an int, got True \(bool\)"),
        ({"compress_ratio": 4.0}, TypeError, r"compress_ratio must be an int, got 4.0 \(float\)"),
        ({"num_rows": -1}, ValueError, "num_rows must be at least 0, got -1"),
        ({"num_rows": 2**31}, ValueError, "num_rows must be .* 2147483647, got 2147483648"),
        ({"num_cols": 2**31}, ValueError, "num_cols must be .* 2147483647, got 2147483648"),
        ({"num_rows": "24"}, TypeError, r"num_rows must be an int, got '24' \(str\)"),
        ({"num_cols": -1}, ValueError, "num_cols must be at least 0, got -1"),
        ({"k": 0}, ValueError, "k must be at least 1, got 0"),
        ({"policy": "best"}, ValueError, "policy must be one of merged, live_length, got 'best'"),
        ({"aiter": 1}, TypeError, "aiter must be a bool, got int"),
        ({"full_graph": "yes"}, TypeError, "full_graph must be a bool, got str"),
        (
            {"phase": "prefill", "full_graph": True},
            ValueError,
            "full_graph must be False for prefill, only decode asks for it, got True",
        ),
    ],
)
def test_bad_input_is_refused_by_name(changes, error, message):
    with pytest.raises(error, match=f"^{message}"):
        gate.decide(**(SHORT | changes))
    call = {name: value for name, value in SHORT.items() if name != "max_len"} | changes
    with pytest.raises(error, match=f"^{message}"):
        topk_lab.dispatch(**call)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gate.decide("decode", 4, "gfx950", 512, 1), ValueError, "max_len must be given"),
        (
            lambda: gate.decide("decode", 4, "gfx950", 512, 1, max_len=-1),
            ValueError,
            "max_len must be at least 0, got -1",
        ),
        (
            lambda: gate.supports_aiter("decode", 4, "gfx950", 1),
            ValueError,
            "max_len must be given for decode, got None",
        ),
        (lambda: gate.prefers_native(-1, 5, 512), ValueError, "num_rows must be at least 0"),
        (lambda: gate.prefers_native(1, 5, True), TypeError, "k must be an int, got True"),
        (
            lambda: gate.decode_max_len(4, full_graph=True, max_seq_len=5),
            ValueError,
            "max_model_len must be given under a FULL graph, got None",
        ),
        (
            lambda: gate.decode_max_len(4, max_model_len=5),
            ValueError,
            "max_seq_len must be given without a FULL graph, got None",
        ),
        (
            lambda: gate.decode_max_len(4, max_seq_len=5, max_model_len=-5),
            ValueError,
            "max_model_len must be at least 0, got -5",
        ),
        (lambda: gate.decode_max_len(0, max_seq_len=5), ValueError, "compress_ratio must be at"),
        (
            lambda: topk_lab.dispatch(1, 9000, 512, phase="prefill", max_seq_len=-4),
            ValueError,
            "max_seq_len must be None for prefill, only decode asks for it, got -4",
        ),
        (
            lambda: topk_lab.dispatch(1, None, 512),
            TypeError,
            r"num_cols must be an int, got None \(NoneType\)",
        ),
        (
            lambda: topk_lab.dispatch(1, 9000, 4096, compress_ratio=1),
            ValueError,
            r"k must be in \[1, 2048\] for vllm_generic, got 4096",
        ),
        (lambda: gate.truth_table("best"), ValueError, "policy must be one of merged, live_length"),
    ],
)
def test_lengths_and_shapes_that_are_missing_are_refused(call, error, message):
    with pytest.raises(error, match=f"^{message}"):
        call()


def test_decisions_are_values():
    decision = gate.decide(**SHORT)
    assert decision == gate.decide(**SHORT)
    assert decision != gate.decide(**SHORT, aiter=False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        decision.policy = "live_length"
    assert str(decision) == "rule 6 sends decode to AITER: max_len 65536 is at most 65536"


def test_documented_examples_hold():
    assert sum(doctest.testmod(module).attempted for module in (rules, launches)) >= 4
    assert all(doctest.testmod(module).failed == 0 for module in (rules, launches))


def call(*arguments):
    return CliRunner().invoke(main, ["dispatch", *map(str, arguments)])


def test_command_prints_the_sentence():
    done = call("--rows", 24, "--cols", 262_144)
    assert done.exit_code == 0
    assert done.stdout == f"{topk_lab.dispatch(24, 262_144, 512)}\n"
    options = (
        *("--rows", 257, "--cols", 9000, "--k", 1024, "--compress-ratio", 2, "--full-graph"),
        *("--max-model-len", 70_000, "--arch", "gfx950", "--phase", "decode", "--no-aiter"),
        *("--policy", "live_length", "--max-seq-len", 5),
    )
    said = topk_lab.dispatch(
        *(257, 9000, 1024),
        compress_ratio=2,
        full_graph=True,
        max_model_len=70_000,
        aiter=False,
        policy="live_length",
    )
    assert call(*options).stdout == f"{said}\n"


def test_command_prints_rules_and_truth_table():
    done = call("--table")
    assert done.exit_code == 0
    rules_part, truth_part = done.stdout.split("\n\n")
    assert [line[0] for line in rules_part.splitlines()] == list("123456")
    assert "1 to 384 rows, and a known width of at most 1048576: native" in rules_part
    truth = gate.truth_table(collapse=True)
    assert len(truth_part.splitlines()) == len(truth) + 1
    assert isinstance(truth, pd.DataFrame)
    assert (
        "FULL graph: no live length is known" in call("--table", "--policy", "live_length").stdout
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rows", 24), "--rows and --cols must be given, or --table"),
        (("--rows", -1, "--cols", 9), "num_rows must be at least 0, got -1"),
        (("--rows", 1, "--cols", 9, "--compress-ratio", 0), "compress_ratio must be at least 1"),
        (("--rows", 1, "--cols", 9, "--phase", "both"), "phase must be one of prefill, decode"),
        (("--table", "--policy", "best"), "policy must be one of merged, live_length, got 'best'"),
        (("--table", "--rows", "24"), "--table must stand without --rows and --cols"),
    ],
)
def test_command_refuses_in_one_line(options, words):
    done = call(*options)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("topk-lab: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
