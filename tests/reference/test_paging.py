"""Slots of a paged cache, against whole numbers without a width."""

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topk_lab.reference import paging

QUICK = settings(max_examples=200, deadline=None, derandomize=True, database=None)
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def due_slot(table_row, page_bits, index):
    """The contract, in Python ints, by division."""
    if index < 0:
        return -1
    page = int(table_row[index // 2**page_bits])
    slot = page * 2**page_bits + index % 2**page_bits
    return -1 if page < 0 or slot > INT32_MAX else slot


def due_slots(indices, page_table, page_bits):
    next_n = len(indices) // len(page_table)
    return [
        [due_slot(page_table[row // next_n].tolist(), page_bits, index) for index in line]
        for row, line in enumerate(indices.tolist())
    ]


def table_of(*rows):
    return np.array(rows, np.int32)


def some_table(num_tables, pages, page_bits, seed=0):
    """Pages whose slots int32 can name, in random order, holes and far pages among them."""
    rng = np.random.default_rng([seed, num_tables, pages])
    table = rng.integers(0, (INT32_MAX >> page_bits) + 1, (num_tables, pages)).astype(np.int32)
    table[:, ::7] = -1
    table[:, 3::7] = min((INT32_MAX >> page_bits) + 1, INT32_MAX)
    return table


# ---- one slot ------------------------------------------------------------------------------------


@QUICK
@given(
    st.integers(0, 30),
    st.lists(st.integers(INT32_MIN, INT32_MAX), min_size=1, max_size=9),
    st.integers(0, INT32_MAX),
)
def test_a_slot_is_page_and_place_for_any_page_size(page_bits, pages, index):
    index = min(index % (len(pages) * 2**page_bits), INT32_MAX)

    slot = paging.page_slot(table_of(*pages), page_bits, index)

    assert slot == due_slot(pages, page_bits, index)


@pytest.mark.parametrize("page_bits", range(31))
def test_the_first_and_the_last_column_of_each_page(page_bits):
    page_size = 2**page_bits
    pages = table_of(1, 0)
    last = min(2 * page_size - 1, INT32_MAX)

    at = [paging.page_slot(pages, page_bits, i) for i in (0, page_size - 1, page_size, last)]

    assert at == [page_size, 2 * page_size - 1, 0, page_size - 1]


@pytest.mark.parametrize("page_bits", [0, 1, 6, 15, 16, 29, 30])
def test_the_greatest_slot_is_named_and_the_one_beyond_is_not(page_bits):
    greatest_page, last_column = INT32_MAX >> page_bits, 2**page_bits - 1

    assert paging.page_slot(table_of(greatest_page), page_bits, last_column) == INT32_MAX
    if page_bits:
        # 2^31 wraps to -2^31 where the sum is made in int32.
        assert paging.page_slot(table_of(greatest_page + 1), page_bits, 0) == -1
        assert paging.page_slot(table_of(INT32_MAX), page_bits, 0) == -1


@pytest.mark.parametrize("page_bits", [0, 1, 6, 16, 30])
@pytest.mark.parametrize("page", [-1, -2, INT32_MIN])
def test_a_page_that_is_not_there_has_no_slots(page_bits, page):
    for column in (0, 2**page_bits - 1):
        assert paging.page_slot(table_of(page), page_bits, column) == -1


@pytest.mark.parametrize("page_bits", [0, 6, 30])
def test_no_column_has_no_slot(page_bits):
    # In Python -1 is the last page, and its last column.
    assert paging.page_slot(table_of(4, 5, 6), page_bits, -1) == -1
    assert paging.page_slot(table_of(), page_bits, -1) == -1


# ---- rows of them --------------------------------------------------------------------------------


@pytest.mark.parametrize("page_bits", [0, 1, 6, 12, 30])
@pytest.mark.parametrize("next_n", [1, 2, 6])
def test_rows_of_a_sequence_share_a_table_row(page_bits, next_n):
    pages = 40 if page_bits < 30 else 2
    columns = min(pages << page_bits, INT32_MAX)
    rng = np.random.default_rng(page_bits)
    indices = rng.integers(0, columns, (12, 100)).astype(np.int32)
    indices[:, 60:70] = -1
    indices[5] = -1
    indices[6, 0] = columns - 1
    table = some_table(12 // next_n, pages, page_bits)

    found = paging.slots(indices, table, page_bits)

    assert found.dtype == np.int32
    assert found.tolist() == due_slots(indices, table, page_bits)
    assert (found[5] == -1).all()


def test_many_rows_are_told_apart_by_their_tables():
    # Row r of 4000 has page r, more rows than a thread takes.
    table = np.arange(1000, dtype=np.int32)[:, None]
    indices = np.tile(np.arange(64, dtype=np.int32), (4000, 1))

    found = paging.slots(indices, table, 6)

    assert (found == np.arange(4000)[:, None] // 4 * 64 + np.arange(64)).all()


@pytest.mark.parametrize("shape", [(0, 512), (0, 0), (3, 0)])
def test_nothing_to_transform(shape):
    found = paging.slots(np.empty(shape, np.int32), np.zeros((shape[0], 5), np.int32), 6)

    assert (found.shape, found.dtype) == (shape, np.int32)


def test_tables_of_any_row_stride_are_read():
    storage = np.full((9, 31), -777, np.int32)
    wide = storage[::3, 4:24]
    wide[:] = some_table(3, 20, 4)
    indices = np.arange(6 * 320, dtype=np.int32).reshape(6, 320) % 320

    assert wide.strides == (3 * 31 * 4, 4)
    expected = paging.slots(indices, wide.copy(), 4).tolist()
    assert expected == due_slots(indices, wide, 4)
    assert paging.slots(indices, wide, 4).tolist() == expected

    shared = np.broadcast_to(wide[1], (6, 20))
    assert shared.strides[0] == 0
    assert paging.slots(indices, shared, 4).tolist() == due_slots(indices, shared, 4)


def test_indices_of_any_stride_are_read():
    storage = np.full((6, 40), -1, np.int32)
    indices = storage[::2, 5:25]
    indices[:] = np.arange(20)
    table = some_table(3, 5, 2)

    for view in (indices, indices[:, ::-1], indices[::-1]):
        assert paging.slots(view, table, 2).tolist() == due_slots(view, table, 2)


def test_what_is_read_is_left_as_it_was():
    indices = np.array([[0, 9, -1], [3, 3, 4]], np.int32)
    table = table_of([7, -1, 2], [1, 0, 5])
    kept = indices.copy(), table.copy()

    first = paging.slots(indices, table, 2)

    assert indices.flags.writeable
    assert table.flags.writeable
    np.testing.assert_array_equal(indices, kept[0])
    np.testing.assert_array_equal(table, kept[1])
    assert not np.shares_memory(first, indices)
    for array in (indices, table):
        array.flags.writeable = False
    again = paging.slots(indices, table, 2)
    assert again.tolist() == first.tolist() == [[28, 9, -1], [7, 7, 0]]


def test_examples_in_the_docs():
    assert doctest.testmod(paging).failed == 0
