"""Does `targets.run` refuse what a kernel could not survive, and take what it should?"""

import numpy as np
import pytest

from topk_lab import driver, targets
from topk_lab.contract import assert_exact

ROWS = np.random.default_rng(0).standard_normal((2, 1024), np.float32)


def run(logits=ROWS, k=512, target="gfx950", variant="vllm_k512", **options):
    return targets.run(target, variant, logits, k, **options)


@pytest.mark.parametrize("target", ["gfx950", "numba"])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"row_ends": np.array([2**32 + 5, 5])}, TypeError, "row_ends must be an int32 ndarray"),
        ({"row_ends": [5, 5]}, TypeError, "row_ends must be an int32 ndarray, got list"),
        ({"row_ends": np.array([0.5, np.nan])}, TypeError, "row_ends must be an int32 ndarray"),
        ({"seq_lens": np.array([5, 5], np.int64)}, TypeError, "seq_lens must be an int32"),
        (
            {"row_ends": np.zeros(3, np.int32)},
            ValueError,
            r"row_ends must have shape \(num_rows,\)",
        ),
        ({"row_ends": np.zeros((2, 1), np.int32)}, ValueError, "row_ends must have shape"),
        ({"row_starts": np.zeros(2, np.int32)}, ValueError, "row_starts must come with row_ends"),
        (
            {"row_ends": np.zeros(2, np.int32), "seq_lens": np.zeros(2, np.int32)},
            ValueError,
            "row_ends or seq_lens must be None, got both",
        ),
        ({"seq_lens": np.zeros(2, np.int32), "next_n": 0}, ValueError, "next_n must be at least 1"),
        ({"seq_lens": np.zeros(1, np.int32), "next_n": 3}, ValueError, "next_n must divide"),
        ({"seq_lens": np.zeros(1, np.int32), "next_n": 2.0}, TypeError, "next_n must be an int"),
        ({"k": True}, TypeError, "k must be an int"),
        ({"k": "512"}, TypeError, "k must be an int"),
        ({"k": -1}, ValueError, "k must be at least 1"),
        ({"seed": -1}, ValueError, "seed must be at least 1"),
        ({"seed": "x"}, TypeError, "seed must be an int"),
        ({"logits": [[1.0]]}, TypeError, "logits must be an ndarray, got list"),
        ({"logits": ROWS[0]}, ValueError, "logits must have shape"),
        ({"logits": ROWS[::-1]}, ValueError, "row stride of whole elements"),
        ({"logits": ROWS[:, ::2]}, ValueError, "contiguous in the last dimension"),
    ],
)
def test_bad_input_is_refused_before_a_kernel_sees_it(target, options, error, message):
    with pytest.raises(error, match=message):
        run(target=target, **options)


def test_rows_of_records_that_are_no_whole_elements_apart_are_refused():
    records = np.zeros(2, [("logits", "f4", (1024,)), ("tag", "u1")])
    with pytest.raises(ValueError, match="row stride of whole elements"):
        run(records["logits"])
    unaligned = np.frombuffer(bytearray(4 * 1024 + 1), np.uint8)[1:].view(np.float32)[None]
    with pytest.raises(ValueError, match="must be aligned"):
        run(unaligned)


@pytest.mark.parametrize("target", ["gfx950", "numba", "torch"])
@pytest.mark.parametrize("shape", [(0, 1024), (3, 0)])
def test_empty_arrays_are_taken(target, shape):
    variant = "torch" if target == "torch" else "vllm_k512"
    outcome = run(np.empty(shape, np.float32), target=target, variant=variant)
    assert outcome.indices.shape == (shape[0], 512)
    assert (outcome.indices == -1).all()


def test_numbers_of_numpy_are_numbers():
    outcome = run(k=np.int64(512), seed=np.int64(5))
    assert_exact(ROWS, outcome.indices)


@pytest.mark.parametrize("target", ["hip", "cuda"])
def test_a_device_that_is_not_there_is_refused_with_the_fix(target, monkeypatch):
    monkeypatch.setattr(driver.readiness, "platform", lambda: None)
    with pytest.raises(driver.DriverError, match="is not built for"):
        run(target=target)
