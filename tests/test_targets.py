"""Does `targets.run` refuse what a kernel could not survive, and take what it should?"""

import numpy as np
import pytest

from topk_lab import driver, targets, workloads
from topk_lab.contract import UNWRITTEN, assert_exact

ROWS = np.random.default_rng(0).standard_normal((2, 1024), np.float32)
PAGES = np.random.default_rng(1).permutation(32).astype(np.int32).reshape(2, 16)  # of 64 columns
COMPILED = (
    *("sglang_block512", "sglang_block1024", "vllm_k512", "vllm_generic", "aiter_one_block"),
    *("shared_histogram", "delegate"),
)
SLOT_TARGETS = (
    ("numba", "reference"),
    ("numba", "cpu_delegate"),
    ("torch", "torch"),
    *((target, variant) for target in ("numba", *targets.AMD_TARGETS) for variant in COMPILED),
)


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
        ({"seed": -1}, ValueError, "seed must be at least 0"),
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


@pytest.mark.parametrize("target", ["gfx950", "numba"])
@pytest.mark.parametrize("variant", ["vllm_k512", "sglang_block512"])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"page_size": 48}, ValueError, "^page_size must be a power of two, got 48$"),
        ({"page_size": 0}, ValueError, "^page_size must be at least 1, got 0$"),
        (
            {"page_size": 2**31},
            ValueError,
            "^page_size must be at most 1073741824, got 2147483648$",
        ),
        ({"page_size": None}, TypeError, r"^page_size must be an int, got None \(NoneType\)$"),
        ({"page_size": True}, TypeError, r"^page_size must be an int, got True \(bool\)$"),
        ({"page_size": 64.0}, TypeError, r"^page_size must be an int, got 64.0 \(float\)$"),
        (
            {"page_table": PAGES.astype(np.int64)},
            TypeError,
            "^page_table must be an int32 ndarray, got int64$",
        ),
        (
            {"page_table": PAGES.tolist()},
            TypeError,
            "^page_table must be an int32 ndarray, got list$",
        ),
        (
            {"page_table": PAGES[0]},
            ValueError,
            r"^page_table must have shape \(num_rows, pages\) or \(batch, pages\), got \(16,\)$",
        ),
        (
            {"page_table": PAGES[:, :15]},
            ValueError,
            r"^page_table must have at least 16 pages of 64 for 1024 columns, got 15 in shape "
            r"\(2, 15\)$",
        ),
        (
            {"page_table": np.zeros((3, 16), np.int32)},
            ValueError,
            r"^page_table must have shape \(num_rows, pages\) = \(2, pages\) or \(batch, pages\) "
            r"for the rows of a sequence, got \(3, 16\)$",
        ),
        (
            {"page_table": PAGES[:1], "seq_lens": np.array([5, 5], np.int32)},
            ValueError,
            r"= \(2, pages\) or \(2, pages\) for the rows of a sequence, got \(1, 16\)$",
        ),
        (
            {"page_table": np.asfortranarray(PAGES)},
            ValueError,
            r"^page_table must be aligned, contiguous in the last dimension, with a row stride .*, "
            r"got strides \(4, 8\) bytes$",
        ),
        (
            {"page_table": np.zeros((2, 32), np.int32)[:, ::2]},
            ValueError,
            r"^page_table must be aligned, contiguous in the last dimension, with a row stride .*, "
            r"got strides \(128, 8\) bytes$",
        ),
        (
            {"page_table": np.zeros((2, 16), np.int32)[::-1]},
            ValueError,
            r"that is not negative, got strides \(-64, 4\) bytes$",
        ),
        (
            {"page_table": None},
            ValueError,
            "^page_size must come with page_table, got page_table=None$",
        ),
        (
            {"slots_only": True, "values": True},
            ValueError,
            "^slots_only must come with page_table and without values$",
        ),
    ],
)
def test_page_tables_that_do_not_serve_are_refused(target, variant, options, error, message):
    with pytest.raises(error, match=message):
        run(target=target, variant=variant, **{"page_table": PAGES, "page_size": 64, **options})


@pytest.mark.parametrize("target", ["gfx950", "numba"])
def test_slots_alone_need_a_page_table(target):
    with pytest.raises(
        ValueError, match=r"^slots_only must come with page_table and without values$"
    ):
        run(target=target, slots_only=True)


@pytest.mark.parametrize("target", ["gfx950", "numba"])
def test_an_order_that_a_variant_lacks_is_refused(target):
    for variant, order, others in (
        (
            *("vllm_k512", "index"),
            "reference, cpu_delegate, sglang_block512, sglang_block1024, aiter_one_block, delegate",
        ),
        ("sglang_block512", "value", "reference, cpu_delegate, delegate"),
    ):
        with pytest.raises(ValueError, match=f"got '{order}', which {others} offers$"):
            run(target=target, variant=variant, order=order)
    with pytest.raises(ValueError, match=r"^order must be one of any, .*, got 'sorted'$"):
        run(target=target, order="sorted")


@pytest.mark.parametrize("target", ["gfx950", "numba"])
def test_a_tie_break_that_a_variant_lacks_is_refused(target):
    for variant in ("vllm_k512", "vllm_generic", "sglang_block512", "shared_histogram"):
        with pytest.raises(
            ValueError,
            match=rf"^tie_break must be one of any for {variant}, got 'lowest', which reference, "
            r"cpu_delegate, aiter_one_block, delegate offers$",
        ):
            run(target=target, variant=variant, tie_break="lowest")
    with pytest.raises(ValueError, match=r"^tie_break must be one of any, lowest, got 'first'$"):
        run(target=target, tie_break="first")


@pytest.mark.parametrize("target", ["numba", *targets.AMD_TARGETS])
def test_a_stable_answer_holds_for_slots_and_values_too(target):
    logits = workloads.make("few_values", 2, 1024)
    given = {"page_table": PAGES, "page_size": 64, "tie_break": "lowest"}
    outcome = run(logits, target=target, variant="aiter_one_block", values=True, **given)
    due = run(logits, target="numba", variant="reference", values=True, **given)
    np.testing.assert_array_equal(outcome.indices, due.indices)
    np.testing.assert_array_equal(outcome.values, due.values)
    np.testing.assert_array_equal(outcome.slots, due.slots)
    alone = run(logits, target=target, variant="aiter_one_block", slots_only=True, **given)
    np.testing.assert_array_equal(alone.slots, due.slots)


def due_slots(indices, table, page_size):
    """Slots of indices (num_rows, k), one after another in Python ints."""
    next_n = len(indices) // len(table)
    return [
        [
            -1 if i < 0 else int(table[row // next_n, i // page_size]) * page_size + i % page_size
            for i in line
        ]
        for row, line in enumerate(indices.tolist())
    ]


@pytest.mark.parametrize(("target", "variant"), SLOT_TARGETS)
def test_slots_come_beside_exact_indices(target, variant):
    row_ends = np.array([1024, 600], np.int32)
    given = {"row_ends": row_ends, "page_table": PAGES, "page_size": 64}
    outcome = run(target=target, variant=variant, values=True, **given)
    assert_exact(ROWS, outcome.indices, row_ends=row_ends, values=outcome.values)
    assert outcome.slots.dtype == np.int32
    assert outcome.slots.tolist() == due_slots(outcome.indices, PAGES, 64)
    plain = run(target=target, variant=variant, row_ends=row_ends)
    assert plain.slots is None
    np.testing.assert_array_equal(np.sort(plain.indices), np.sort(outcome.indices))


@pytest.mark.parametrize(("target", "variant"), SLOT_TARGETS)
def test_slots_alone_leave_the_indices_as_they_were_poisoned(target, variant):
    given = {"page_table": PAGES, "page_size": 64}
    outcome = run(target=target, variant=variant, **given)
    alone = run(target=target, variant=variant, slots_only=True, **given)
    assert (alone.indices == UNWRITTEN).all()
    np.testing.assert_array_equal(np.sort(alone.slots), np.sort(outcome.slots))
    assert alone.values is None


@pytest.mark.parametrize(("target", "variant"), SLOT_TARGETS)
def test_rows_of_a_sequence_share_a_row_of_a_strided_table(target, variant):
    logits = np.random.default_rng(2).standard_normal((6, 1024), np.float32)
    storage = np.full((4, 50), UNWRITTEN, np.int32)
    wide = storage[::2, 9:25]
    wide[:] = PAGES
    lengths = {"seq_lens": np.array([1024, 5], np.int32), "next_n": 3}
    for table in (wide, np.broadcast_to(PAGES[1], (2, 16))):
        outcome = run(
            logits, target=target, variant=variant, page_table=table, page_size=64, **lengths
        )
        assert_exact(logits, outcome.indices, **lengths)
        assert outcome.slots.tolist() == due_slots(outcome.indices, table, 64)


@pytest.mark.parametrize("target", ["numba", *targets.AMD_TARGETS])
@pytest.mark.parametrize("variant", ["sglang_block512", "sglang_block1024", "aiter_one_block"])
def test_order_by_index_holds_for_the_columns_of_slots_too(target, variant):
    given = {"page_table": PAGES, "page_size": 64, "order": "index"}
    outcome = run(target=target, variant=variant, **given)
    assert_exact(ROWS, outcome.indices, order="index")
    alone = run(target=target, variant=variant, slots_only=True, **given)
    assert alone.slots.tolist() == due_slots(outcome.indices, PAGES, 64)


@pytest.mark.parametrize(("target", "variant"), SLOT_TARGETS)
def test_what_has_no_slot_is_minus_one(target, variant):
    table = PAGES.copy()
    table[0, 4], table[1, 5] = -1, 2**31 // 64
    outcome = run(target=target, variant=variant, page_table=table, page_size=64)
    page = outcome.indices // 64
    absent = (page == np.array([[4], [5]])) | (outcome.indices < 0)
    assert 20 < absent.sum() < 128
    assert (outcome.slots[absent] == -1).all()
    due = np.array(due_slots(outcome.indices, table, 64))
    np.testing.assert_array_equal(outcome.slots[~absent], due[~absent])


@pytest.mark.parametrize("target", ["gfx950", "numba", "torch"])
@pytest.mark.parametrize("shape", [(0, 1024), (3, 0)])
def test_empty_arrays_have_no_slots(target, shape):
    variant = "torch" if target == "torch" else "sglang_block512"
    table = np.zeros((shape[0], 16), np.int32)
    outcome = run(
        np.empty(shape, np.float32), target=target, variant=variant, page_table=table, page_size=64
    )
    assert outcome.slots.shape == (shape[0], 512)
    assert (outcome.slots == -1).all()


@pytest.mark.parametrize("target", ["gfx950", "numba"])
def test_what_a_selection_reads_is_left_as_it_was(target):
    kept = ROWS.copy(), PAGES.copy()
    run(target=target, variant="sglang_block1024", page_table=PAGES, page_size=64)
    np.testing.assert_array_equal(ROWS, kept[0])
    np.testing.assert_array_equal(PAGES, kept[1])
    assert ROWS.flags.writeable
    assert PAGES.flags.writeable


def test_numbers_of_numpy_are_numbers():
    outcome = run(k=np.int64(512), seed=np.int64(5))
    assert_exact(ROWS, outcome.indices)
    paged = run(variant="sglang_block512", page_table=PAGES, page_size=np.int64(64))
    assert paged.slots.tolist() == due_slots(paged.indices, PAGES, 64)


@pytest.mark.parametrize("target", ["hip", "cuda"])
def test_a_device_that_is_not_there_is_refused_with_the_fix(target, monkeypatch):
    monkeypatch.setattr(driver.readiness, "platform", lambda: None)
    with pytest.raises(driver.DriverError, match="is not built for"):
        run(target=target)
