"""Are the sources' case lists what was published, and do their splits fit the schedules?"""

import numpy as np
import pytest

from topk_lab import cases, schedules
from topk_lab.contract import assert_exact, find_violations, live_bounds

NEG_INF = -np.inf
FLT_MAX = np.finfo(np.float32).max
JUST_ABOVE_1 = 1 + 2.0**-23
ALL = [case for list_name in cases.LISTS for case in cases.load(list_name)]
MASKED = cases.masked_replay()[:9]


def row_lengths(case, built):
    starts, ends = live_bounds(
        case.num_rows, case.num_cols, seq_lens=built.seq_lens, next_n=case.next_n
    )
    return (ends - starts).tolist()


def test_the_lists():
    assert {name: len(cases.load(name)) for name in cases.LISTS} == {
        "boundaries": 11,
        "boundaries-broadcast": 11,
        "masked-replay": 19,
        "mixed-replay": 2,
        "one-d-lengths": 1,
    }
    names = [str(case) for case in ALL]
    assert len(set(names)) == len(names)
    assert {case.k for case in ALL} == {512}
    with pytest.raises(ValueError, match=r"^case list must be one of boundaries, .*, got 'all'$"):
        cases.load("all")
    with pytest.raises(ValueError, match=r"^form must be one of rotated, broadcast, got 'plain'$"):
        cases.boundaries("plain")


@pytest.mark.parametrize("case", ALL, ids=str)
def test_a_case_builds_what_it_says(case):
    built = case.build()
    assert built.logits.dtype == np.float32
    assert built.logits.shape == (case.num_rows, case.num_cols)
    assert built.logits.strides[1] == 4
    assert built.seq_lens.dtype == np.int32
    assert len(row_lengths(case, built)) == len(case.splits) == case.num_rows
    again = case.build()
    assert not np.shares_memory(again.seq_lens, built.seq_lens)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_splits_and_variant_fit_the_schedules(case):
    refusal = schedules.gate_refusal("vllm_k512", case.num_rows, case.num_cols, case.k)
    assert (refusal is None) == (case.variant == "vllm_k512")
    assert schedules.gate_refusal(case.variant, case.num_rows, case.num_cols, case.k) is None
    limit = schedules.max_splits(case.variant, case.num_rows, case.num_cols)
    lengths = row_lengths(case, case.build())
    assert list(case.splits) == [
        schedules.active_splits(case.variant, case.num_rows, length, limit) for length in lengths
    ]


# Bounds of the split policy


def test_boundaries_as_published():
    assert [
        (case.num_rows, int(case.build().seq_lens[0]), case.variant, set(case.splits))
        for case in cases.boundaries()
    ] == [
        (128, 65536, "vllm_k512", {1}),
        (128, 65537, "vllm_k512", {4}),
        (129, 262144, "vllm_k512", {1}),
        (129, 262145, "vllm_k512", {3}),
        (160, 262145, "vllm_k512", {3}),
        (161, 262144, "vllm_k512", {1}),
        (161, 262145, "vllm_k512", {2}),
        (256, 262145, "vllm_k512", {2}),
        (257, 262145, "vllm_k512", {1}),
        (384, 262145, "vllm_k512", {1}),
        (385, 262145, "vllm_generic", {10}),
    ]
    assert [case.id for case in cases.boundaries()] == [
        case.id for case in cases.boundaries("broadcast")
    ]
    assert {case.next_n for case in cases.boundaries()} == {1}


@pytest.mark.parametrize("case", cases.boundaries(), ids=str)
def test_rotated_boundaries_have_one_answer_a_row(case):
    built = case.build()
    length = int(built.seq_lens[0])
    last = case.num_rows - 1
    rows = np.array([0, 1, 2, 3, case.num_rows // 2, last])
    logits, row_ends = built.logits[rows], built.seq_lens[rows]
    for row in rows:
        assert (built.logits[row, :length] == np.roll(np.arange(length), -row)).all()
    # Past the last row's end everything is greater than what is live.
    assert (built.logits[last, length:] >= length).all()
    right = np.arange(length - 512, length) - rows[:, None]
    assert_exact(logits, right.astype(np.int32), row_ends=row_ends)
    # So a kernel that reads row 0 alone is wrong in every other row.
    row_0 = np.tile(right[0], (len(rows), 1)).astype(np.int32)
    wrong = find_violations(logits, row_0, row_ends=row_ends)
    assert [violation.row for violation in wrong] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("form", ["rotated", "broadcast"])
def test_boundaries_take_the_memory_of_one_row(form):
    for case in cases.boundaries(form):
        logits = case.build().logits
        assert logits.strides[0] == (4 if form == "rotated" else 0)
        assert np.may_share_memory(logits[0], logits[-1])


@pytest.mark.parametrize("case", cases.boundaries("broadcast")[:4], ids=str)
def test_broadcast_boundaries_choose_the_last_columns(case):
    built = case.build()
    length = int(built.seq_lens[0])
    assert built.logits[0].tolist() == list(range(262145))
    right = np.tile(np.arange(length - 512, length, dtype=np.int32), (4, 1))
    assert_exact(built.logits[:4], right, row_ends=built.seq_lens[:4])


# Masked replay


def test_masked_replay_as_published():
    listed = cases.masked_replay()
    assert {(case.num_rows, case.num_cols, case.next_n) for case in listed} == {(24, 262145, 6)}
    assert {case.variant for case in listed} == {"vllm_k512"}
    lengths = [case.build().seq_lens for case in listed]
    assert all(one.shape == (4, 6) for one in lengths)
    assert [sorted(set(one.ravel().tolist())) for one in lengths] == [[70000]] * 9 + [
        [length] for length in (0, 511, 512, 513, 16384, 16385, 131072, 131073, 262144, 262145)
    ]
    assert [set(case.splits) for case in listed] == [{8}] * 9 + [
        {splits} for splits in (1, 1, 1, 1, 1, 8, 8, 10, 10, 16)
    ]


# The 512 best values of each pattern.
BEST = {
    "no-visible-column": [NEG_INF] * 512,
    "one-visible-column": [0.0, *[NEG_INF] * 511],
    "511-visible-columns": [*range(510, -1, -1), NEG_INF],
    "513-visible-columns": list(range(512, 0, -1)),
    "least-finite-in-last-place": [*[0.0] * 511, -FLT_MAX],
    "128-in-threshold-bin": [*[2.0] * 448, JUST_ABOVE_1, *[1.0] * 63],
    "129-in-threshold-bin": [*[2.0] * 448, JUST_ABOVE_1, *[1.0] * 63],
    "1024-in-threshold-bin": [JUST_ABOVE_1, *[1.0] * 511],
    "1025-in-threshold-bin": [JUST_ABOVE_1, *[1.0] * 511],
}
VISIBLE = (0, 1, 511, 513, 512, 448 + 128, 448 + 129, 1024, 1025)


@pytest.mark.parametrize(("case", "visible"), list(zip(MASKED, VISIBLE, strict=True)), ids=str)
def test_masked_patterns(case, visible):
    logits = case.build().logits
    live = logits[:, :70000]
    assert (logits[:, 70000:] == np.float32(1e20)).all()
    assert (np.count_nonzero(live != NEG_INF, axis=1) == visible).all()
    assert (live[0, :visible] != NEG_INF).all()
    assert np.sort(live[0])[::-1][:512].tolist() == BEST[case.id]
    for row in (1, 7, 23):
        assert (live[row] == np.roll(live[0], row)).all()


@pytest.mark.parametrize("case", MASKED, ids=str)
def test_masked_patterns_with_their_answer(case):
    built = case.build()
    best = np.array(BEST[case.id], np.float32)
    first = np.flatnonzero(built.logits[0, :70000] >= best[-1])
    # The pattern is best first or falls back to ties, the lowest of which are taken.
    order = np.argsort(-built.logits[0, first], kind="stable")
    indices = (first[order[:512]] + np.arange(24)[:, None]) % 70000
    assert_exact(
        built.logits,
        indices.astype(np.int32),
        seq_lens=built.seq_lens,
        next_n=case.next_n,
        values=np.tile(best, (24, 1)),
    )


def test_replayed_lengths_are_read_from_rotated_ramps():
    for case in cases.masked_replay()[9:]:
        built = case.build()
        length = int(built.seq_lens[0, 0])
        assert built.logits.strides == (4, 4)
        for row in (0, 5, 23):
            assert (built.logits[row, :length] == np.roll(np.arange(length), -row)).all()
        assert (built.logits[23, length:] >= length).all()


def test_mixed_replay_as_published():
    patterns, lengths = cases.mixed_replay()
    built = patterns.build()
    assert set(patterns.splits) == {8}
    assert (built.seq_lens == 70000).all()
    for row in range(24):
        expected = MASKED[row % 9].build().logits[0]
        assert (built.logits[row] == expected).all()
    built = lengths.build()
    assert built.seq_lens.ravel().tolist()[:11] == [
        *(0, 511, 512, 513, 16384, 16385, 131072, 131073, 262144, 262145),
        0,
    ]
    assert lengths.splits == (1, 1, 1, 1, 1, 8, 8, 10, 10, 16) * 2 + (1, 1, 1, 1)
    assert built.logits.strides == (0, 4)
    assert built.logits[5].tolist() == list(range(262145))


# 1-D lengths


def test_one_d_lengths_as_published():
    (case,) = cases.one_d_lengths()
    built = case.build()
    assert (case.num_rows, case.num_cols, case.next_n, case.variant) == (48, 16384, 6, "vllm_k512")
    assert built.seq_lens.tolist() == [0, 1, 511, 512, 513, 1023, 1024, 16000]
    assert row_lengths(case, built) == [
        max(0, length - 5 + token) for length in built.seq_lens.tolist() for token in range(6)
    ]
    assert built.logits.strides == (4 * (16384 + 8), 4)
    assert built.logits.ctypes.data - built.logits.base.ctypes.data == 4
    assert (built.logits[:, 16000:] == np.float32(1e20)).all()
    assert built.logits[0, :16000].tolist() == list(range(16000))
    assert (built.logits[47, :16000] == np.roll(np.arange(16000), -47)).all()


def test_one_d_lengths_with_their_answer():
    (case,) = cases.one_d_lengths()
    built = case.build()
    indices = np.full((48, 512), -1, np.int32)
    for row, length in enumerate(row_lengths(case, built)):
        values = (np.arange(length) + row) % 16000
        best = np.argsort(-values, kind="stable")[:512]
        indices[row, : len(best)] = best
    assert_exact(built.logits, indices, seq_lens=built.seq_lens, next_n=6, order="value")
