"""Which slot of a paged cache does a selected column lie in?

The twin of ``kernels/include/topk_lab/page_table.hpp``.

Source: SGLang ``csrc/elementwise/deepseek_v4_topk.cu``; what a page that is not there, or a slot
that int32 can't name, becomes is this package's contract.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from topk_lab.contract import NO_INDEX
from topk_lab.contract.words import INT32_MAX
from topk_lab.reference.rows import row_kernel

__all__ = ["slots"]


@njit
def page_slot(table_row, page_bits, index):
    """Slot of a column: ((pages,) int32, int64, int64) -> int32.

    -1 for -1, for a page that is not there (a negative id) and for a slot beyond int32; else
    ``table_row[index // page] * page + index % page``.
    """
    if index < 0:
        return np.int32(NO_INDEX)
    page = np.int64(table_row[index >> page_bits])
    slot = (page << page_bits) | (index & ((1 << page_bits) - 1))
    return np.int32(NO_INDEX if page < 0 or slot > INT32_MAX else slot)


@row_kernel(
    types.Array(types.int32, 2, "A", readonly=True),
    types.int64,
    types.int64,
    types.Array(types.int32, 2, "A", readonly=True),
    types.int32[:, ::1],
    keep=True,
)
def transform_pages(first, last, page_table, next_n, page_bits, indices, slots):
    """Write the slot of every index: the launch behind a selection that writes indices alone."""
    for row in range(first, last):
        for i in range(slots.shape[1]):
            slots[row, i] = page_slot(
                page_table[row // next_n], page_bits, np.int64(indices[row, i])
            )


def slots(indices: np.ndarray, page_table: np.ndarray, page_bits: int) -> np.ndarray:
    """Slots of selected columns.

    Parameters
    ----------
    indices : (num_rows, k) int32 array
        -1 in a slot without a column.
    page_table : (num_rows, pages) or (batch, pages) int32 array
        Page ids; a row of it serves num_rows / batch rows. As wide as the columns.
    page_bits : int
        A page holds 2**page_bits columns.

    Returns
    -------
    (num_rows, k) int32 array

    Examples
    --------
    >>> import numpy as np
    >>> from topk_lab.reference import paging
    >>> table = np.array([[7, 3]], np.int32)
    >>> paging.slots(np.array([[0, 5, -1]], np.int32), table, 2).tolist()
    [[28, 13, -1]]
    """
    num_rows = len(indices)
    found = np.empty(indices.shape, np.int32)
    table = page_table.view()
    table.flags.writeable = False
    chosen = indices.view()
    chosen.flags.writeable = False
    if num_rows:
        next_n = num_rows // len(page_table)
        transform_pages(num_rows, indices.size, table, next_n, page_bits, chosen, found)
    return found
