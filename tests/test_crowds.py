"""Is the masked share that is stated the one that a workload has?"""

import numpy as np
import pytest

from topk_lab import crowds, workloads


@pytest.mark.parametrize("num_cols", [1, 100, 513, *crowds.LENGTHS[:2]])
def test_masked_fraction_is_that_of_the_logits(num_cols):
    for workload, arguments in crowds.masks(num_cols):
        row = workloads.make(workload, 1, num_cols, **arguments)
        masked = int(np.isneginf(row).sum())
        stated = crowds.masked_fraction(workload, arguments, num_cols)
        assert abs(masked - stated * num_cols) <= 8, (workload, arguments)
    for workload in crowds.UNMASKED:
        row = workloads.make(workload, 1, num_cols)
        assert not np.isneginf(row).any()
        assert crowds.masked_fraction(workload, {}, num_cols) == 0


def test_every_share_stands_in_three_patterns():
    listed = crowds.masks(16_384)
    assert len(listed) == 2 + 3 * 4
    shares = [crowds.masked_fraction(*one, 16_384) for one in listed]
    assert (shares[0], shares[-1]) == (0, 1)
    for first in range(1, 13, 3):
        assert max(shares[first : first + 3]) - min(shares[first : first + 3]) < 1e-4
    assert {name for name, _ in listed[1:-1]} == {
        "masked_random",
        "masked_prefix",
        "masked_blocks",
    }


def test_a_row_of_nothing_is_refused():
    with pytest.raises(ValueError, match="num_cols must be at least 1, got 0"):
        crowds.masks(0)


@pytest.mark.parametrize(
    ("workload", "arguments", "num_cols"),
    [
        ("masked_blocks", {"of": 0}, 100),
        ("masked_blocks", {"of": -1}, 100),
        ("masked_blocks", {}, 100),
        ("masked_blocks", {"of": 2.5}, 100),
        ("masked_prefix", {"finite": -5}, 10),
        ("masked_prefix", {"finite": 5}, 0),
        ("masked_random", {"fraction": 2}, 10),
        ("masked_random", {"fraction": float("nan")}, 10),
        ("infinities", {}, 10),
        ("nosuch", {}, 10),
    ],
)
def test_what_is_not_on_the_list_is_refused(workload, arguments, num_cols):
    with pytest.raises(ValueError, match=f"those of masks, with its arguments, got {workload}"):
        crowds.masked_fraction(workload, arguments, num_cols)
