"""Are the contract's words, live columns and calls what it says they are?"""

import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

import topk_lab
from topk_lab.contract import (
    Call,
    canonical_key,
    check_call,
    check_pages_shape,
    check_workspace,
    live_bounds,
    row_ends_from,
)

QUICK = settings(max_examples=100, deadline=None, derandomize=True, database=None)
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def raises(error, message):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def floats(*bits):
    return np.array(bits, np.uint32).view(np.float32)


# keys


def test_canonical_key_of_landmarks():
    rising = floats(
        0xFF800000,  # -inf
        0xFF7FFFFF,  # least finite
        0xBF800000,  # -1
        0x80800000,  # -2^-126
        0x80000001,  # -2^-149
        0x00000000,  # 0
        0x00000001,
        0x00800000,
        0x3F800000,
        0x7F7FFFFF,
        0x7F800000,  # +inf
        0x7FC00000,  # NaN
    )
    assert canonical_key(rising).tolist() == [
        0x007FFFFF,
        0x00800000,
        0x407FFFFF,
        0x7F7FFFFF,
        0x7FFFFFFE,
        0x80000000,
        0x80000001,
        0x80800000,
        0xBF800000,
        0xFF7FFFFF,
        0xFF800000,
        0xFFFFFFFF,
    ]


def test_canonical_key_merges_zeros_and_every_nan():
    assert canonical_key(floats(0, 0x80000000)).tolist() == [0x80000000] * 2
    nan = floats(0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF)
    assert canonical_key(nan).tolist() == [0xFFFFFFFF] * 6


@QUICK
@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=40))
def test_canonical_key_orders_as_python_does(bits):
    values = floats(*bits)
    keys = canonical_key(values).tolist()
    for (a, key_a), (b, key_b) in zip(
        zip(values.tolist(), keys, strict=True),
        zip(values.tolist()[1:], keys[1:], strict=True),
        strict=False,
    ):
        rank_a = (math.isnan(a), 0.0 if math.isnan(a) else a)
        rank_b = (math.isnan(b), 0.0 if math.isnan(b) else b)
        assert (key_a < key_b) == (rank_a < rank_b)
        assert (key_a == key_b) == (rank_a == rank_b)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0)])
def test_canonical_key_keeps_the_shape_and_the_values(shape):
    values = np.full(shape, -0.0, np.float32)
    keys = canonical_key(values)
    assert keys.shape == shape
    assert keys.dtype == np.uint32
    assert (keys == 0x80000000).all()
    assert np.signbit(values).all()  # the input is left as it was


def test_canonical_key_reads_any_strides():
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert (canonical_key(values[::2, ::-3]) == canonical_key(values)[::2, ::-3]).all()
    assert (canonical_key(values.T) == canonical_key(values).T).all()
    assert (canonical_key(torch.from_numpy(values)) == canonical_key(values)).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(2), "values must be float32, got float64"),
        (np.zeros(2, np.float16), "values must be float32, got float16"),
        ([1.0], "values must be a tensor or an ndarray, got list"),
    ],
)
def test_canonical_key_refuses(values, message):
    with raises(TypeError, message):
        canonical_key(values)


# row ends


def as_is(values):
    return np.array(values, np.int32)


def as_tensor(values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("kind", [as_is, as_tensor])
@pytest.mark.parametrize(
    ("seq_lens", "next_n", "compress_ratio", "row_ends"),
    [
        # Published with the kernels: 1-D lengths 2 and 6, and (batch, 1) lengths 2, 513, 700.
        ([2, 6], 4, 1, [0, 0, 1, 2, 3, 4, 5, 6]),
        ([0, 5], 1, 1, [0, 5]),
        # Expanded, then divided: dividing first gives [1, 2] for 9 tokens.
        ([9], 2, 4, [2, 2]),
        ([8], 2, 4, [1, 2]),
        ([43, 59], 3, 4, [10, 10, 10, 14, 14, 14]),
        # A negative length floor-divides away from zero, and is an empty row all the same.
        ([-1, 0, 1], 1, 4, [0, 0, 0]),
        ([INT32_MIN, INT32_MAX], 3, 1, [0, 0, 0, INT32_MAX - 2, INT32_MAX - 1, INT32_MAX]),
        ([[3, 4], [-5, 9]], 2, 1, [3, 4, 0, 9]),
        ([[3, 4], [-5, 9]], 1, 4, [0, 1, 0, 2]),
        ([[7], [8]], 1, 2, [3, 4]),
        ([], 6, 1, []),
    ],
)
def test_row_ends_from(kind, seq_lens, next_n, compress_ratio, row_ends):
    given_lens = kind(seq_lens)
    got = row_ends_from(given_lens, next_n, compress_ratio)
    assert type(got) is type(given_lens)
    assert got.dtype == given_lens.dtype
    assert got.tolist() == row_ends


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([3],), TypeError, "seq_lens must be a tensor or an ndarray, got list"),
        ((np.zeros(2, np.float32),), TypeError, "seq_lens must be int32, got float32"),
        ((torch.zeros(2),), TypeError, "seq_lens must be int32, got float32"),
        (
            (np.zeros((2, 2, 2), np.int32),),
            ValueError,
            "seq_lens must have shape (batch,) or (batch, next_n), got (2, 2, 2)",
        ),
        (
            (np.zeros((2, 3), np.int32), 4),
            ValueError,
            "seq_lens must have shape (batch, next_n) with next_n = 4, got (2, 3)",
        ),
        ((np.zeros(2, np.int32), 0), ValueError, "next_n must be at least 1, got 0"),
        ((np.zeros(2, np.int32), True), TypeError, "next_n must be an int, got True (bool)"),
        ((np.zeros(2, np.int32), 1, 0), ValueError, "compress_ratio must be at least 1, got 0"),
        (
            (np.zeros(2, np.int32), 1, 4.0),
            TypeError,
            "compress_ratio must be an int, got 4.0 (float)",
        ),
    ],
)
def test_row_ends_from_refuses(arguments, error, message):
    with raises(error, message):
        row_ends_from(*arguments)


# live columns


@pytest.mark.parametrize("kind", [as_is, as_tensor])
@pytest.mark.parametrize(
    ("question", "starts", "ends"),
    [
        ({"row_ends": [0, 1, 99, 100]}, [0, 0, 0, 0], [0, 1, 99, 100]),
        ({"row_ends": [-1, 101, INT32_MAX, INT32_MIN]}, [0, 0, 0, 0], [0, 100, 100, 0]),
        ({"seq_lens": [2, 6], "next_n": 2}, [0, 0, 0, 0], [1, 2, 5, 6]),
        # In int32 these wrap: -2^31 - 2 + 1 is 2^31 - 1.
        ({"seq_lens": [INT32_MIN, INT32_MAX], "next_n": 2}, [0, 0, 0, 0], [0, 0, 100, 100]),
        ({"seq_lens": [1, 0], "next_n": 2}, [0, 0, 0, 0], [0, 1, 0, 0]),
        ({"seq_lens": [[7, 3], [-2, 200]]}, [0, 0, 0, 0], [7, 3, 0, 100]),
        ({"seq_lens": [[7, 3], [-2, 200]], "next_n": 2}, [0, 0, 0, 0], [7, 3, 0, 100]),
        ({"seq_lens": [[7], [3], [2], [1]]}, [0, 0, 0, 0], [7, 3, 2, 1]),
        (
            {"row_starts": [1, 6, 20, 5], "row_ends": [3, 18, 23, 4]},
            [1, 6, 20, 5],
            [3, 18, 23, 5],  # an end before its start is an empty row
        ),
        (
            {
                "row_starts": [-4, 150, INT32_MIN, INT32_MAX],
                "row_ends": [10, 160, INT32_MAX, INT32_MIN],
            },
            [0, 100, 0, 100],
            [10, 100, 100, 100],
        ),
        ({}, [0, 0, 0, 0], [100, 100, 100, 100]),
    ],
)
def test_live_bounds(kind, question, starts, ends):
    question = {name: kind(v) if isinstance(v, list) else v for name, v in question.items()}
    got_starts, got_ends = live_bounds(4, 100, **question)
    assert got_starts.dtype == got_ends.dtype == np.int64
    assert got_starts.tolist() == starts
    assert got_ends.tolist() == ends


def test_live_bounds_of_no_rows_and_no_columns():
    assert [bound.tolist() for bound in live_bounds(0, 100)] == [[], []]
    assert live_bounds(0, 9, seq_lens=as_is([]), next_n=6)[1].tolist() == []
    assert live_bounds(2, 0, row_ends=as_is([5, -5]))[1].tolist() == [0, 0]


@QUICK
@given(
    st.lists(st.integers(INT32_MIN, INT32_MAX), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(0, 1000),
)
def test_live_bounds_agree_with_row_ends_from(seq_lens, next_n, num_cols):
    num_rows = len(seq_lens) * next_n
    direct = live_bounds(num_rows, num_cols, seq_lens=as_is(seq_lens), next_n=next_n)
    expanded = live_bounds(num_rows, num_cols, row_ends=row_ends_from(as_is(seq_lens), next_n))
    assert [bound.tolist() for bound in direct] == [bound.tolist() for bound in expanded]


# calls

ROWS, COLS, K = 24, 700, 512


def logits_of(rows=ROWS, cols=COLS, dtype=torch.float32):
    return torch.zeros(rows, cols, dtype=dtype)


def lengths_of(*shape, dtype=torch.int32):
    return torch.full(shape, 5, dtype=dtype)


def test_call_with_row_ends():
    logits, row_ends, row_starts = logits_of(), lengths_of(ROWS), lengths_of(ROWS)
    out = torch.empty(ROWS, K, dtype=torch.int32)
    values_out = torch.empty(ROWS, K)
    workspace = torch.empty(64, dtype=torch.uint8)
    call = check_call(
        logits,
        K,
        row_ends=row_ends,
        row_starts=row_starts,
        out=out,
        values_out=values_out,
        workspace=workspace,
        tie_break="lowest",
        order="value",
    )
    assert isinstance(call, Call)
    assert (call.num_rows, call.num_cols, call.k, call.row_stride) == (ROWS, COLS, K, COLS)
    assert call.next_n == 0
    assert call.lengths is row_ends
    assert call.row_starts is row_starts
    assert call.out is out
    assert call.values_out is values_out
    assert call.workspace is workspace
    assert (call.tie_break, call.order) == ("lowest", "value")


def test_call_without_lengths():
    call = check_call(logits_of(), 3)
    assert (call.lengths, call.row_starts, call.out, call.values_out) == (None,) * 4
    assert (call.next_n, call.k, call.tie_break, call.order) == (0, 3, "any", "any")


@pytest.mark.parametrize(
    ("shape", "next_n", "call_next_n"),
    [((ROWS,), 1, 1), ((4,), 6, 6), ((4, 6), 6, 0), ((4, 6), 1, 0), ((ROWS, 1), 1, 0)],
)
def test_call_with_seq_lens(shape, next_n, call_next_n):
    seq_lens = torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape)
    call = check_call(logits_of(), K, seq_lens=seq_lens, next_n=next_n)
    assert call.next_n == call_next_n
    assert call.lengths.tolist() == list(range(math.prod(shape)))
    # The lengths change between graph replays: a copy would freeze them.
    assert call.lengths.data_ptr() == seq_lens.data_ptr()


def test_call_agrees_with_live_bounds_on_the_form_of_lengths():
    seq_lens = torch.tensor([3, 700, 12, -4], dtype=torch.int32)
    call = check_call(logits_of(), K, seq_lens=seq_lens, next_n=6)
    again = live_bounds(ROWS, COLS, seq_lens=call.lengths, next_n=call.next_n)
    assert again[1].tolist() == live_bounds(ROWS, COLS, seq_lens=seq_lens, next_n=6)[1].tolist()


@pytest.mark.parametrize(
    ("logits", "row_stride"),
    [
        (torch.zeros(1, COLS).expand(ROWS, COLS), 0),
        (torch.zeros(ROWS, COLS + 8)[:, 1:-7], COLS + 8),
        (torch.zeros(2 * ROWS, COLS)[::2], 2 * COLS),
        (torch.zeros(COLS + ROWS).as_strided((ROWS, COLS), (1, 1)), 1),
        (torch.zeros(ROWS, 1)[:, :1], 1),
        (torch.zeros(1, 8).as_strided((1, 8), (2**29, 1)), 2**29),
        (torch.zeros(8, device="meta").as_strided((2, 1024), (2**29, 1)), 2**29),
        (torch.zeros(0, 1024), 1024),
        (torch.zeros(3, 0), 1),
        (torch.zeros(0, 0), 1),
    ],
)
def test_call_takes_any_row_stride(logits, row_stride):
    call = check_call(logits, K)
    assert (call.num_rows, call.num_cols) == tuple(logits.shape)
    assert call.row_stride == row_stride


def test_call_takes_one_column_of_any_stride():
    logits = torch.zeros(5, 8).T[:, 2:3]
    out = torch.zeros(5, 8, dtype=torch.int32).T[:, :1]
    assert logits.stride() == out.stride() == (1, 8)
    call = check_call(logits, 1, out=out)
    assert (call.num_cols, call.row_stride) == (1, 1)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_call_takes_empty_shapes_with_outputs(rows):
    out = torch.empty(rows, K, dtype=torch.int32)
    call = check_call(
        torch.zeros(rows, 0), K, seq_lens=lengths_of(rows), out=out, values_out=torch.empty(rows, K)
    )
    assert call.out is out


def test_call_takes_outputs_with_padded_rows():
    buffer = torch.full((ROWS, 2 * K), -777, dtype=torch.int32)
    call = check_call(logits_of(), K, out=buffer[:, :K], values_out=torch.empty(ROWS, K + 3)[:, 3:])
    assert call.out.stride() == (2 * K, 1)
    assert check_call(logits_of(), 1, out=buffer[:, 5:6]).k == 1
    assert (buffer == -777).all()


@pytest.mark.parametrize("k", [1, 2047, 4096, INT32_MAX, np.int64(7)])
def test_call_takes_any_k(k):
    call = check_call(logits_of(), k)
    assert call.k == k
    assert type(call.k) is int


def bad(message, error=ValueError, *, logits=None, k=K, **arguments):
    return pytest.param(logits, k, arguments, error, message, id=message)


def scattered(*shape, dtype=torch.int32):
    return torch.zeros(*shape[:-1], 2 * shape[-1], dtype=dtype)[..., ::2]


BAD_LOGITS = [
    bad("logits must be a torch.Tensor, got numpy.ndarray", TypeError, logits=np.zeros((2, 3))),
    bad("logits must be a torch.Tensor, got list", TypeError, logits=[[1.0]]),
    bad("logits must be float32, got float16", TypeError, logits=logits_of(dtype=torch.float16)),
    bad("logits must be float32, got bfloat16", TypeError, logits=logits_of(dtype=torch.bfloat16)),
    bad("logits must be float32, got float64", TypeError, logits=logits_of(dtype=torch.float64)),
    bad("logits must be float32, got int32", TypeError, logits=logits_of(dtype=torch.int32)),
    bad(
        "logits must be a dense tensor, got layout torch.sparse_coo",
        TypeError,
        logits=logits_of().to_sparse(),
    ),
    bad("logits must have shape (num_rows, num_cols), got (700,)", logits=torch.zeros(700)),
    bad("logits must have shape (num_rows, num_cols), got (2, 3, 4)", logits=torch.zeros(2, 3, 4)),
    bad(
        "logits must be contiguous in the last dimension (stride 1), got strides (1, 24)",
        logits=torch.zeros(COLS, ROWS).T,
    ),
    bad(
        "logits must be contiguous in the last dimension (stride 1), got strides (1400, 2)",
        logits=scattered(ROWS, COLS, dtype=torch.float32),
    ),
    bad(
        "logits must be contiguous in the last dimension (stride 1), got strides (1, 0)",
        logits=torch.zeros(ROWS, 1).expand(ROWS, COLS),
    ),
    bad(
        "logits must have at most 2147483647 rows and 2147483647 columns, "
        "got shape (1, 2147483648)",
        logits=torch.zeros(1, 1).expand(1, 2**31),
    ),
    bad(
        "logits must have at most 2147483647 rows and 2147483647 columns, "
        "got shape (2147483648, 8)",
        logits=torch.zeros(1, 8).expand(2**31, 8),
    ),
    bad(
        f"logits must span less than 2**63 bytes, got 4 rows of stride {2**59}",
        logits=torch.zeros(8, device="meta").as_strided((4, 8), (2**59, 1)),
    ),
]

BAD_NUMBERS = [
    bad("k must be at least 1, got 0", k=0),
    bad("k must be at least 1, got -1", k=-1),
    bad("k must be at most 2147483647, got 2147483648", k=2**31),
    bad("k must be an int, got True (bool)", TypeError, k=True),
    bad("k must be an int, got 512.0 (float)", TypeError, k=512.0),
    bad("k must be an int, got '512' (str)", TypeError, k="512"),
    bad("k must be an int, got None (NoneType)", TypeError, k=None),
    bad("k must be an int, got tensor(512) (torch.Tensor)", TypeError, k=torch.tensor(512)),
    bad("next_n must be at least 1, got 0", seq_lens=lengths_of(ROWS), next_n=0),
    bad("next_n must be an int, got True (bool)", TypeError, seq_lens=lengths_of(24), next_n=True),
    bad("next_n must be 1 without seq_lens, got 6", row_ends=lengths_of(ROWS), next_n=6),
    bad("next_n must divide num_rows = 24, got 5", seq_lens=lengths_of(5), next_n=5),
    bad("tie_break must be one of any, lowest, got 'first'", tie_break="first"),
    bad("tie_break must be one of any, lowest, got None", tie_break=None),
    bad("order must be one of any, index, value, got 'sorted'", order="sorted"),
]

BAD_LENGTHS = [
    bad("row_ends must have shape (num_rows,) = (24,), got (6, 4)", row_ends=lengths_of(6, 4)),
    bad("row_ends must have shape (num_rows,) = (24,), got (23,)", row_ends=lengths_of(23)),
    bad("row_ends must have shape (num_rows,) = (24,), got ()", row_ends=lengths_of()),
    bad(
        "row_ends must be int32, got int64",
        TypeError,
        row_ends=lengths_of(ROWS, dtype=torch.int64),
    ),
    bad("row_ends must be a torch.Tensor, got list", TypeError, row_ends=[5] * ROWS),
    bad("row_ends must be a torch.Tensor, got int", TypeError, row_ends=700),
    bad(
        "row_ends must be on the device of logits, cpu, got meta",
        TypeError,
        row_ends=lengths_of(ROWS).to("meta"),
    ),
    bad("row_ends must be contiguous, got strides (2,)", row_ends=scattered(ROWS)),
    bad("row_ends must be contiguous, got strides (0,)", row_ends=lengths_of(1).expand(ROWS)),
    bad(
        "row_starts must have shape (num_rows,) = (24,), got (25,)",
        row_ends=lengths_of(ROWS),
        row_starts=lengths_of(25),
    ),
    bad(
        "row_starts must be int32, got float32",
        TypeError,
        row_ends=lengths_of(ROWS),
        row_starts=torch.zeros(ROWS),
    ),
    bad(
        "row_starts must come with row_ends, got row_ends=None",
        row_starts=lengths_of(ROWS),
    ),
    bad(
        "row_starts must come with row_ends, got row_ends=None",
        row_starts=lengths_of(ROWS),
        seq_lens=lengths_of(ROWS),
    ),
    bad(
        "row_ends or seq_lens must be None, got both",
        row_ends=lengths_of(ROWS),
        seq_lens=lengths_of(ROWS),
    ),
    bad(
        "seq_lens must have shape (num_rows / next_n,) = (4,), got (24,)",
        seq_lens=lengths_of(ROWS),
        next_n=6,
    ),
    bad(
        "seq_lens must have shape (num_rows / next_n,) = (24,), got (4,)",
        seq_lens=lengths_of(4),
    ),
    bad(
        "seq_lens must have shape (batch,) or (batch, next_n) with num_rows = 24 in all, "
        "got (4, 5)",
        seq_lens=lengths_of(4, 5),
    ),
    bad(
        "seq_lens must have shape (batch,) or (batch, next_n = 4) with num_rows = 24 in all, "
        "got (4, 6)",
        seq_lens=lengths_of(4, 6),
        next_n=4,
    ),
    bad(
        "seq_lens must have shape (batch,) or (batch, next_n) with num_rows = 24 in all, got ()",
        seq_lens=lengths_of(),
    ),
    bad(
        "seq_lens must be int32, got uint8",
        TypeError,
        seq_lens=lengths_of(ROWS, dtype=torch.uint8),
    ),
    bad("seq_lens must be contiguous, got strides (1, 4)", seq_lens=lengths_of(6, 4).T),
    bad("seq_lens must be contiguous, got strides (12, 2)", seq_lens=scattered(4, 6)),
]

BAD_OUTPUTS = [
    bad(
        "out must have shape (num_rows, k) = (24, 512), got (24, 511)",
        out=torch.empty(ROWS, 511, dtype=torch.int32),
    ),
    bad(
        "out must have shape (num_rows, k) = (24, 1024), got (24, 512)",
        k=1024,
        out=torch.empty(ROWS, 512, dtype=torch.int32),
    ),
    bad(
        "out must have shape (num_rows, k) = (24, 512), got (12288,)",
        out=torch.empty(ROWS * K, dtype=torch.int32),
    ),
    bad("out must be int32, got int64", TypeError, out=torch.empty(ROWS, K, dtype=torch.int64)),
    bad("out must be int32, got int16", TypeError, out=torch.empty(ROWS, K, dtype=torch.int16)),
    bad("out must be int32, got float32", TypeError, out=torch.empty(ROWS, K)),
    bad(
        "out must be a torch.Tensor, got numpy.ndarray",
        TypeError,
        out=np.empty((ROWS, K), np.int32),
    ),
    bad(
        "out must be on the device of logits, cpu, got meta",
        TypeError,
        out=torch.empty(ROWS, K, dtype=torch.int32, device="meta"),
    ),
    bad(
        "out must be contiguous in the last dimension (stride 1), got strides (1024, 2)",
        out=scattered(ROWS, K),
    ),
    bad(
        "out must be contiguous in the last dimension (stride 1), got strides (1, 24)",
        out=torch.empty(K, ROWS, dtype=torch.int32).T,
    ),
    bad(
        "out must have a row stride of at least k = 512, got strides (0, 1)",
        out=torch.empty(1, K, dtype=torch.int32).expand(ROWS, K),
    ),
    bad(
        "out must have a row stride of at least k = 512, got strides (511, 1)",
        out=torch.empty(ROWS * K, dtype=torch.int32).as_strided((ROWS, K), (511, 1)),
    ),
    bad(
        "values_out must have shape (num_rows, k) = (24, 512), got (24, 700)",
        values_out=torch.empty(ROWS, COLS),
    ),
    bad(
        "values_out must be float32, got int32",
        TypeError,
        values_out=torch.empty(ROWS, K, dtype=torch.int32),
    ),
    bad(
        "values_out must have a row stride of at least k = 512, got strides (0, 1)",
        values_out=torch.empty(1, K).expand(ROWS, K),
    ),
    bad("workspace must be uint8, got float32", TypeError, workspace=torch.empty(64)),
    bad(
        "workspace must be 1-D and contiguous, got shape (8, 8) and strides (8, 1)",
        workspace=torch.empty(8, 8, dtype=torch.uint8),
    ),
    bad(
        "workspace must be 1-D and contiguous, got shape (8,) and strides (2,)",
        workspace=scattered(8, dtype=torch.uint8),
    ),
]


@pytest.mark.parametrize(
    ("logits", "k", "arguments", "error", "message"),
    [*BAD_LOGITS, *BAD_NUMBERS, *BAD_LENGTHS, *BAD_OUTPUTS],
)
def test_call_refuses(logits, k, arguments, error, message):
    with raises(error, message):
        check_call(logits_of() if logits is None else logits, k, **arguments)


def test_call_refuses_before_anything_is_written():
    out = torch.full((ROWS, K), -777, dtype=torch.int32)
    values_out = torch.full((ROWS, K), 7.0)
    with pytest.raises(ValueError, match="row_ends must have shape"):
        check_call(logits_of(), K, row_ends=lengths_of(3), out=out, values_out=values_out)
    assert (out == -777).all()
    assert (values_out == 7).all()


@pytest.mark.parametrize(
    ("written", "other"),
    [
        ("out", "logits"),
        ("out", "row_ends"),
        ("out", "row_starts"),
        ("out", "values_out"),
        ("values_out", "workspace"),
        ("values_out", "logits"),
        ("workspace", "logits"),
    ],
)
def test_call_refuses_outputs_in_memory_of_another_argument(written, other):
    rows, cols, k = 4, 16, 8
    memory = torch.zeros(1024, dtype=torch.int32)
    places = {
        "logits": (0, rows * cols),
        "row_ends": (100, rows),
        "row_starts": (200, rows),
        "out": (300, rows * k),
        "values_out": (400, rows * k),
        "workspace": (500, 16),
    }

    def arguments(places):
        flat = {name: memory[first : first + size] for name, (first, size) in places.items()}
        return {
            "logits": flat["logits"].view(torch.float32).view(rows, cols),
            "row_ends": flat["row_ends"],
            "row_starts": flat["row_starts"],
            "out": flat["out"].view(rows, k),
            "values_out": flat["values_out"].view(torch.float32).view(rows, k),
            "workspace": flat["workspace"].view(torch.uint8),
        }

    check_call(**arguments(places), k=k)  # one buffer, but nothing shared
    first, last, size = places[other][0], sum(places[other]) - 1, places[written][1]
    check_call(**arguments({**places, written: (last + 1, size)}), k=k)
    if first >= size:
        check_call(**arguments({**places, written: (first - size, size)}), k=k)
    shared = {**places, written: (last, size)}
    with raises(
        ValueError, f"{written} must not share memory with {other}, got overlapping tensors"
    ):
        check_call(**arguments(shared), k=k)


def test_call_takes_rows_that_interleave_in_one_buffer():
    buffer = torch.zeros(4, 32)
    logits, out = buffer[:, :16], buffer[:, 16:24].view(torch.int32)
    assert check_call(logits, 8, out=out, values_out=buffer[:, 24:]).k == 8
    with pytest.raises(ValueError, match="out must not share memory with logits"):
        check_call(logits, 8, out=buffer[:, 15:23].view(torch.int32))
    with pytest.raises(ValueError, match="out must not share memory with values_out"):
        check_call(logits, 8, out=out, values_out=buffer[:, 20:28])
    with pytest.raises(ValueError, match="values_out must not share memory with logits"):
        check_call(buffer[:, 8:24], 12, values_out=buffer[:, 20:])


def test_call_takes_what_shares_no_element():
    buffer = torch.zeros(4, 32)
    assert check_call(buffer[:, :0], 8, out=buffer[:, :8].view(torch.int32)).num_cols == 0
    assert check_call(buffer[:0], 32, out=buffer[:0].view(torch.int32)).num_rows == 0
    far_apart = buffer.as_strided((4, 0), (2**56, 1))
    assert check_call(far_apart, 8, out=torch.empty(4, 8, dtype=torch.int32)).num_cols == 0


def test_call_on_meta_tensors_has_no_addresses_to_compare():
    out = torch.empty(ROWS, K, dtype=torch.int32, device="meta")
    call = check_call(logits_of().to("meta"), K, out=out, values_out=out.view(torch.float32))
    assert call.out is out


def test_call_on_fake_tensors_has_no_addresses_to_compare():
    with FakeTensorMode():
        out = torch.empty(ROWS, K, dtype=torch.int32)
        call = check_call(logits_of(), K, row_ends=lengths_of(ROWS), out=out)
    assert call.out is out


def test_call_is_traced_into_one_graph():
    def first_columns(logits, row_ends, out):
        call = check_call(logits, 8, row_ends=row_ends, out=out)
        return logits[:, : call.k] + call.row_stride

    compiled = torch.compile(first_columns, backend="eager", fullgraph=True)
    out = torch.empty(4, 8, dtype=torch.int32)
    assert compiled(torch.ones(4, 16), lengths_of(4), out).tolist() == [[17.0] * 8] * 4


# page tables

PAGES = 11  # of 64 columns: 704, the first that serve 700


def table_of(rows=ROWS, pages=PAGES, dtype=torch.int32):
    return torch.arange(rows * pages, dtype=dtype).reshape(rows, pages)


def slots_of(*shape, dtype=torch.int32):
    return torch.full(shape, -777, dtype=dtype)


@pytest.mark.parametrize(
    ("rows", "lengths", "next_n"),
    [
        pytest.param(24, {}, 1, id="a-table-a-row"),
        pytest.param(4, {}, 6, id="shared-by-6-rows"),
        pytest.param(1, {}, 24, id="shared-by-all"),
        pytest.param(4, {"row_ends": lengths_of(24)}, 6, id="shared-with-row-ends"),
        pytest.param(4, {"seq_lens": lengths_of(4), "next_n": 6}, 6, id="seq-lens-1d"),
        pytest.param(4, {"seq_lens": lengths_of(4, 6)}, 6, id="seq-lens-2d"),
        pytest.param(4, {"seq_lens": lengths_of(4, 6), "next_n": 6}, 6, id="seq-lens-2d-next-n"),
        pytest.param(24, {"seq_lens": lengths_of(4), "next_n": 6}, 1, id="a-row-each-all-the-same"),
        pytest.param(24, {"seq_lens": lengths_of(24)}, 1, id="seq-lens-of-rows"),
    ],
)
def test_call_with_a_page_table(rows, lengths, next_n):
    table, out, raw_out = table_of(rows), slots_of(ROWS, K), slots_of(ROWS, K)
    call = check_call(
        logits_of(), K, page_table=table, page_size=64, out=out, raw_out=raw_out, **lengths
    )
    assert (call.pages.bits, call.pages.next_n) == (6, next_n)
    # The table changes between graph replays: a copy would freeze it.
    assert call.pages.table is table
    assert call.out is out
    assert call.raw_out is raw_out


def test_call_without_a_page_table_has_no_pages():
    call = check_call(logits_of(), K)
    assert call.pages is call.raw_out is None


@pytest.mark.parametrize(
    ("page_size", "bits", "pages"),
    [(1, 0, 700), (2, 1, 350), (16, 4, 44), (512, 9, 2), (1024, 10, 1), (2**30, 30, 1)],
)
def test_call_takes_a_table_just_wide_enough(page_size, bits, pages):
    call = check_call(logits_of(), K, page_table=table_of(ROWS, pages), page_size=page_size)
    assert (call.pages.bits, call.pages.next_n) == (bits, 1)
    assert check_pages_shape((ROWS, pages + 1), page_size, ROWS, COLS) == (bits, 1)
    with pytest.raises(ValueError, match=f"page_table must have at least {pages} pages"):
        check_pages_shape((ROWS, pages - 1), page_size, ROWS, COLS)


def test_call_takes_tables_of_any_row_stride():
    wide = torch.zeros(ROWS, 40, dtype=torch.int32)
    for table in (
        wide[:, 3 : 3 + PAGES],
        wide[:1, :PAGES].expand(ROWS, PAGES),
        wide.view(-1).as_strided((ROWS, PAGES), (1, 1)),
        torch.zeros(PAGES, ROWS, dtype=torch.int32).T[:, :1].expand(ROWS, 1),
    ):
        page_size = 64 if table.shape[1] == PAGES else 1024
        call = check_call(logits_of(), K, page_table=table, page_size=page_size)
        assert call.pages.table is table


def test_call_takes_page_tables_of_empty_shapes():
    nothing = torch.zeros(0, 1024), torch.zeros(3, 0)
    call = check_call(nothing[0], K, page_table=table_of(0, 16), page_size=64)
    assert call.pages.next_n == 1
    call = check_call(nothing[1], K, page_table=table_of(3, 0), page_size=64)
    assert call.pages.bits == 6
    assert check_call(nothing[1], K, page_table=table_of(1, 0), page_size=64).pages.next_n == 3


def paged(message, error=ValueError, *, logits=None, k=K, **changes):
    arguments = {"page_table": table_of(), "page_size": 64, **changes}
    return pytest.param(logits, k, arguments, error, message, id=message)


BAD_PAGES = [
    # fault G5: shift and mask only hold for powers of two
    paged("page_size must be a power of two, got 48", page_size=48),
    paged("page_size must be a power of two, got 3", page_size=3),
    paged("page_size must be at least 1, got 0", page_size=0),
    paged("page_size must be at least 1, got -64", page_size=-64),
    paged("page_size must be at most 1073741824, got 2147483648", page_size=2**31),
    paged("page_size must be an int, got True (bool)", TypeError, page_size=True),
    paged("page_size must be an int, got 64.0 (float)", TypeError, page_size=64.0),
    paged("page_size must be an int, got '64' (str)", TypeError, page_size="64"),
    paged("page_size must be an int, got None (NoneType)", TypeError, page_size=None),
    paged(
        "page_size must be an int, got tensor(64) (torch.Tensor)",
        TypeError,
        page_size=torch.tensor(64),
    ),
    paged(
        "page_table must have shape (num_rows, pages) or (batch, pages), got (264,)",
        page_table=table_of().view(-1),
    ),
    paged(
        "page_table must have shape (num_rows, pages) or (batch, pages), got (24, 1, 11)",
        page_table=table_of()[:, None],
    ),
    paged("page_table must be int32, got int64", TypeError, page_table=table_of(dtype=torch.int64)),
    paged("page_table must be int32, got float32", TypeError, page_table=torch.zeros(24, 11)),
    paged(
        "page_table must be a torch.Tensor, got numpy.ndarray",
        TypeError,
        page_table=np.zeros((24, 11), np.int32),
    ),
    paged("page_table must be a torch.Tensor, got list", TypeError, page_table=[[0] * 11] * 24),
    paged(
        "page_table must be on the device of logits, cpu, got meta",
        TypeError,
        page_table=table_of().to("meta"),
    ),
    paged(
        "page_table must be a dense tensor, got layout torch.sparse_coo",
        TypeError,
        page_table=table_of().to_sparse(),
    ),
    paged(
        "page_table must have at least 11 pages of 64 for 700 columns, got 10 in shape (24, 10)",
        page_table=table_of(24, 10),
    ),
    # fault G2: a table as wide as the true length beside wider logits
    paged(
        "page_table must have at least 131072 pages of 1 for 131072 columns, "
        "got 4096 in shape (8, 4096)",
        logits=torch.zeros(1, 131_072).expand(8, 131_072),
        row_ends=torch.full((8,), 4096, dtype=torch.int32),
        page_table=table_of(8, 4096),
        page_size=1,
    ),
    paged(
        "page_table must have shape (num_rows, pages) = (24, pages) or (batch, pages) for the "
        "rows of a sequence, got (5, 11)",
        page_table=table_of(5),
    ),
    paged(
        "page_table must have shape (num_rows, pages) = (24, pages) or (batch, pages) for the "
        "rows of a sequence, got (0, 11)",
        page_table=table_of(0),
    ),
    paged(
        "page_table must have shape (num_rows, pages) = (24, pages) or (batch, pages) for the "
        "rows of a sequence, got (48, 11)",
        page_table=table_of(48),
    ),
    paged(
        "page_table must have shape (num_rows, pages) = (24, pages) or (4, pages) for the rows of "
        "a sequence, got (12, 11)",
        page_table=table_of(12),
        seq_lens=lengths_of(4),
        next_n=6,
    ),
    paged(
        "page_table must have shape (num_rows, pages) = (24, pages) or (6, pages) for the rows of "
        "a sequence, got (4, 11)",
        page_table=table_of(4),
        seq_lens=lengths_of(6, 4),
    ),
    paged(
        "page_table must be contiguous in the last dimension (stride 1), got strides (1, 24)",
        page_table=torch.zeros(11, 24, dtype=torch.int32).T,
    ),
    paged(
        "page_table must be contiguous in the last dimension (stride 1), got strides (22, 2)",
        page_table=scattered(24, 11),
    ),
    paged(
        "page_table must be contiguous in the last dimension (stride 1), got strides (1, 0)",
        page_table=torch.zeros(24, 1, dtype=torch.int32).expand(24, 11),
    ),
    paged(
        "raw_out must have shape (num_rows, k) = (24, 512), got (24, 511)",
        raw_out=slots_of(24, 511),
    ),
    paged(
        "raw_out must have shape (num_rows, k) = (24, 512), got (512,)",
        raw_out=slots_of(512),
    ),
    paged(
        "raw_out must be int32, got int64", TypeError, raw_out=slots_of(24, K, dtype=torch.int64)
    ),
    paged("raw_out must be int32, got float32", TypeError, raw_out=torch.zeros(24, K)),
    paged(
        "raw_out must have a row stride of at least k = 512, got strides (0, 1)",
        raw_out=slots_of(1, K).expand(24, K),
    ),
    paged(
        "raw_out must be contiguous in the last dimension (stride 1), got strides (1024, 2)",
        raw_out=scattered(24, K),
    ),
    paged(
        "out must have shape (num_rows, k) = (24, 512), got (24, 1024)",
        out=slots_of(24, 1024),
    ),
    paged("out must be int32, got int64", TypeError, out=slots_of(24, K, dtype=torch.int64)),
    paged("k must be at least 1, got 0", k=0),
    paged("k must be an int, got 512.0 (float)", TypeError, k=512.0),
]


@pytest.mark.parametrize(("logits", "k", "arguments", "error", "message"), BAD_PAGES)
def test_call_refuses_page_tables(logits, k, arguments, error, message):
    with raises(error, message):
        check_call(logits_of() if logits is None else logits, k, **arguments)


@pytest.mark.parametrize(("logits", "k", "arguments", "error", "message"), BAD_PAGES)
def test_topk_paged_refuses_them_before_anything_is_written(logits, k, arguments, error, message):
    logits = logits_of() if logits is None else logits
    shape = (len(logits), k if isinstance(k, int) else K)
    outputs = {"out": slots_of(*shape), "raw_out": slots_of(*shape), **arguments}
    with raises(error, message):
        topk_lab.topk_paged(
            logits, k, outputs.pop("page_table"), outputs.pop("page_size"), **outputs
        )
    for name in ("out", "raw_out"):
        if name not in arguments:
            assert (outputs[name] == -777).all()


def test_topk_paged_wants_a_table():
    with raises(TypeError, "page_table must be a torch.Tensor, got None"):
        topk_lab.topk_paged(logits_of(), K, None, 64)


@pytest.mark.parametrize("name", ["page_size", "raw_out"])
def test_what_comes_with_a_page_table_is_refused_without(name):
    alone = {"page_size": 64, "raw_out": slots_of(ROWS, K)}[name]
    with raises(ValueError, f"{name} must come with page_table, got page_table=None"):
        check_call(logits_of(), K, **{name: alone})


@pytest.mark.parametrize(
    ("variant", "k", "message"),
    [
        ("sglang_block1024", 1025, "k must be in [1, 1024] for sglang_block1024, got 1025"),
        ("sglang_block512", 2048, "k must be in [1, 1024] for sglang_block512, got 2048"),
        ("vllm_k512", 511, "k must be 512 for vllm_k512, got 511"),
    ],
)
def test_topk_paged_refuses_a_k_that_the_variant_does_not_take(variant, k, message):
    out, raw_out = slots_of(ROWS, k), slots_of(ROWS, k)
    with raises(ValueError, message):
        topk_lab.topk_paged(
            logits_of(), k, table_of(), 64, variant=variant, out=out, raw_out=raw_out
        )
    assert (out == -777).all()
    assert (raw_out == -777).all()


@pytest.mark.parametrize(
    ("written", "other"),
    [
        ("out", "raw_out"),
        ("out", "page_table"),
        ("out", "logits"),
        ("raw_out", "page_table"),
        ("raw_out", "logits"),
        ("raw_out", "row_ends"),
        ("raw_out", "workspace"),
        ("workspace", "page_table"),
    ],
)
def test_page_tables_and_slots_share_no_memory(written, other):
    rows, cols, k, pages = 4, 16, 8, 4
    memory = torch.full((1024,), -777, dtype=torch.int32)
    places = {
        "logits": (100, rows * cols),
        "row_ends": (200, rows),
        "out": (300, rows * k),
        "raw_out": (400, rows * k),
        "page_table": (500, rows * pages),
        "workspace": (600, 16),
    }

    def arguments(places):
        flat = {name: memory[first : first + size] for name, (first, size) in places.items()}
        return {
            "logits": flat["logits"].view(torch.float32).view(rows, cols),
            "row_ends": flat["row_ends"],
            "out": flat["out"].view(rows, k),
            "raw_out": flat["raw_out"].view(rows, k),
            "page_table": flat["page_table"].view(rows, pages),
            "workspace": flat["workspace"].view(torch.uint8),
        }

    check_call(**arguments(places), k=k, page_size=4)  # one buffer, but nothing shared
    first, last, size = places[other][0], sum(places[other]) - 1, places[written][1]
    for beside in (last + 1, first - size):
        check_call(**arguments({**places, written: (beside, size)}), k=k, page_size=4)
    for shared in (last, first - size + 1):
        given = arguments({**places, written: (shared, size)})
        message = f"{written} must not share memory with {other}, got overlapping tensors"
        with raises(ValueError, message):
            check_call(**given, k=k, page_size=4)
        with raises(ValueError, message):
            topk_lab.topk_paged(
                given.pop("logits"), k, given.pop("page_table"), 4, variant="reference", **given
            )
    assert (memory == -777).all()


def test_call_is_frozen():
    call = check_call(logits_of(), K)
    with pytest.raises(AttributeError):
        call.k = 3


def test_workspace_is_large_enough_or_refused():
    check_workspace(None, 0)
    check_workspace(torch.empty(64, dtype=torch.uint8), 64)
    with raises(ValueError, "workspace must hold at least 65 bytes, got 64"):
        check_workspace(torch.empty(64, dtype=torch.uint8), 65)
    with raises(ValueError, "workspace must hold 65 bytes, got None"):
        check_workspace(None, 65)


def test_contract_needs_numpy_alone():
    code = (
        "import sys, topk_lab.contract, topk_lab.workloads, topk_lab.cases;"
        "print(sorted({'torch', 'numba', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_rows_of_no_sequence_need_no_table():
    empty = torch.zeros(0, 8)
    lengths = torch.zeros(4, 0, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"page_table must have shape \(num_rows, pages\) = \(0, "):
        check_call(
            empty, 4, seq_lens=lengths, page_table=torch.zeros(4, 1, dtype=torch.int32), page_size=8
        )
