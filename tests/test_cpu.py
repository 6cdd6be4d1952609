"""Is the production path on CPUs exact, index by index, on any input, thread and stride?"""

import doctest
import os
import re
import subprocess
import sys
import threading
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import as_strided

import topk_lab
from topk_lab import cpu, threads, workloads
from topk_lab.contract import assert_exact, find_violations, live_bounds
from topk_lab.cpu import calls, selection
from topk_lab.reference import exact

KS = (1, 2, 31, 64, 512, 2048, 4096)
# From which on a row is read by delegates, for each k.
BOUNDS = {k: selection.DELEGATES_PER_K * selection.SEGMENT * k for k in KS}


@pytest.fixture(autouse=True)
def several_threads(monkeypatch):
    """As a machine with four cores would have."""
    monkeypatch.setattr(threads.config, "NUMBA_NUM_THREADS", 4)


def split_early(monkeypatch):
    """Let short inputs go over threads, and in many parts."""
    monkeypatch.setattr(calls, "COLUMNS_PER_THREAD", 1)
    monkeypatch.setattr(calls, "COLUMNS_PER_PART", 1)


def assert_like_reference(logits, k, starts=None, ends=None, order="index", **options):
    """Hold an answer against the oracle, and bit by bit against the specification's."""
    due = exact.select(logits, k, starts, ends, order=order)
    indices, values = cpu.select(logits, k, starts, ends, order=order, **options)
    np.testing.assert_array_equal(indices, due[0])
    np.testing.assert_array_equal(values.view(np.uint32), due[1].view(np.uint32))
    violations = find_violations(
        *(logits, indices),
        **({} if ends is None else {"row_ends": np.asarray(ends, np.int32)}),
        **({} if starts is None else {"row_starts": np.asarray(starts, np.int32)}),
        values=values,
        tie_break="lowest",
        order=order,
    )
    assert not violations, violations[:3]


@pytest.mark.parametrize("order", ["index", "value"])
@pytest.mark.parametrize("name", workloads.names())
def test_every_workload_on_both_sides_of_the_bound(name, order):
    k = 31
    ends = [0, 1, k - 1, k, k + 1, 63, 64, 65, BOUNDS[k] - 1, BOUNDS[k], BOUNDS[k] + 1, 20_000]
    logits = workloads.make(
        name, len(ends), 20_000, row_ends=np.array(ends, np.int32), poison="nan"
    )
    assert_like_reference(logits, k, ends=np.array(ends), order=order)


@pytest.mark.parametrize("name", workloads.names())
def test_every_workload_with_every_k(name):
    logits = workloads.make(name, 2, 70_000)
    for k in KS:
        assert_like_reference(logits, k)


@pytest.mark.parametrize("k", KS)
def test_lengths_on_both_sides_of_every_bound(k):
    ends = sorted(
        {0, 1, 2, 63, 64, 65, 127, 128, k - 1, k, k + 1, k + 63, k + 64, 2 * k, 2 * k + 64}
        | {max(0, BOUNDS[k] + step) for step in (-64, -1, 0, 1, 63, 64)}
    )
    for name in ("normal", "ascending", "descending", "constant", "few_values"):
        logits = workloads.make(name, len(ends), BOUNDS[k] + 64, row_ends=np.array(ends, np.int32))
        assert_like_reference(logits, k, ends=np.array(ends))


@pytest.mark.parametrize("extra", [-65, -64, -1, 0, 1, 64])
def test_ties_on_both_sides_of_what_there_is_room_for(extra):
    for k in (5, 100):
        num_cols = selection.ROOM + 2 * k + extra
        assert_like_reference(workloads.make("constant", 1, num_cols), k)
        assert_like_reference(workloads.make("few_values", 1, num_cols), k)


def test_rising_and_falling_rows_overflow_what_is_kept():
    rising = np.arange(640 * 64, dtype=np.float32)[None]
    for logits in (rising, rising[:, ::-1].copy(), np.repeat(rising, 3, axis=1)):
        for k in (5, 100, 320, 321):
            assert_like_reference(logits, k)


def test_rows_where_whole_segments_are_the_greatest():
    # Each chosen segment is full of winners, so that what is kept overflows time and again.
    logits = np.zeros((3, 128 * 1024), np.float32)
    rng = np.random.default_rng(0)
    for row, step in zip(logits, (64, 128, 640), strict=True):
        for begin in range(0, row.size - 64, step):
            row[begin : begin + 64] = rng.uniform(begin, begin + 1, 64)
    for k in (1, 64, 512, 1000):
        assert_like_reference(logits, k)


SPECIAL_BITS = (
    0x7FC00000, 0xFFC00000, 0xFF800001, 0xFFFFFFFF, 0x7FFFFFFF, 0x7F800001, 0x7F800000, 0x7F7FFFFF,
    0x3F800001, 0x3F800000, 0x00000001, 0x00000000, 0x80000000, 0x80000001, 0xBF800000, 0xFF7FFFFE,
    0xFF7FFFFF, 0xFF800000,
)  # fmt: skip


@hypothesis.settings(deadline=None, max_examples=200)
@hypothesis.given(
    st.lists(
        st.one_of(st.sampled_from(SPECIAL_BITS), st.integers(0, 2**32 - 1)), min_size=1, max_size=80
    ),
    st.integers(1, 300),
    st.integers(1, 40),
    st.sampled_from(["index", "value"]),
)
def test_any_bits(bits, k, times, order):
    logits = np.tile(np.array(bits, np.uint32), times)[None].view(np.float32)
    assert_like_reference(logits, k, order=order)


def test_keys_rise_with_the_value():
    bits = np.array(SPECIAL_BITS[::-1], np.uint32)
    due = topk_lab.contract.canonical_key(bits.view(np.float32))
    found = [int(selection.canonical(selection.rising_key(np.uint32(one)))) for one in bits]
    for i, one in enumerate(due):
        for j, other in enumerate(due):
            assert (one < other) == (found[i] < found[j]), (hex(bits[i]), hex(bits[j]))


@pytest.mark.parametrize("stride", [0, 1, 1100, 1101, 2**20 + 3], ids=lambda n: f"stride-{n}")
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_rows_anywhere_in_memory(stride, offset):
    memory = np.empty(offset + 3 * stride + 1100, np.float32)
    logits = as_strided(memory[offset:], (4, 1100), (4 * stride, 4))
    logits[...] = workloads.make("few_values", 4, 1100)
    assert np.shares_memory(cpu.rows_of(logits).bits, memory)
    for k in (7, 512):
        assert_like_reference(logits, k)


def test_row_offsets_pass_two_gibibytes():
    # Memory that is never touched is never there: two rows, 2 GiB apart.
    storage = np.empty(2**29 + 2048, np.float32)
    logits = as_strided(storage, (2, 2048), (2**31, 4))
    logits[0] = np.arange(2048)
    logits[1] = np.arange(2048)[::-1]

    indices, _ = cpu.select(logits, 512)

    assert indices[0].tolist() == list(range(1536, 2048))
    assert indices[1].tolist() == list(range(512))


def test_live_columns_between_starts_and_ends():
    starts = np.array([0, 7, 19_000, 900, 20_000, 5])
    ends = np.array([20_000, 15_003, 20_000, 800, 20_000, 6])
    for name in ("normal", "few_values", "nan"):
        logits = workloads.make(name, 6, 20_000)
        bounds = live_bounds(6, 20_000, row_starts=starts, row_ends=ends)
        for k in (1, 100, 512):
            assert_like_reference(logits, k, *bounds)


@pytest.mark.parametrize("name", ["normal", "ascending", "few_values", "nan", "masked_prefix"])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 40])
def test_threads_change_nothing(name, num_rows, monkeypatch):
    split_early(monkeypatch)
    ends = np.linspace(100, 30_000, num_rows).astype(np.int32)[::-1].copy()
    logits = workloads.make(name, num_rows, 30_000, row_ends=ends, poison="nan")
    for k in (1, 50, 512):
        for most in (1, 2, 3, 4):
            assert_like_reference(logits, k, ends=ends, threads=most)


def test_few_long_rows_are_split_over_threads(monkeypatch):
    split_early(monkeypatch)
    seen = []
    reduce_columns = calls.reduce_columns
    monkeypatch.setattr(
        calls,
        "reduce_columns",
        lambda *arguments: (seen.append(arguments[:3]), reduce_columns(*arguments)),
    )
    logits = workloads.make("normal", 2, 64_000)
    assert_like_reference(logits, 50, threads=4)
    assert sorted(seen) == [
        (row, 250 * part, 250 * part + 250) for row in range(2) for part in range(4)
    ]


def test_several_callers_at_once(monkeypatch):
    split_early(monkeypatch)
    logits = torch.from_numpy(workloads.make("few_values", 16, 40_000, count=2000))
    pages = torch.arange(625, dtype=torch.int32).expand(16, 625)
    alone = topk_lab.topk(logits, 300), topk_lab.topk_paged(logits, 300, pages, 64)
    wrong = []

    def call():
        for _ in range(20):
            again = topk_lab.topk(logits, 300), topk_lab.topk_paged(logits, 300, pages, 64)
            wrong.extend(not torch.equal(one, two) for one, two in zip(alone, again, strict=True))

    callers = [threading.Thread(target=call) for _ in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(wrong) == 240
    assert not any(wrong)


REPEATED = """
import sys, zlib
import numpy as np, torch, topk_lab
torch.set_num_threads(int(sys.argv[1]))
logits = torch.from_numpy(
    np.random.default_rng(0).standard_normal((64, 400_000), dtype=np.float32).round(2))
for _ in range(10):
    values, indices = topk_lab.topk(logits, 512, return_values=True)
    print(zlib.crc32(indices.numpy().tobytes()), zlib.crc32(values.numpy().tobytes()))
"""


def python(code, *arguments, **environment):
    """Start a process of its own."""
    known = {name: value for name, value in os.environ.items() if name != "NUMBA_NUM_THREADS"}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=known | environment,
    )


def test_calls_repeat_in_any_process_on_any_number_of_threads():
    started = [
        python(REPEATED, str(most), NUMBA_THREADING_LAYER=layer)
        for most in (1, 2)
        for layer in ("workqueue", "omp")
    ]
    lines = []
    for process in started:
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        lines += out.splitlines()
    assert len(lines) == 40
    assert len(set(lines)) == 1


FORKED = """
import os, sys
import numpy as np
from topk_lab import cpu, threads
from topk_lab.cpu import calls
calls.COLUMNS_PER_THREAD = calls.COLUMNS_PER_PART = 1
threads.config.NUMBA_NUM_THREADS = 3
logits = np.random.default_rng(0).standard_normal((9, 5000), dtype=np.float32)
due = cpu.select(logits, 20)[0]
child = os.fork()
same = all(np.array_equal(cpu.select(logits, 20)[0], due) for _ in range(50))
if child == 0:
    os._exit(0 if same else 3)
print(same, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_after_use_goes_on():
    out, error = python(FORKED).communicate(timeout=120)
    assert out.split() == ["True", "0"], error


@pytest.mark.parametrize(
    ("numba_threads", "torch_threads", "due"), [(4, 4, 4), (2, 4, 2), (4, 1, 1), (4, 3, 3)]
)
def test_thread_settings_are_kept(numba_threads, torch_threads, due, monkeypatch):
    split_early(monkeypatch)
    monkeypatch.setattr(threads.config, "NUMBA_NUM_THREADS", numba_threads)
    seen = []
    run_all = calls.run_all
    monkeypatch.setattr(
        calls,
        "run_all",
        lambda parts, most, start: (seen.append(most), run_all(parts, most, start)),
    )
    before = torch.get_num_threads()
    torch.set_num_threads(torch_threads)
    try:
        logits = torch.from_numpy(workloads.make("normal", 20, 1000))
        indices = topk_lab.topk(logits, 50)
    finally:
        torch.set_num_threads(before)
    assert seen == [due]
    assert_exact(logits, indices, tie_break="lowest", order="index")


def test_what_a_thread_raises_is_raised():
    def start():
        def turn(number):
            if number == 7:
                raise ArithmeticError("turn 7")

        return turn

    for most in (1, 3):
        with pytest.raises(ArithmeticError, match="turn 7"):
            threads.run_all([(number,) for number in range(20)], most, start)


@pytest.mark.parametrize("name", ["normal", "ascending", "constant", "nan", "few_values"])
@pytest.mark.parametrize(
    ("num_rows", "num_cols", "k"), [(1, 4_000_000, 512), (8, 500_000, 512), (8, 500_000, 2048)]
)
def test_extra_memory_is_at_most_a_twentieth_of_the_input(num_rows, num_cols, k, name):
    logits = workloads.make(name, num_rows, num_cols)
    cpu.select(logits[:1, :1000], k)  # compiled before
    answer = 8 * num_rows * k
    tracemalloc.start()
    try:
        cpu.select(logits, k, threads=4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - answer <= 0.05 * logits.nbytes


@pytest.mark.parametrize("k", KS)
def test_a_thread_allocates_what_readme_says(k):
    for num_cols in (1, 64, k + 1, 100_003, 10**7):
        assert 8 * selection.scratch_words(num_cols, k) <= num_cols * 4 / 64 + 32 * k + 9 * 1024


def test_the_passes_over_a_row_are_vectorised():
    calls.select_rows.ready()
    calls.reduce_columns.ready()
    made = "".join(
        threads_made
        for name in ("reduce_columns", "select_rows")
        for threads_made in fresh(getattr(calls, name)).inspect_asm().values()
    )
    if os.uname().machine != "x86_64":
        pytest.skip(f"instructions of x86-64 are looked for, this is {os.uname().machine}")
    assert re.search(r"\bv?pmaxud\s+.*[xyz]mm", made)  # greatest keys
    assert re.search(r"\bvp?(cmp\w*|cmpu\w*|maxud)\s+.*[yz]mm", made)  # what reaches a floor


def fresh(kernel):
    """Compile a kernel here: what was loaded has no assembly."""
    from numba import njit

    return njit(kernel.signature, nogil=True)(kernel.__wrapped__)


@pytest.mark.parametrize(
    ("logits", "error", "message"),
    [
        (np.zeros((2, 8)), TypeError, "logits must be float32, got float64"),
        (np.zeros(8, np.float32), ValueError, r"logits must have shape .*, got \(8,\)"),
        (np.zeros((8, 2), np.float32).T, ValueError, "logits must be contiguous in the last"),
        (np.zeros((8, 2), np.float32)[::-1], ValueError, "no negative row stride, got -2"),
        (
            np.zeros(33, np.uint8)[1:].view(np.float32).reshape(2, 4),
            ValueError,
            "logits must be 4-byte aligned",
        ),
        ([[1.0]], TypeError, "logits must be a tensor or an ndarray, got list"),
    ],
)
def test_bad_logits_are_named(logits, error, message):
    with pytest.raises(error, match=message):
        cpu.select(logits, 1)


@pytest.mark.parametrize(
    ("k", "error", "message"),
    [(0, ValueError, "k must be at least 1, got 0"), (2.0, TypeError, "k must be an int")],
)
def test_a_bad_k_is_named(k, error, message):
    with pytest.raises(error, match=message):
        cpu.select(np.zeros((1, 8), np.float32), k)


def test_unknown_order_is_named():
    with pytest.raises(ValueError, match="order must be one of any, index, value, got 'size'"):
        cpu.select(np.zeros((1, 8), np.float32), 1, order="size")


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0, 0)])
def test_empty_shapes(shape):
    indices, values = cpu.select(np.zeros(shape, np.float32), 5)
    assert indices.shape == values.shape == (shape[0], 5)
    assert (indices == -1).all()
    assert np.isneginf(values).all()


def test_tensors_are_read_in_place_and_outputs_may_be_slices():
    memory = torch.from_numpy(workloads.make("nan", 1, 5000))
    logits = memory[0].as_strided((4, 1200), (0, 1), 7)
    room = torch.full((4, 60), -777, dtype=torch.int32)
    written = torch.zeros(4, 90)
    values, indices = topk_lab.topk(
        logits, 50, out=room[:, 5:55], values_out=written[:, 20:70], order="value"
    )
    assert_exact(logits, indices, values=values, tie_break="lowest", order="value")
    assert (room[:, :5] == -777).all()
    assert (room[:, 55:] == -777).all()
    assert not written[:, :20].any()
    assert not written[:, 70:].any()


def test_a_parameter_and_a_graph_of_gradients():
    logits = torch.nn.Parameter(torch.from_numpy(workloads.make("normal", 2, 900)))
    values, indices = topk_lab.topk(logits, 20, return_values=True)
    assert not values.requires_grad
    assert_exact(logits.detach(), indices, values=values, tie_break="lowest")


def test_lengths_may_change_between_calls_on_the_same_memory():
    logits = torch.from_numpy(workloads.make("normal", 3, 3000))
    out = torch.empty(3, 64, dtype=torch.int32)
    row_ends = torch.empty(3, dtype=torch.int32)
    for ends in ([3000, 10, -4], [64, 65, 5000], [0, 0, 2999]):
        row_ends.copy_(torch.tensor(ends))
        topk_lab.topk(logits, 64, row_ends=row_ends, out=out)
        assert_exact(logits, out, row_ends=row_ends, tie_break="lowest", order="index")


def test_examples_in_the_docs():
    assert doctest.testmod(calls).failed == 0
