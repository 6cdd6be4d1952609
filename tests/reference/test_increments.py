"""Are the atomics of a histogram pass those that threads and waves make, counted by hand?"""

import numpy as np
import pytest

from topk_lab import schedules, targets
from topk_lab.reference.increments import pass_atomics
from topk_lab.schedules import parse_variant

NEG_INF = np.float32(-np.inf)
ROUND = 4 * 1024  # logits that a block of 1024 threads takes at once


def policy_of(fields=""):
    return parse_variant(f"vllm_k512[{fields}]" if fields else "vllm_k512").policy


COUNT = policy_of()
EACH = policy_of("count_neg_inf=false")
WAVE = policy_of("count_neg_inf=false,increments=wave")
CROWD = policy_of("count_neg_inf=false,increments=crowd")


def logits(*values):
    return targets.aligned(np.array(values, np.float32))


def test_threads_that_hold_a_masked_logit_add_once_and_their_waves_on_an_amd_device():
    row = targets.aligned(np.zeros(2 * ROUND, np.float32))
    # Thread 0 in both rounds, thread 3 of the same wave, thread 64 of the next.
    row[[0, 1, ROUND, 4 * 3, 4 * 64]] = NEG_INF
    made = pass_atomics(row, COUNT)
    finite = row.size - 5
    assert made.hot_bin == 1023  # of +0.0
    assert (made.source, made.compiled) == (finite + 3, finite + 2)
    assert (made.source_hot, made.compiled_hot) == (finite, finite)
    assert pass_atomics(row, EACH).source == row.size


def test_a_masked_row_is_one_atomic_a_logit_a_thread_or_a_wave():
    row = targets.aligned(np.full(ROUND, NEG_INF))
    assert pass_atomics(row, EACH)[1:] == (ROUND, ROUND, ROUND, ROUND)
    assert pass_atomics(row, COUNT)[1:] == (1024, 1024, 16, 16)
    # Four visits of 16 waves.
    assert pass_atomics(row, WAVE)[1:] == (64, 64, 64, 64)
    assert pass_atomics(row, CROWD)[1:] == (16, 16, 16, 16)


def test_misaligned_ends_are_taken_by_the_first_threads():
    misaligned = targets.aligned(np.zeros(64, np.float32))[1:]
    # A head of three by threads 0 to 2, 16 bytes each, then a tail by threads 3 on.
    for position, thread in ((0, 0), (2, 2), (4, 0), (8, 1), (62, 14)):
        misaligned[:] = 0
        misaligned[[position, 3 + 4 * thread]] = NEG_INF
        assert pass_atomics(misaligned, COUNT).source == 61 + 1, position
    misaligned[:] = 0
    misaligned[[0, 1, 3]] = NEG_INF
    assert pass_atomics(misaligned, COUNT).source == 60 + 2


def test_a_wave_shares_the_bin_of_its_first_lane():
    row = targets.aligned(np.ones(256, np.float32))
    row[4 * 5 : 4 * 7] = 2  # lanes 5 and 6 of the first wave, all four of their logits
    made = pass_atomics(row, WAVE)
    assert made.source == 4 * (1 + 2)
    row[:4] = 2  # the first lane too: now ones are added one by one
    assert pass_atomics(row, WAVE).source == 4 * (1 + 61)


def test_a_crowded_bin_is_kept_until_another_is_crowded():
    row = targets.aligned(np.ones(2 * ROUND, np.float32))
    assert pass_atomics(row, CROWD).source == 16  # each wave adds once, at the end
    row[ROUND:] = 2
    # Each lane adds its ones when twos crowd, then each wave its twos.
    assert pass_atomics(row, CROWD).source == 1024 + 16
    row[:] = np.arange(row.size)  # 256 columns of a wave in bins of one number or a few
    assert pass_atomics(row, CROWD).source > ROUND


def test_a_quarter_of_the_lanes_is_a_crowd_and_less_is_not():
    row = targets.aligned(np.arange(256, dtype=np.float32) * 1e-3 + 1)
    for masked, kept in ((15, False), (16, True)):
        row[4 * (64 - masked) :] = NEG_INF
        made = pass_atomics(row, CROWD)
        # -inf is expected to be crowded, so that a wave need not begin with it.
        assert made.source == (256 - 4 * masked + 1 if kept else 256)
        row[4 * (64 - masked) :] = 1


def test_later_steps_count_what_matches_the_prefix_alone():
    row = logits(*[1.0] * 8, *[1.5] * 8, *[-1.0] * 8)
    ones = int(~np.float32(1).view(np.uint32) & 0x7FFFFFFF)
    prefix = ones >> 21 << 21
    assert pass_atomics(row, EACH, 1).source == 24
    assert pass_atomics(row, EACH, 2, prefix).source == 8
    assert pass_atomics(row, EACH, 3, ones >> 10 << 10) == (ones & 0x3FF, 8, 8, 8, 8)


def test_every_nan_falls_into_the_best_bin():
    row = logits(np.nan, -np.nan, 1.0)
    made = pass_atomics(row, EACH)
    assert (made.source, made.source_hot) == (3, 2)


def test_an_amd_device_runs_the_crowds_native_increments():
    row = targets.aligned(np.full(ROUND, 3.0, np.float32))
    assert pass_atomics(row, schedules.POLICIES["vllm_k512_uncrowded"]) == pass_atomics(row, CROWD)
    assert pass_atomics(row, EACH) == pass_atomics(
        row, policy_of("count_neg_inf=false,increments=opaque")
    )


@pytest.mark.parametrize(
    ("step", "prefix", "message"),
    [
        (4, 0, "step must be at most 3, got 4"),
        (-1, 0, "step must be at least 0, got -1"),
        (1, -1, "prefix must be at least 0, got -1"),
        (1, 2**32, "prefix must be at most 4294967295, got 4294967296"),
    ],
)
def test_a_pass_that_there_is_not_is_refused(step, prefix, message):
    with pytest.raises(ValueError, match=message):
        pass_atomics(np.zeros(8, np.float32), EACH, step, prefix)


@pytest.mark.parametrize(
    ("row", "policy", "error", "message"),
    [
        (np.zeros(8), COUNT, TypeError, "logits must be float32, got float64"),
        (np.zeros((2, 8), np.float32), COUNT, ValueError, r"shape \(length,\), contiguous"),
        (np.zeros(16, np.float32)[::2], COUNT, ValueError, r"shape \(length,\), contiguous"),
        (
            np.zeros(8, np.float32),
            policy_of("block_size=96"),
            ValueError,
            "block_size must be a multiple of 64 threads, got 96",
        ),
        (np.zeros(8, np.float32), policy_of("block_size=0"), ValueError, "multiple of 64"),
        (
            np.zeros(8, np.float32),
            schedules.POLICIES["sglang_block512"],
            TypeError,
            "policy must be a TopKPolicy, got StashPolicy",
        ),
    ],
)
def test_what_has_no_waves_is_refused(row, policy, error, message):
    with pytest.raises(error, match=message):
        pass_atomics(row, policy)
