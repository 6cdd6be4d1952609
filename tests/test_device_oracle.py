"""Does the judge that stays on the device find what the judge on the host finds?"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from topk_lab import workloads
from topk_lab.contract import device_oracle as oracle_module
from topk_lab.contract import find_violations, inexact_rows
from topk_lab.reference import exact

ROW_ENDS = (300, 256, 65, 64, 63, 1, 0, 129, -4, 400)
SHAPE = (len(ROW_ENDS), 304)
K = 64


def question(name, **arguments):
    row_ends = np.array(ROW_ENDS, np.int32)
    logits = workloads.make(name, *SHAPE, seed=5, row_ends=row_ends, poison="inf", **arguments)
    ends = np.clip(row_ends, 0, SHAPE[1]).astype(np.int64)
    indices, _ = exact.select(logits, K, np.zeros_like(ends), ends)
    return logits, row_ends, indices


def judged(logits, indices, row_ends):
    parts = (torch.from_numpy(np.ascontiguousarray(part)) for part in (logits, indices, row_ends))
    return set(inexact_rows(*parts).tolist())


def due(logits, indices, row_ends):
    return {violation.row for violation in find_violations(logits, indices, row_ends=row_ends)}


@pytest.mark.parametrize("name", workloads.names())
def test_right_answers_are_accepted(name):
    logits, row_ends, indices = question(name)
    assert judged(logits, indices, row_ends) == set()


def with_slots(change):
    """A wrong answer: some slots of the right one changed, row by row."""

    def mutate(logits, row_ends, indices):
        wrong = indices.copy()
        for row in range(len(wrong)):
            change(wrong[row], int(np.clip(row_ends[row], 0, SHAPE[1])), logits[row])
        return wrong

    return mutate


def put_least(slots, live, logits):
    if live > K:
        slots[0] = np.setdiff1d(np.arange(live), slots)[
            np.argmin(np.delete(np.nan_to_num(logits[:live], nan=np.inf), slots))
        ]


def set_slot(slot, value):
    def change(slots, live, logits):
        slots[slot] = value(slots, live)

    return with_slots(change)


WRONG = {
    "least-in-place-of-a-winner": with_slots(put_least),
    "index-beyond-the-end": set_slot(0, lambda slots, live: live),
    "slot-not-written": set_slot(-1, lambda slots, live: -777),
    "index-twice": set_slot(1, lambda slots, live: slots[0]),
    "hole": set_slot(0, lambda slots, live: -1),
    "index-behind-the-live-ones": set_slot(-1, lambda slots, live: 0),
    "far-index": set_slot(3, lambda slots, live: 2**31 - 1),
    "all-columns-in-order": lambda logits, row_ends, indices: np.tile(
        np.arange(K, dtype=np.int32), (len(indices), 1)
    ),
}


@pytest.mark.parametrize("mutation", list(WRONG))
@pytest.mark.parametrize("name", ["normal", "few_values", "masked_random", "nan", "signed_zeros"])
def test_wrong_rows_are_those_that_the_host_finds(name, mutation):
    logits, row_ends, indices = question(name)
    wrong = WRONG[mutation](logits, row_ends, indices)
    assert judged(logits, wrong, row_ends) == due(logits, wrong, row_ends)
    if name == "normal":
        assert judged(logits, wrong, row_ends)


VALUES = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-45, 3.4e38])


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    row=st.lists(VALUES, max_size=9),
    slots=st.lists(st.integers(-2, 9), min_size=1, max_size=6),
    end=st.integers(-1, 10),
)
def test_any_small_answer_is_judged_alike(row, slots, end):
    logits = np.array([row], np.float32).reshape(1, -1)
    indices = np.array([slots], np.int32)
    row_ends = np.array([end], np.int32)
    assert judged(logits, indices, row_ends) == due(logits, indices, row_ends)


def test_rows_are_counted_across_chunks(monkeypatch):
    monkeypatch.setattr(oracle_module, "CHUNK_ELEMENTS", 3 * SHAPE[1])
    logits, row_ends, indices = question("normal")
    wrong = indices.copy()
    wrong[[1, 4, 7]] = -777
    assert judged(logits, wrong, row_ends) == {1, 4, 7}


def test_subnormals_are_not_zero_where_arithmetic_flushes_them():
    logits, row_ends = np.array([[0.0, 1e-45, -1e-45]], np.float32), np.array([3], np.int32)
    assert torch.set_flush_denormal(True)
    try:
        assert judged(logits, np.array([[1]], np.int32), row_ends) == set()
        assert judged(logits, np.array([[0]], np.int32), row_ends) == {0}
        assert judged(logits, np.array([[1, 2]], np.int32), row_ends) == {0}
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"indices": torch.zeros(2, 4).int()}, ValueError, r"indices .* 3 rows .*, got \(2, 4\)"),
        ({"indices": torch.zeros(3).int()}, ValueError, r"indices must have shape .* got \(3,\)"),
        ({"indices": torch.zeros(3, 0).int()}, ValueError, r"indices must .* k >= 1, got \(3, 0\)"),
        ({"indices": torch.zeros(3, 4)}, TypeError, "indices must be int32, got float32"),
        ({"indices": None}, TypeError, "indices must be a torch.Tensor, got NoneType"),
        ({"logits": torch.zeros(3, 8).half()}, TypeError, "logits must be float32, got float16"),
        ({"logits": torch.zeros(3)}, ValueError, r"logits must be 2-D, got shape \(3,\)"),
        ({"row_ends": torch.zeros(3)}, TypeError, "row_ends must be int32, got float32"),
        (
            {"row_ends": torch.zeros(1).int()},
            ValueError,
            r"row_ends must have shape \(num_rows,\) = \(3,\), got \(1,\)",
        ),
    ],
)
def test_what_can_not_be_judged_is_refused(wrong, error, message):
    parts = {
        "logits": torch.zeros(3, 8),
        "indices": torch.zeros(3, 4, dtype=torch.int32),
        "row_ends": torch.zeros(3, dtype=torch.int32),
    }
    with pytest.raises(error, match=f"^{message}"):
        inexact_rows(**(parts | wrong))
