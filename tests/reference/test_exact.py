"""The specification, against an independent sort and the oracle."""

import doctest
import threading

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import as_strided

from topk_lab import threads as shared_threads
from topk_lab import workloads
from topk_lab.contract import canonical_key, find_violations, live_bounds
from topk_lab.reference import exact, rows

NEG_INF = np.float32(-np.inf)
LEAST_FINITE = np.finfo(np.float32).min
UNALIGNED_WIDTH = 20_001


def naive_order(row):
    """Positions by falling value, equal values by position."""
    return np.argsort(~canonical_key(np.ascontiguousarray(row)), kind="stable")


def assert_right(logits, k, row_ends=None, row_starts=None):
    """Hold every order of the answer against a stable sort of each row, and against the oracle."""
    starts, ends = live_bounds(*logits.shape, row_ends=row_ends, row_starts=row_starts)
    for order in ("any", "index", "value"):
        indices, values = exact.select(logits, k, starts, ends, order=order)
        question = {"row_ends": row_ends, "row_starts": row_starts, "values": values}
        assert not find_violations(
            logits, indices, k=k, tie_break="lowest", order=order, **question
        )
        for row, live in enumerate(logits):
            expected = naive_order(live[starts[row] : ends[row]])[:k]
            got = indices[row, : len(expected)]
            assert set(got.tolist()) == set(expected.tolist())
            if order == "value":
                np.testing.assert_array_equal(got, expected)
            assert (indices[row, len(expected) :] == -1).all()
            assert (values[row, len(expected) :] == -np.inf).all()
    return exact.select(logits, k, starts, ends)[0]


def ramp(*shape):
    return np.broadcast_to(np.arange(shape[-1], dtype=np.float32), shape).copy()


def with_bits(row, **bits_at):
    for column, bits in bits_at.items():
        row.view(np.uint32)[0, int(column[1:])] = bits
    return row


@pytest.mark.parametrize("name", workloads.names())
@pytest.mark.parametrize("poison", ["nan", "inf"])
def test_workloads_with_poisoned_tails(name, poison):
    row_ends = np.array([UNALIGNED_WIDTH, 20_000, 513, 512, 511, 1, 0], np.int32)
    logits = workloads.make(
        name, len(row_ends), UNALIGNED_WIDTH, row_ends=row_ends, poison=poison, seed=3
    )

    assert_right(logits, 512, row_ends)


@pytest.mark.parametrize("k", [1, 2, 511, 2049, 9999, 10_000, 10_001])
def test_any_k(k):
    assert_right(workloads.make("few_values", 3, 10_000), k)


def test_a_filler_never_outranks_neg_inf():
    row = np.full((1, 515), NEG_INF)
    row[0, [7, 99, 512]] = [1, 2, 3]
    row[0, 513:] = np.inf

    answer = assert_right(row, 512, np.array([513]))

    assert set(answer[0].tolist()) == set(range(511)) | {512}
    assert -1 not in answer


def test_one_finite_value_and_neg_inf_for_the_rest():
    row = np.full((1, 513), NEG_INF)
    row[0, 0] = 0.5

    assert assert_right(row, 512)[0].tolist() == list(range(512))


@pytest.mark.parametrize("value", [NEG_INF, np.float32(np.inf), LEAST_FINITE, np.float32(1)])
def test_a_constant_row_keeps_the_lowest_indices(value):
    row = np.full((1, 1024), value)

    assert assert_right(row, 512)[0].tolist() == list(range(512))


def test_top_k_is_part_of_top_2k_on_ties():
    row = np.ones((1, 2048), np.float32)

    assert set(assert_right(row, 512)[0]) < set(assert_right(row, 1024)[0])


def test_least_finite_value_is_above_neg_inf():
    row = np.full((1, 520), np.nan, np.float32)
    row[0, :511] = 1
    row[0, 511] = NEG_INF
    row[0, 512] = LEAST_FINITE

    assert assert_right(row, 512, np.array([513]))[0].tolist() == [*range(511), 512]


def test_nan_outranks_everything_and_all_are_alike():
    rows_of_nan = ramp(2, 1024)
    rows_of_nan[0, 100:] = np.nan

    answer = assert_right(rows_of_nan, 512)

    assert answer[0].tolist() == list(range(100, 612))
    assert answer[1].tolist() == list(range(512, 1024))


def test_nan_of_either_sign_and_any_payload_is_the_greatest():
    row = with_bits(ramp(1, 1024), c10=0xFFC00000, c11=0x7FC00000, c12=0xFF800001)

    assert assert_right(row, 512)[0].tolist() == [10, 11, 12, *range(515, 1024)]


def test_both_zeros_are_one_tie():
    row = np.zeros((1, 1024), np.float32)
    row[0, ::2] = -0.0
    row[0, :200:2] = 1

    assert assert_right(row, 512)[0].tolist() == list(range(512))


def test_subnormals_are_not_flushed():
    row = np.arange(1024, dtype=np.uint32)[None].view(np.float32)

    assert assert_right(row, 512)[0].tolist() == list(range(512, 1024))


def test_equal_upper_22_bits():
    row = (0x3F900000 + (np.arange(8192, dtype=np.uint32) >> 3))[None].view(np.float32)

    assert assert_right(row, 512)[0].tolist() == list(range(7680, 8192))


@pytest.mark.parametrize("step", [2.0**-20, 2.0**-23])
def test_near_equal_values_beyond_any_scratch(step):
    row = (1 + np.arange(65536) * step).astype(np.float32)[None]

    assert assert_right(row, 512)[0].tolist() == list(range(65024, 65536))


def test_zeros_at_the_border_beyond_any_tie_cap():
    row = np.zeros((1, 8320), np.float32)
    ones = 83 * np.arange(100) + 5
    row[0, ones] = 1

    answer = assert_right(row, 2048)[0]

    assert set(ones) < set(answer)
    assert -1 not in answer


def test_lengths_negative_short_at_and_above_k():
    logits = ramp(7, 1024)
    logits[:, 700:] = np.inf
    lengths = np.array([-1, 0, 511, 512, 513, -(2**31), 700], np.int32)

    answer = assert_right(logits, 512, lengths)

    for row in (0, 1, 5):
        assert (answer[row] == -1).all()
    assert answer[2].tolist() == [*range(511), -1]
    assert answer[3].tolist() == list(range(512))
    assert answer[4].tolist() == list(range(1, 513))


def test_width_below_k_and_length_above_width():
    logits = ramp(2, 300)

    answer = assert_right(logits, 512, np.array([300, 2**31 - 1]))

    assert answer.shape == (2, 512)
    assert answer[1].tolist() == [*range(300), *[-1] * 212]


def test_row_starts_make_indices_relative():
    logits = ramp(3, 64)
    logits[:, :5] = np.nan

    answer = assert_right(logits, 4, np.array([18, 30, 3]), np.array([5, 6, 20]))

    assert answer.tolist() == [[9, 10, 11, 12], [20, 21, 22, 23], [-1] * 4]


@pytest.mark.parametrize("shape", [(0, 1024), (3, 0), (0, 0)])
def test_nothing_to_select_from(shape):
    indices, values = exact.select(np.empty(shape, np.float32), 512)

    assert indices.shape == values.shape == (shape[0], 512)
    assert (indices == -1).all()
    assert (values == -np.inf).all()


def test_strided_views_are_read_where_they_are():
    base = workloads.make("few_values", 1, 9001)[0]
    views = {
        "broadcast": np.broadcast_to(base[:4096], (5, 4096)),
        "rotated": as_strided(base, (5, 4096), (4, 4)),
        "unaligned": workloads.make("few_values", 3, 1100)[:, 7:1031],
        "transposed": workloads.make("normal", 600, 3).T,
        "reversed": workloads.make("normal", 3, 600)[::-1, ::-1],
    }
    for logits in views.values():
        bits = rows.row_bits(logits)
        assert np.shares_memory(bits, logits)
        assert bits.strides == logits.strides
        assert not bits.flags.writeable
        assert_right(logits, 512)
    assert base.flags.writeable


def test_row_offsets_pass_two_gibibytes():
    # Memory that is never touched is never there: two rows of 4 KiB, 2 GiB apart.
    storage = np.empty(2**29 + 1024, np.float32)
    logits = as_strided(storage, (2, 1024), (2**31, 4))
    logits[0] = np.arange(1024)
    logits[1] = np.arange(1024)[::-1]

    indices, _ = exact.select(logits, 512)

    assert indices[0].tolist() == list(range(512, 1024))
    assert indices[1].tolist() == list(range(512))


def test_torch_tensors_are_read_in_place():
    logits = torch.arange(1024, dtype=torch.float32).expand(3, 1024)

    indices, values = exact.select(logits, 3, order="value")

    assert indices.tolist() == [[1023, 1022, 1021]] * 3
    assert values.tolist() == [[1023.0, 1022.0, 1021.0]] * 3


def test_values_keep_the_bits_of_the_logits():
    row = with_bits(ramp(1, 8), c1=0xFFC00001, c2=0x80000000)

    indices, values = exact.select(row, 8)

    np.testing.assert_array_equal(values.view(np.uint32), row.view(np.uint32))
    assert indices[0].tolist() == list(range(8))


def test_threads_share_nothing(monkeypatch):
    logits = workloads.make("few_values", 64, 16_384, count=200)
    monkeypatch.setattr(shared_threads.config, "NUMBA_NUM_THREADS", 1)
    alone, _ = exact.select(logits, 512)
    monkeypatch.setattr(shared_threads.config, "NUMBA_NUM_THREADS", 7)

    for _ in range(10):
        np.testing.assert_array_equal(exact.select(logits, 512)[0], alone)


def test_two_callers_at_once():
    logits = workloads.make("few_values", 16, 16_384, count=200)
    alone, _ = exact.select(logits, 512)
    answers = []
    callers = [
        threading.Thread(target=lambda: answers.append(exact.select(logits, 512)[0]))
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()

    assert len(answers) == 4
    for answer in answers:
        np.testing.assert_array_equal(answer, alone)


SPECIAL_BITS = (
    0x7FC00000, 0xFFC00000, 0x7F800001, 0x7F800000, 0x7F7FFFFF, 0x3F800001, 0x3F800000, 0x00000001,
    0x00000000, 0x80000000, 0x80000001, 0xBF800000, 0xFF7FFFFE, 0xFF7FFFFF, 0xFF800000,
)  # fmt: skip


@hypothesis.settings(deadline=None, max_examples=150)
@hypothesis.given(
    st.lists(
        st.one_of(st.sampled_from(SPECIAL_BITS), st.integers(0, 2**32 - 1)), min_size=1, max_size=80
    ),
    st.integers(1, 90),
)
def test_any_bits(bits, k):
    assert_right(np.array(bits, np.uint32)[None].view(np.float32), k)


ROW = np.zeros((2, 8), np.float32)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        pytest.param((ROW.astype(np.float64), 1), TypeError, "logits must be float32, got float64"),
        pytest.param(
            (ROW[0], 1),
            ValueError,
            r"logits must have shape \(num_rows, num_cols\), got \(8,\)",
        ),
        pytest.param(
            (np.broadcast_to(ROW[:1, :1], (1, 2**31)), 1),
            ValueError,
            "logits must have at most 2147483647 columns, got 2147483648",
        ),
        pytest.param((ROW, 0), ValueError, "k must be at least 1, got 0"),
        pytest.param((ROW, True), TypeError, "k must be an int, got bool"),
        pytest.param((ROW, 2.0), TypeError, "k must be an int, got float"),
        pytest.param(
            (ROW, 1, None, np.array([3, 9])),
            ValueError,
            r"ends must lie in \[0, num_cols\] = \[0, 8\], got 9",
        ),
        pytest.param(
            (ROW, 1, np.array([-1, 0])),
            ValueError,
            r"starts must lie in \[0, num_cols\] = \[0, 8\], got -1",
        ),
        pytest.param(
            (ROW, 1, None, np.array([3])),
            ValueError,
            r"ends must have shape \(num_rows,\) = \(2,\), got \(1,\)",
        ),
        pytest.param(
            (ROW, 1, None, np.array([3.0, 4.0])), TypeError, "ends must be integers, got float64"
        ),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        exact.select(*arguments)


def test_unknown_order_is_named():
    with pytest.raises(ValueError, match=r"^order must be one of any, index, value, got 'size'$"):
        exact.select(ROW, 1, order="size")


def test_one_specialisation_and_no_floats():
    exact.select(ROW, 1)
    exact.select(ROW.T.copy().T, 1, order="value")

    for function in (exact.kth_key, exact.select_row):
        (signature,) = map(str, function.nopython_signatures)
        assert "float" not in signature


def test_examples_in_the_docs():
    assert doctest.testmod(exact).failed == 0
