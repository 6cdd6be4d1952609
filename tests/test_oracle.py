"""Does the judge of every kernel accept right answers, and reject each kind of wrong one?

Right answers come from an independent route: Python's sort of (value, index), row by row.
"""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from topk_lab import workloads
from topk_lab.contract import KINDS, UNWRITTEN, assert_exact, find_violations, row_ends_from
from topk_lab.contract import oracle as oracle_module

QUICK = settings(max_examples=150, deadline=None, derandomize=True, database=None)

FLT_MAX = float(np.finfo(np.float32).max)
SUBNORMAL = 2.0**-149


def descending(value):
    """Sort key: NaN first, then falling values; equal zeros."""
    return (0, 0.0) if math.isnan(value) else (1, -value)


def ranked(live):
    """Indices of a list of live values, best first, the lowest index first among equals."""
    return sorted(range(len(live)), key=lambda i: (descending(live[i]), i))


def bounds(logits, row_ends=None, row_starts=None):
    starts = [0] * len(logits) if row_starts is None else list(row_starts)
    ends = [logits.shape[1]] * len(logits) if row_ends is None else list(row_ends)
    return [(s, max(s, e)) for s, e in zip(starts, ends, strict=True)]


def answer_of(logits, k, row_ends=None, row_starts=None, order="value"):
    """Right indices and values; the lowest indices win ties."""
    indices = np.full((len(logits), k), -1, np.int32)
    values = np.full((len(logits), k), -np.inf, np.float32)
    for row, (start, end) in enumerate(bounds(logits, row_ends, row_starts)):
        chosen = ranked(logits[row, start:end].tolist())[:k]
        if order == "index":
            chosen.sort()
        indices[row, : len(chosen)] = chosen
        values[row, : len(chosen)] = logits[row, start:end][chosen]
    return indices, values


def is_exact(live, slots):
    """The contract of one row, in plain Python."""
    wanted = min(len(slots), len(live))
    chosen = slots[:wanted]
    return (
        len(set(chosen)) == wanted
        and all(0 <= index < len(live) for index in chosen)
        and all(index == -1 for index in slots[wanted:])
        and sorted(descending(live[i]) for i in chosen)
        == sorted(descending(value) for value in live)[:wanted]
    )


def kinds_of(violations, row):
    return {violation.kind for violation in violations if violation.row == row}


# Right answers

K = 64
ROW_ENDS = (700, 640, 65, 64, 63, 1, 0, 129)
SHAPE = (len(ROW_ENDS), 704)


def question(name, poison="inf", **args):
    logits = workloads.make(
        name, *SHAPE, seed=3, row_ends=np.array(ROW_ENDS), poison=poison, **args
    )
    return logits, np.array(ROW_ENDS, np.int32)


@pytest.mark.parametrize("poison", ["nan", "inf", "1e20", None])
@pytest.mark.parametrize("name", workloads.names())
def test_right_answers_are_accepted(name, poison):
    logits, row_ends = question(name, poison)
    for order in ("value", "index"):
        indices, values = answer_of(logits, K, row_ends, order=order)
        for asked in ("any", order):
            assert_exact(
                logits,
                indices,
                k=K,
                row_ends=row_ends,
                values=values,
                tie_break="lowest",
                order=asked,
            )


@pytest.mark.parametrize("name", ["normal", "few_values", "masked_blocks", "nan", "constant"])
def test_right_answers_in_any_order_and_with_any_ties_are_accepted(name):
    logits, row_ends = question(name)
    rng = np.random.default_rng(1)
    # The highest indices win ties, and the output is shuffled.
    mirrored = logits[:, ::-1]
    starts = np.array([SHAPE[1] - end for end in ROW_ENDS])
    indices, values = answer_of(mirrored, K, [SHAPE[1]] * len(ROW_ENDS), starts)
    for row, end in enumerate(ROW_ENDS):
        m = min(K, end)
        shuffled = rng.permutation(m)
        indices[row, :m] = (end - 1 - indices[row, :m])[shuffled]
        values[row, :m] = values[row, :m][shuffled]
    assert find_violations(logits, indices, row_ends=row_ends, values=values) == []


def test_prefill_rows_are_judged_from_their_start():
    logits = workloads.make("normal", 3, 30, seed=1)
    question = {"row_starts": np.array([1, 6, 20]), "row_ends": np.array([3, 18, 23])}
    logits[:, 0] = logits[:, 23:] = np.inf
    logits[1, :6] = np.inf
    indices, values = answer_of(logits, 4, question["row_ends"], question["row_starts"])
    assert indices[0].tolist()[2:] == [-1, -1]
    assert find_violations(logits, indices, values=values, tie_break="lowest", **question) == []
    absolute = np.where(indices >= 0, indices + question["row_starts"][:, None], -1).astype(
        np.int32
    )
    assert [kinds_of(find_violations(logits, absolute, **question), row) for row in range(3)] == [
        {"out_of_range"},
        {"out_of_range"},
        {"out_of_range"},
    ]


@pytest.mark.parametrize("next_n", [1, 2, 4])
def test_sequence_lengths_give_each_row_its_end(next_n):
    logits = workloads.make("ascending", 8, 40)
    seq_lens = np.arange(8 // next_n, dtype=np.int32) * 5 - 1
    ends = [max(0, int(seq_lens[row // next_n]) - next_n + row % next_n + 1) for row in range(8)]
    indices, _ = answer_of(logits, 9, ends)
    assert find_violations(logits, indices, seq_lens=seq_lens, next_n=next_n) == []
    two_d = np.array(ends, np.int32).reshape(-1, next_n)
    assert find_violations(logits, indices, seq_lens=two_d, next_n=next_n) == []
    shifted = find_violations(logits, indices, row_ends=np.array(ends) + 1)
    assert {violation.row for violation in shifted} == set(range(8))


def test_tensors_and_arrays_are_judged_alike():
    logits, row_ends = question("normal")
    indices, values = answer_of(logits, K, row_ends)
    indices[0, 3] = -777
    values[1, 2] = 9
    arrays = find_violations(logits, indices, row_ends=row_ends, values=values)
    tensors = find_violations(
        torch.from_numpy(logits),
        torch.from_numpy(indices),
        row_ends=torch.from_numpy(row_ends),
        values=torch.from_numpy(values),
    )
    assert [(v.row, v.kind) for v in arrays] == [(0, "unwritten"), (1, "values")]
    assert tensors == arrays


@pytest.mark.parametrize("chunk_elements", [1, 2 * 704, 3 * 704, 1 << 19])
def test_rows_keep_their_number_across_chunks(monkeypatch, chunk_elements):
    monkeypatch.setattr(oracle_module, "_CHUNK_ELEMENTS", chunk_elements)
    logits, row_ends = question("normal")
    indices, values = answer_of(logits, K, row_ends)
    assert find_violations(logits, indices, row_ends=row_ends, values=values) == []
    indices[[1, 4, 7], 0] = UNWRITTEN
    found = find_violations(logits, indices, row_ends=row_ends, values=values)
    assert [(v.row, v.kind) for v in found] == [(row, "unwritten") for row in (1, 4, 7)]


def test_broadcast_and_overlapping_rows():
    base = np.arange(120, dtype=np.float32)
    broadcast = np.lib.stride_tricks.as_strided(base, (5, 100), (0, 4))
    top = np.tile(np.arange(90, 100, dtype=np.int32), (5, 1))
    assert find_violations(broadcast, top) == []
    rolling = np.lib.stride_tricks.as_strided(base % 100, (5, 100), (4, 4))
    assert [v.row for v in find_violations(rolling, top)] == [1, 2, 3, 4]
    assert find_violations(rolling, top - np.arange(5, dtype=np.int32)[:, None]) == []


def test_rows_two_gib_apart():
    # Reserved, not touched: only the two rows' pages are ever backed by memory.
    storage = np.zeros(2**29 + 1024, np.float32)
    logits = np.lib.stride_tricks.as_strided(storage, (2, 1024), (2**31, 4))
    logits[0], logits[1] = np.arange(1024), np.arange(1024)[::-1]
    indices = np.stack([np.arange(512, 1024), np.arange(512)]).astype(np.int32)
    assert find_violations(logits, indices, tie_break="lowest") == []
    indices[1] = indices[0]
    assert [(v.row, v.kind) for v in find_violations(logits, indices)] == [(1, "wrong_values")]


@pytest.mark.parametrize("shape", [(0, 10), (3, 0), (0, 0)])
def test_no_rows_or_no_columns(shape):
    indices = np.full((shape[0], 4), -1, np.int32)
    values = np.full((shape[0], 4), -np.inf, np.float32)
    logits = np.zeros(shape, np.float32)
    assert find_violations(logits, indices, values=values, tie_break="lowest", order="value") == []
    if shape[0]:
        wrong = find_violations(logits, np.arange(4 * shape[0], dtype=np.int32).reshape(-1, 4))
        assert {violation.kind for violation in wrong} == {"out_of_range", "extra"}
        assert {v.kind for v in find_violations(logits, indices, values=values + np.nan)} == {
            "values"
        }


# Wrong answers

ALL_ROWS_FULL = ("normal", "few_values", "near_equal", "masked_random", "nan", "all_neg_inf")


def put(slot, value):
    def mutate(indices, end):
        indices[slot] = value
        return indices

    return mutate


def write_first_twice(indices, end):
    indices[-1] = indices[0]
    return indices


def move_behind_a_hole(indices, end):
    m = min(len(indices), end)
    indices[1 : m + 1] = indices[:m].copy()
    indices[0] = -1
    return indices


def point_past_the_end(indices, end):
    indices[0] = end
    return indices


def leave_out_the_last(indices, end):
    indices[min(len(indices), end) - 1] = -1
    return indices


def fill_past_the_end(indices, end):
    indices[end] = indices[0]
    return indices


# name -> (rows it is done to, mutation, kinds due in each of these rows)
MUTANTS = {
    "duplicate": ((0, 1, 2), write_first_twice, {"duplicate"}),
    "duplicate-in-a-short-row": ((4,), put(slice(3), 7), {"duplicate"}),
    "out-of-range-by-one": ((1, 2, 3, 4, 5), point_past_the_end, {"out_of_range"}),
    "out-of-range-by-far": ((0, 1, 5), put(0, 2**31 - 1), {"out_of_range"}),
    "one-missing-at-the-end": ((0, 1, 4), leave_out_the_last, {"missing"}),
    "one-missing-in-the-middle": ((0, 1, 2), put(17, -1), {"missing", "hole"}),
    "hole-with-nothing-missing": ((4, 5), move_behind_a_hole, {"hole"}),
    "all-missing": ((0, 2, 5), put(slice(None), -1), {"missing"}),
    "unwritten-slot": ((0, 1, 4), put(5, UNWRITTEN), {"unwritten"}),
    "unwritten-row": ((0, 2, 3), put(slice(None), UNWRITTEN), {"unwritten"}),
    "unwritten-tail": ((4, 5, 6), put(-1, UNWRITTEN), {"unwritten"}),
    "page-id-arithmetic": ((0, 1), put(0, -2), {"unwritten"}),
    "least-int32": ((0, 1), put(0, -(2**31)), {"unwritten"}),
    "constant-output": ((0, 1, 2, 3), put(slice(None), 0), {"duplicate"}),
    "index-written-past-the-row": ((4, 5), fill_past_the_end, {"extra", "duplicate"}),
    "identity-past-the-row": ((4, 5, 6), put(slice(None), range(K)), {"extra", "out_of_range"}),
}


@pytest.mark.parametrize("workload", ALL_ROWS_FULL)
@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_indices_are_rejected_whatever_the_logits(name, workload):
    rows, mutate, kinds = MUTANTS[name]
    logits, row_ends = question(workload)
    right, _ = answer_of(logits, K, row_ends)
    for row in rows:
        wrong = right.copy()
        wrong[row] = mutate(wrong[row].copy(), ROW_ENDS[row])
        assert (wrong != right).any()
        found = find_violations(logits, wrong, row_ends=row_ends)
        assert kinds_of(found, row) == kinds
        assert {violation.row for violation in found} == {row}


@pytest.mark.parametrize(
    "workload", ["normal", "ascending", "near_equal", "mostly_negative", "same_leading_bits"]
)
def test_a_smaller_value_swapped_in_is_rejected(workload):
    logits, row_ends = question(workload)
    right, _ = answer_of(logits, K, row_ends)
    for row in (0, 1, 2):
        order = ranked(logits[row, : ROW_ENDS[row]].tolist())
        # The cutoff gives way to the next smaller value, the closest miss there is.
        cutoff = logits[row, order[K - 1]]
        smaller = next(i for i in order[K:] if logits[row, i] < cutoff)
        wrong = right.copy()
        wrong[row, K - 1] = smaller
        found = find_violations(logits, wrong, row_ends=row_ends)
        assert [(v.row, v.kind) for v in found] == [(row, "wrong_values")]
        assert f"at index {smaller} chosen" in found[0].detail


@pytest.mark.parametrize(
    ("smaller", "greater"),
    [
        (0.0, SUBNORMAL),
        (-SUBNORMAL, -0.0),
        (-np.inf, -FLT_MAX),
        (FLT_MAX, np.inf),
        (np.inf, np.nan),
        (np.inf, -np.nan),
        (1.0, 1 + 2.0**-23),
        (-1 - 2.0**-23, -1.0),
    ],
)
def test_neighbouring_values_are_told_apart(smaller, greater):
    logits = np.array([[smaller, greater, smaller]], np.float32)
    assert find_violations(logits, np.array([[1]], np.int32)) == []
    for index in (0, 2):
        found = find_violations(logits, np.array([[index]], np.int32))
        assert [violation.kind for violation in found] == ["wrong_values"]


@pytest.mark.parametrize(
    "equal", [(0.0, -0.0), (np.nan, -np.nan), (np.inf, np.inf), (-np.inf, -np.inf)]
)
def test_equal_values_are_a_free_tie(equal):
    logits = np.array([[*equal, -np.inf]], np.float32)
    for index in (0, 1):
        assert find_violations(logits, np.array([[index]], np.int32)) == []
    lowest = {"tie_break": "lowest"}
    assert find_violations(logits, np.array([[0]], np.int32), **lowest) == []
    found = find_violations(logits, np.array([[1]], np.int32), **lowest)
    assert [violation.kind for violation in found] == ["tie_break"]


def test_a_tie_written_twice_keeps_the_values_and_is_rejected():
    logits, row_ends = question("few_values", count=3)
    right, _ = answer_of(logits, K, row_ends)
    wrong = right.copy()
    wrong[0, K - 1] = wrong[0, K - 2]
    # A check of the value multiset alone would pass it.
    assert Counter(logits[0, wrong[0]].tolist()) == Counter(logits[0, right[0]].tolist())
    found = find_violations(logits, wrong, row_ends=row_ends)
    assert [(v.row, v.kind) for v in found] == [(0, "duplicate")]
    assert found[0].detail.startswith(f"index {right[0, K - 2]} in slots {K - 2}, {K - 1}")


@pytest.mark.parametrize("workload", ["ascending", "normal", "masked_random", "pivot_bins"])
def test_row_0_right_and_the_others_wrong_is_rejected(workload):
    logits = workloads.make(workload, 6, 2000, seed=2)
    right, _ = answer_of(logits, K)
    found = find_violations(logits, np.tile(right[0], (6, 1)))
    assert [(v.row, v.kind) for v in found] == [(row, "wrong_values") for row in range(1, 6)]


def test_identity_output_is_rejected():
    logits = workloads.make("normal", 6, 2000, seed=2)
    found = find_violations(logits, np.tile(np.arange(K, dtype=np.int32), (6, 1)))
    assert [(v.row, v.kind) for v in found] == [(row, "wrong_values") for row in range(6)]


@pytest.mark.parametrize("workload", ["normal", "few_values", "all_neg_inf"])
@pytest.mark.parametrize("poison", ["inf", "nan", "1e20"])
def test_the_index_of_a_poisoned_column_is_rejected(workload, poison):
    logits, row_ends = question(workload, poison)
    right, _ = answer_of(logits, K, row_ends)
    for row in (0, 2, 3, 6):
        wrong = right.copy()
        wrong[row, 0] = ROW_ENDS[row]
        found = find_violations(logits, wrong, row_ends=row_ends)
        assert "out_of_range" in kinds_of(found, row)
        assert "wrong_values" not in kinds_of(found, row)
        assert {violation.row for violation in found} == {row}


@pytest.mark.parametrize(
    ("indices", "kinds", "detail"),
    [
        (np.zeros((4, 3), np.int64), ["dtype"], "indices must be int32, got int64"),
        (np.zeros((4, 3), np.uint32), ["dtype"], "indices must be int32, got uint32"),
        (np.zeros((4, 3), np.float32), ["dtype"], "indices must be int32, got float32"),
        (torch.zeros(4, 3, dtype=torch.bfloat16), ["dtype"], "indices must be int32, got bfloat16"),
        (
            np.zeros((3, 3), np.int32),
            ["shape"],
            "indices must have shape (num_rows, k) = (4, 3), got (3, 3)",
        ),
        (
            np.zeros((4, 2), np.int32),
            ["shape"],
            "indices must have shape (num_rows, k) = (4, 3), got (4, 2)",
        ),
        (
            np.zeros(12, np.int32),
            ["shape"],
            "indices must have shape (num_rows, k) = (4, 3), got (12,)",
        ),
        (
            [[0, 1, 2]] * 4,
            ["shape", "dtype"],
            "indices must have shape (num_rows, k) = (4, 3), got ()",
        ),
        (None, ["shape", "dtype"], "indices must have shape (num_rows, k) = (4, 3), got ()"),
    ],
)
def test_wrong_shape_and_dtype_are_rejected(indices, kinds, detail):
    found = find_violations(np.ones((4, 9), np.float32), indices, k=3)
    assert [(violation.row, violation.kind) for violation in found] == [(None, k) for k in kinds]
    assert found[0].detail == detail


def test_no_slot_at_all_is_rejected():
    found = find_violations(np.ones((4, 9), np.float32), np.zeros((4, 0), np.int32))
    assert [str(violation) for violation in found] == [
        "answer: shape: indices must have shape (num_rows, k) = (4, k), got (4, 0)"
    ]


def test_a_broken_tie_rule_is_rejected_only_where_it_is_asked_for():
    logits, row_ends = question("few_values", count=4)
    wrong, _ = answer_of(logits, K, row_ends)
    live = logits[0, : ROW_ENDS[0]].tolist()
    cutoff = live[wrong[0, K - 1]]
    taken = set(wrong[0].tolist())
    other = next(i for i, value in enumerate(live) if value == cutoff and i not in taken)
    assert other > wrong[0, K - 1]
    wrong[0, K - 1] = other
    assert find_violations(logits, wrong, row_ends=row_ends) == []
    found = find_violations(logits, wrong, row_ends=row_ends, tie_break="lowest")
    assert [(v.row, v.kind) for v in found] == [(0, "tie_break")]
    assert f"at index {other} chosen" in found[0].detail


def test_the_tie_rule_holds_within_the_live_columns():
    logits = np.zeros((1, 10), np.float32)
    question = {"row_starts": np.array([4]), "row_ends": np.array([8]), "tie_break": "lowest"}
    assert find_violations(logits, np.array([[0, 1]], np.int32), **question) == []
    found = find_violations(logits, np.array([[0, 2]], np.int32), **question)
    assert [str(violation) for violation in found] == [
        "row 0: tie_break: 0.0 at index 2 chosen, 0.0 at index 1 left out"
    ]


@pytest.mark.parametrize("workload", ["normal", "few_values", "nan", "signed_zeros"])
@pytest.mark.parametrize("order", ["index", "value"])
def test_a_broken_order_is_rejected_only_where_it_is_asked_for(workload, order):
    logits, row_ends = question(workload)
    right, _ = answer_of(logits, K, row_ends, order=order)
    for row, slot in ((0, 0), (1, K - 2), (4, 20)):
        wrong = right.copy()
        wrong[row, slot : slot + 2] = wrong[row, slot : slot + 2][::-1]
        arguments = {"row_ends": row_ends, "tie_break": "lowest"}
        assert find_violations(logits, wrong, **arguments) == []
        found = find_violations(logits, wrong, order=order, **arguments)
        assert [(v.row, v.kind) for v in found] == [(row, "order")]
        assert f"in slot {slot} before" in found[0].detail


def test_equal_values_are_ordered_by_index():
    logits = np.array([[0.0, -0.0, np.nan, -np.nan, 1.0]], np.float32)
    right = np.array([[2, 3, 4, 0, 1]], np.int32)
    assert find_violations(logits, right, order="value") == []
    for slots in ([1, 0, 2, 3, 4], [0, 1, 2, 4, 3], [0, 2, 1, 3, 4]):
        found = find_violations(logits, right[:, slots], order="value")
        assert [violation.kind for violation in found] == ["order"]


@pytest.mark.parametrize("workload", ["normal", "nan", "masked_prefix", "tiny"])
def test_wrong_values_are_rejected(workload):
    logits, row_ends = question(workload)
    indices, right = answer_of(logits, K, row_ends)
    # The last row's tail: 63 live columns of 64, so slot 63 must hold -inf.
    for row, slot, value in (
        (0, 5, np.float32(7)),
        (1, K - 1, np.nextafter(right[1, K - 1], np.float32(np.inf))),
        (4, 63, np.float32(0)),
        (4, 63, np.float32(np.nan)),
        (6, 0, np.float32(np.finfo(np.float32).min)),
    ):
        if np.array_equal(right[row, slot], value, equal_nan=True):
            continue
        wrong = right.copy()
        wrong[row, slot] = value
        found = find_violations(logits, indices, row_ends=row_ends, values=wrong)
        assert [(v.row, v.kind) for v in found] == [(row, "values")]
        assert f"in slot {slot}, required" in found[0].detail


def test_values_of_one_nan_and_one_zero_are_equal():
    logits = np.array([[-np.nan, -0.0, 5.0, 1.0]], np.float32)
    indices = np.array([[0, 2, 3, 1]], np.int32)
    assert find_violations(logits, indices, values=np.array([[np.nan, 5, 1, 0]], np.float32)) == []
    found = find_violations(logits, indices, values=np.array([[np.inf, 5, 1, 0]], np.float32))
    assert [str(violation) for violation in found] == [
        "row 0: values: inf in slot 0, required nan at index 0"
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((1, 2), np.float64), "answer: dtype: values must be float32, got float64"),
        (
            np.zeros((1, 3), np.float32),
            "answer: shape: values must have shape (num_rows, k) = (1, 2), got (1, 3)",
        ),
    ],
)
def test_values_of_wrong_shape_or_dtype_are_rejected(values, message):
    found = find_violations(
        np.zeros((1, 4), np.float32), np.array([[0, 1]], np.int32), values=values
    )
    assert [str(violation) for violation in found] == [message]


def test_every_kind_comes_from_the_list_and_in_its_order():
    logits = np.arange(8, dtype=np.float32)[None]
    indices = np.array([[-1, -777, 9, 3, 3, -1, 5]], np.int32)
    found = find_violations(logits, indices, row_ends=np.array([7]))
    kinds = [violation.kind for violation in found]
    assert kinds == ["unwritten", "out_of_range", "duplicate", "hole", "missing"]
    assert kinds == sorted(kinds, key=KINDS.index)


# The judge against the contract in plain Python

SPECIAL = [
    *(0.0, -0.0, 1.0, 1 + 2.0**-23, -1.0, math.inf, -math.inf, math.nan, -math.nan),
    *(FLT_MAX, -FLT_MAX, SUBNORMAL, -SUBNORMAL),
]
LIVE = st.lists(st.sampled_from(SPECIAL), max_size=9)


@QUICK
@given(st.data())
def test_the_judge_agrees_with_plain_python(data):
    live = data.draw(LIVE)
    before = data.draw(st.lists(st.sampled_from(SPECIAL), max_size=2))
    after = data.draw(st.lists(st.sampled_from(SPECIAL), max_size=2))
    k = data.draw(st.integers(1, 10))
    anything = st.lists(st.integers(-2, len(live) + 1), min_size=k, max_size=k)
    top = [*ranked(live)[:k], *[-1] * k][:k]
    slots = list(data.draw(st.one_of(anything, st.permutations(top), st.just(top))))
    if data.draw(st.booleans()) and live:
        slots[data.draw(st.integers(0, k - 1))] = data.draw(st.integers(-1, len(live) - 1))
    logits = np.array([before + live + after], np.float32)
    found = find_violations(
        logits,
        np.array([slots], np.int32),
        row_starts=np.array([len(before)], np.int32),
        row_ends=np.array([len(before) + len(live)], np.int32),
    )
    assert (found == []) == is_exact(live, slots)


@QUICK
@given(LIVE, st.integers(1, 10), st.data())
def test_the_tie_rule_fixes_the_set(live, k, data):
    m = min(k, len(live))
    chosen = data.draw(st.permutations(range(len(live))))[:m]
    slots = [*chosen, *[-1] * (k - m)]
    found = find_violations(
        np.array([live], np.float32).reshape(1, -1), np.array([slots], np.int32), tie_break="lowest"
    )
    assert (found == []) == (set(chosen) == set(ranked(live)[:m]))


@QUICK
@given(LIVE, st.sampled_from(["index", "value"]), st.data())
def test_the_order_fixes_the_list(live, order, data):
    right = ranked(live) if order == "value" else list(range(len(live)))
    slots = [*data.draw(st.one_of(st.permutations(right), st.just(right))), -1]
    found = find_violations(
        np.array([live], np.float32).reshape(1, -1), np.array([slots], np.int32), order=order
    )
    assert (found == []) == (slots[:-1] == right)


# Faults seen elsewhere: the smallest input and its right answer (the lowest index wins a tie)


def row(*pieces):
    return np.concatenate([np.asarray(piece, np.float32).reshape(-1) for piece in pieces])


def sparse(num_cols, default, entries):
    values = np.full(num_cols, default, np.float32)
    for index, value in entries.items():
        values[index] = value
    return values


NAN_SIGNS = np.array([0xFFC00000, 0x7FC00000], np.uint32).view(np.float32)
EVEN = np.where(np.arange(1024) % 2, 0.0, -0.0)

FAULTS = {
    # id: (row of logits, live length, right indices)
    "filler-above-neg-inf": (
        row(sparse(513, -np.inf, {7: 1, 99: 2, 512: 3}), np.inf, np.inf),
        513,
        {7, 99, 512, *[i for i in range(511) if i not in (7, 99)][:509]},
    ),
    "neg-inf-winners": (sparse(513, -np.inf, {0: 0.5}), 513, set(range(512))),
    "all-neg-inf": (np.full(1024, -np.inf), 1024, set(range(512))),
    "all-pos-inf": (np.full(1024, np.inf), 1024, set(range(512))),
    "all-least-finite": (np.full(1024, -FLT_MAX), 1024, set(range(512))),
    "mixed-infinities": (
        np.where(np.arange(1024) % 4 == 3, np.inf, -np.inf),
        1024,
        {*range(3, 1024, 4), *[i for i in range(1024) if i % 4 != 3][:256]},
    ),
    "least-finite-beside-neg-inf": (
        row(np.ones(511), -np.inf, -FLT_MAX, np.full(7, np.nan)),
        513,
        {*range(511), 512},
    ),
    "mostly-nan": (row(np.arange(100), np.full(924, np.nan)), 1024, set(range(100, 612))),
    "one-nan": (row(0, np.nan, np.arange(2, 513)), 513, {1, *range(2, 513)}),
    "nan-of-both-signs": (
        row(np.arange(10), NAN_SIGNS, np.arange(12, 1024)),
        1024,
        {10, 11, *range(514, 1024)},
    ),
    "signed-zeros": (
        np.where((np.arange(1024) % 2 == 0) & (np.arange(1024) < 200), 1.0, EVEN),
        1024,
        set(range(512)),
    ),
    "subnormals": (np.arange(1024, dtype=np.uint32).view(np.float32), 1024, set(range(512, 1024))),
    "all-equal": (np.ones(1024), 1024, set(range(512))),
    "identity-one-too-far": (np.arange(513), 513, set(range(1, 513))),
    "short-row": (row(np.arange(100), np.full(924, np.inf)), 100, set(range(100))),
    "width-below-k": (np.arange(300), 300, set(range(300))),
    "length-above-width": (np.arange(600), 700, set(range(88, 600))),
    "negative-length": (np.arange(1024), -1, set()),
    "least-length": (np.arange(1024), -(2**31), set()),
    "high-lanes": (
        np.where(np.arange(1024) % 64 >= 32, 2, 1),
        1024,
        {i for i in range(1024) if i % 64 >= 32},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_right_answer_to_a_fault_seen_elsewhere(name):
    values, length, right = FAULTS[name]
    logits = np.asarray(values, np.float32)[None]
    end = min(max(length, 0), logits.shape[1])
    indices, chosen = answer_of(logits, 512, [end])
    assert set(indices[0].tolist()) - {-1} == right
    question = {"row_ends": np.array([length], np.int32), "tie_break": "lowest", "values": chosen}
    assert find_violations(logits, indices, **question) == []
    # The same with the greatest right index, if any, given up for another live one.
    if 0 < len(right) < end:
        wrong = indices.copy()
        wrong[wrong == max(right)] = next(i for i in range(end) if i not in right)
        assert len(find_violations(logits, wrong, **question)) >= 1
    elif right:
        assert len(find_violations(logits, np.full_like(indices, -1), **question)) >= 1
    else:
        wrong = indices.copy()
        wrong[0, 0] = 0
        assert kinds_of(find_violations(logits, wrong, **question), 0) >= {"out_of_range"}


# The question and the report


@pytest.mark.parametrize(
    ("logits", "arguments", "error", "message"),
    [
        (np.zeros((2, 3)), {}, TypeError, "logits must be float32, got float64"),
        ([[1.0]], {}, TypeError, "logits must be float32, got list"),
        (
            np.zeros(3, np.float32),
            {},
            ValueError,
            r"logits must have shape \(num_rows, num_cols\), got \(3,\)",
        ),
        (
            np.zeros((2, 3), np.float32),
            {"row_ends": np.zeros(3, np.int32)},
            ValueError,
            r"row_ends must have shape \(num_rows,\) = \(2,\), got \(3,\)",
        ),
        (
            np.zeros((2, 3), np.float32),
            {"row_ends": np.zeros(2, np.float32)},
            TypeError,
            "row_ends must be int32, got float32",
        ),
        (np.zeros((2, 3), np.float32), {"k": 0}, ValueError, "k must be at least 1, got 0"),
        (
            np.zeros((2, 3), np.float32),
            {"tie_break": "no"},
            ValueError,
            "tie_break must be one of any, lowest, got 'no'",
        ),
        (
            np.zeros((2, 3), np.float32),
            {"order": "no"},
            ValueError,
            "order must be one of any, index, value, got 'no'",
        ),
    ],
)
def test_a_malformed_question_raises(logits, arguments, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        find_violations(logits, np.zeros((2, 1), np.int32), **arguments)


def test_assert_exact_lists_the_first_violations():
    logits = np.tile(np.arange(9, dtype=np.float32), (20, 1))
    right = np.tile(np.array([8, 7], np.int32), (20, 1))
    assert assert_exact(logits, right, order="value") is None
    wrong = right.copy()
    wrong[3:15, 1] = 2
    with pytest.raises(AssertionError) as caught:
        assert_exact(logits, wrong, limit=2)
    assert str(caught.value).splitlines() == [
        "not exact: 12 violations in 12 of 20 rows",
        "  row 3: wrong_values: 2.0 at index 2 chosen, 7.0 at index 7 left out",
        "  row 4: wrong_values: 2.0 at index 2 chosen, 7.0 at index 7 left out",
        "  and 10 more",
    ]


def test_lengths_at_the_ends_of_int64_do_not_wrap():
    zeros = np.zeros((1, 4), np.float32)
    full = find_violations(
        zeros, np.array([[-1, -1]], np.int32), row_ends=np.array([2**63], np.uint64)
    )
    assert [violation.kind for violation in full] == ["missing"]
    lowest = {"seq_lens": np.array([-(2**63)]), "next_n": 2}
    rows = np.zeros((2, 4), np.float32)
    filled = find_violations(rows, np.array([[0, 1], [-1, -1]], np.int32), **lowest)
    assert filled
    assert find_violations(rows, np.full((2, 2), -1, np.int32), **lowest) == []
    assert row_ends_from(**lowest).tolist() == [0, 0]
