"""What is a right answer, and what is a right call?

This module is the one statement of the contract; every kernel, twin and plan is held to it.

Row r of ``logits`` (num_rows, num_cols) is live in columns ``[start_r, end_r)``; n_r is the number
of its live columns, and indices count from its start. With m = min(k, n_r):

1. ``indices[r, :m]`` are distinct and in ``[0, n_r)``; ``indices[r, m:]`` are -1 and
   ``values[r, m:]`` are -inf.
2. No live logit that was left out is greater than one that was chosen. NaN of either sign, all
   alike, are above +inf; -inf is an ordinary value and the least; -0.0 equals +0.0.
3. Which of several equal logits at the cutoff is kept is free, unless ``tie_break="lowest"``: then
   the lowest indices are kept. The order of the output is free, unless ``order="index"`` (rising)
   or ``order="value"`` (descending, equal values by index).
4. What lies outside the live columns never matters.
5. With a page table, a selected column i stands as the slot ``(table[i >> b] << b) | (i & (2**b -
   1))`` of pages of ``2**b`` columns. -1 stays -1, and a page that is not there (a negative id), or
   a slot that int32 can't name, gives -1 too. The table is never narrower than the logits.

`find_violations` is the judge. It holds a finished answer against rule 2 as written: it selects
nothing, so it shares no step with what it judges. `inexact_rows` judges in the same way where the
logits are, on a device.
"""

from topk_lab.contract.calls import Call, Pages, check_call, check_pages_shape, check_workspace
from topk_lab.contract.device_oracle import first_fault, inexact_rows
from topk_lab.contract.lengths import live_bounds, row_ends_from
from topk_lab.contract.oracle import (
    KINDS,
    Violation,
    assert_exact,
    canonical_key,
    find_violations,
)
from topk_lab.contract.words import MAX_COLUMNS, NO_INDEX, ORDERS, TIE_BREAKS, UNWRITTEN

__all__ = [
    "KINDS",
    "MAX_COLUMNS",
    "NO_INDEX",
    "ORDERS",
    "TIE_BREAKS",
    "UNWRITTEN",
    "Call",
    "Pages",
    "Violation",
    "assert_exact",
    "canonical_key",
    "check_call",
    "check_pages_shape",
    "check_workspace",
    "find_violations",
    "first_fault",
    "inexact_rows",
    "live_bounds",
    "row_ends_from",
]
