"""Is a captured call judged on what it left behind, and are stale ones found out?"""

import re

import numpy as np
import pytest
import torch

from topk_lab import registry, replay, schedules, targets, verify
from topk_lab.contract import UNWRITTEN
from topk_lab.driver import DriverError
from topk_lab.verify import graphs as replay_graphs

KIBI = 1024


def test_lengths_stand_on_both_sides_of_every_bound():
    lengths = replay.lengths_of(1024 * KIBI)
    for bound in (512, 12_288, 200_000, *(KIBI * size for size in (16, 64, 128, 256, 512, 1024))):
        assert {bound - 1, bound, bound + 1} <= set(lengths)
    assert {0, -1, -(2**31), 2**31 - 1, 1024 * KIBI + 17} <= set(lengths)
    assert all(-(2**31) <= length < 2**31 for length in lengths)
    narrow = replay.lengths_of(20_000)
    assert {16 * KIBI, 20_000, 20_001} <= set(narrow)
    assert 64 * KIBI not in narrow
    # Behind the widest buffer there is no length: int32 ends.
    assert replay.lengths_of(2**31 - 1)[-1] == 2**31 - 1


@pytest.mark.parametrize("num_rows", [1, 8, 24, 300])
def test_every_length_is_replayed(num_rows):
    lengths = replay.lengths_of(1024 * KIBI)
    given = list(replay.replays(num_rows, 1024 * KIBI, 200))
    assert {int(end) for one in given for end in one.row_ends} == set(lengths)
    assert {one.pattern for one in given} == set(replay.PATTERNS)
    assert all(one.row_ends.dtype == np.int32 and len(one.row_ends) == num_rows for one in given)
    if num_rows == 1:
        # Each row meets each pattern at other lengths.
        assert len({(one.pattern, *one.row_ends.tolist()) for one in given}) > 100


SAFE = [info.name for info in registry.VARIANTS.values() if info.graph_safe]


def test_what_is_launched_from_a_plan_claims_to_be_safe():
    assert set(SAFE) == set(schedules.POLICIES)
    frame = targets.variants().drop_duplicates("variant").set_index("variant")
    assert set(frame.index[frame["graph_safe"]]) == set(SAFE)


@pytest.mark.parametrize("variant", SAFE)
def test_a_captured_call_stays_exact(amd_target, variant):
    for check in verify.checks("graph_replays", variant, amd_target):
        finding = verify.run(check)
        assert check.holds(finding), verify.line(check, finding)
        if check.id.startswith("lengths"):
            assert finding.counters["replays"] == replay_graphs.EMULATED_SIZES.replays
            assert finding.counters["lengths"] >= 20
        if variant == "shared_histogram" and check.id == "lengths-8":
            assert finding.counters["splits"] == [1, 8]


def findings(target="gfx950"):
    found = {}
    for check in verify.checks("graph_replays", "vllm_k512", target):
        found[check.id] = verify.run(check)
    return found


@pytest.fixture(scope="module")
def found():
    return findings()


def test_splits_follow_the_lengths_that_are_replayed(found):
    assert found["lengths-8"].counters["splits"] == [1, 8]
    assert found["lengths-33"].counters["splits"] == [1, 4]


def test_lengths_that_the_host_copied_are_stale(found):
    stale = found["host-lengths"]
    assert stale.status == "wrong"
    assert stale.reason.startswith("replay 0, normal: ")
    assert stale.counters["wrong_replays"] == replay_graphs.EMULATED_SIZES.replays


def test_a_path_that_the_host_chose_is_frozen(found):
    assert found["host-path"].status == "wrong"
    # The splits are those of the length at the capture, and exact: a matter of time alone.
    frozen = found["host-splits"]
    assert frozen.status == "ok"
    assert frozen.counters["splits"] == [1]


def test_an_answer_that_is_not_written_is_wrong():
    captured = replay.capture("gfx950", "vllm_k512", 2, 2000, host="host-path")
    given = replay.Replay(0, "normal", np.array([5, 1500], np.int32))
    captured.replay(given)
    assert captured.wrong().startswith("2 rows; row 0: out_of_range: ")


def test_a_replay_with_the_lengths_of_the_capture_is_exact_even_where_the_host_decides():
    for host in ("host-lengths", "host-path"):
        ends = np.array([512, 300, 0, -7], np.int32)
        captured = replay.capture("gfx950", "vllm_k512", 4, 2000, host=host, row_ends=ends)
        captured.replay(replay.Replay(0, "few values", ends))
        assert captured.wrong() is None


def test_replays_back_to_back_are_judged_by_the_lengths_that_they_were_given():
    ends = np.array([[2000, 700, 3, 0], [600, 600, 1999, -7], [2, 2000, 513, 9999]], np.int32)
    captured = replay.capture("gfx950", "vllm_k512", 4, 2000, direct=True)
    answers = captured.back_to_back(ends)
    assert answers.shape == (3, 4, 512)
    for number, answer in enumerate(answers):
        assert captured.wrong_with(answer, ends[number]) is None
        assert captured.wrong_with(answer, ends[number - 1]) is not None
    with pytest.raises(ValueError, match="direct must come without host, got host='host-path'"):
        replay.capture("gfx950", "vllm_k512", 4, 2000, direct=True, host="host-path")


@pytest.mark.parametrize(
    ("variant", "wrong", "words"),
    [
        ("stale", True, r"^replay 2: stale lengths: the answer is that of the lengths of replay 0"),
        ("lost", True, r"^replay 2: 4 rows; row 0: unwritten"),
        ("honest", False, None),
    ],
)
def test_what_was_read_is_told_from_what_is_wrong(monkeypatch, variant, wrong, words):
    honest = replay.Captured.back_to_back

    def faulty(captured, row_ends):
        answers = honest(captured, row_ends)
        if variant != "honest":
            answers[2] = answers[0] if variant == "stale" else UNWRITTEN
        return answers

    monkeypatch.setattr(replay.Captured, "back_to_back", faulty)
    finding = replay_graphs._fresh_body("vllm_k512", "gfx950", 4, 2000, 4)
    assert (finding.status == "wrong") == wrong
    assert finding.counters["replays"] == 4
    if wrong:
        assert re.search(words, finding.reason)
        assert finding.counters["exact"] == 2


def test_what_is_a_devices_question_is_not_asked_of_others():
    for experiment in ("fresh_lengths", "side_streams"):
        assert verify.checks(experiment, "vllm_k512", "gfx950") == []
        (check,) = verify.checks(experiment, "vllm_k512", "hip")
        assert check.due == "ok"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gfx950", "reference"), "variant must be one of vllm_generic, .*, got 'reference'"),
        (("gfx950", "torch"), "variant must be one of vllm_generic, .*, got 'torch'"),
        (("numba", "vllm_k512"), "target must be one of gfx90a, .*, got 'numba'"),
    ],
)
def test_what_has_no_graph_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        replay.capture(*arguments, 2, 2000)
    with pytest.raises(ValueError, match=r"host must be one of host-lengths, .*, got 'host'"):
        replay.capture("gfx950", "vllm_k512", 2, 2000, host="host")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_rows": -1}, ValueError, "num_rows must be at least 0, got -1"),
        ({"num_rows": True}, TypeError, r"num_rows must be an int, got True \(bool\)"),
        ({"num_cols": 2000.0}, TypeError, r"num_cols must be an int, got 2000.0 \(float\)"),
        ({"num_cols": 2**31}, ValueError, "num_cols must be at most 2147483647, got 2147483648"),
        ({"k": True}, TypeError, r"k must be an int, got True \(bool\)"),
        ({"row_ends": [5, 5]}, TypeError, "row_ends must be an int32 ndarray, got list"),
        ({"row_ends": np.zeros(2)}, TypeError, "row_ends must be an int32 ndarray, got float64"),
        (
            {"row_ends": np.zeros(1, np.int32), "host": "host-lengths"},
            ValueError,
            r"row_ends must have shape \(num_rows,\) = \(2,\), got \(1,\)",
        ),
        *(
            (
                {"variant": variant, "host": "host-splits"},
                ValueError,
                f"variant must choose splits by length for host-splits, got '{variant}'",
            )
            for variant in (
                *("vllm_generic", "sglang_block1024", "aiter_one_block"),
                *("shared_histogram", "delegate"),
            )
        ),
    ],
)
def test_what_can_not_be_captured_is_refused(arguments, error, message):
    call = {"target": "gfx950", "variant": "vllm_k512", "num_rows": 2, "num_cols": 2000}
    with pytest.raises(error, match=f"^{message}"):
        replay.capture(**(call | arguments))


def test_a_host_that_fixes_splits_leaves_the_rest_of_a_policy_alone():
    ends = np.array([5, 66_000], np.int32)
    call = {"num_rows": 2, "num_cols": 66_000, "host": "host-splits", "row_ends": ends}
    captured = replay.capture("gfx950", "vllm_k512[splits=h200]", **call)
    assert str(captured.plan.variant) == "vllm_k512[splits=fixed_16]"
    with pytest.raises(ValueError, match=r"\[count_neg_inf=false,splits=fixed_8\] is not compiled"):
        replay.capture("gfx950", "vllm_k512[count_neg_inf=false]", **call)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device is there")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(DriverError, match=r"torch .* is not built for .* devices; install"):
        replay.capture("cuda", "vllm_k512", 2, 2000)


@pytest.mark.parametrize("arguments", [(-1, 5, 2), (8, 5, -1), (8, 5, 2.0), (8, 2**31, 1)])
def test_replays_of_no_shape_are_refused(arguments):
    with pytest.raises((TypeError, ValueError), match=r"^(num_rows|num_cols|count) must be"):
        next(replay.replays(*arguments))
