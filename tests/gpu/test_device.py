"""Are the compiled kernels exact on a device, launched by the driver alone?

Needs pytest, torch and a device that it drives; `make test-gpu` runs it.
"""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from topk_lab import driver, plans, schedules, workloads
from topk_lab.contract import UNWRITTEN, assert_exact, find_violations, live_bounds
from topk_lab.reference import vllm
from topk_lab.reference.trace_record import TRACE_STEP, empty_trace

pytestmark = pytest.mark.gpu

K = 512
# Rows that go through every path of a variant: whole and split, longer and shorter than k.
CALLS = {
    "k512-one-block": ("vllm_k512", 16_384, (16_384, 8191, 513, 512, 511, 1, 0)),
    "k512-splits": ("vllm_k512", 262_144, (262_144, 65_537, 16_385, 16_384, 513, 100)),
    "generic-rank-count": ("vllm_generic", 12_287, (12_287, 513, 512, 7)),
    "generic-sort": ("vllm_generic", 12_288, (12_288, 700, 512, 0)),
    "generic-splits": ("vllm_generic", 200_000, (200_000, 30_000, 5121, 400)),
}
WORKLOADS = [
    *((name, {}) for name in workloads.names() if name != "pivot_bins"),
    *(("pivot_bins", {"count": count}) for count in (128, 129, 1024, 1025)),
]
ABLATIONS = [
    schedules.Variant(name, schedules.parse_variant(f"{name}[{fields}]").policy)
    for name, ablations in schedules.ABLATIONS.items()
    for fields in (
        ",".join(f"{key}={str(value).lower()}" for key, value in changes.items())
        for changes in ablations.values()
    )
]


@pytest.fixture(scope="module")
def device():
    platform = driver.platform()
    required = platform in os.environ.get("TOPK_LAB_REQUIRE", "").split(",")
    state = driver.status(platform) if platform else None
    if state is None or not state.usable:
        reason = state.reason if state else f"torch {torch.__version__} drives no device"
        (pytest.fail if required else pytest.skip)(reason)
    return driver.open_device(platform, torch.cuda.current_device())


def stream_handle():
    return torch.cuda.current_stream().cuda_stream


class Call:
    """A selection's tensors, its plan, and what launches it."""

    def __init__(self, device, variant, logits, k=K, *, study=False, traced=False, **lengths):
        self.device, self.logits, self.k = device, logits, k
        self.lengths = {
            name: torch.from_numpy(np.array(value, np.int32)).to(logits.device)
            for name, value in lengths.items()
            if name != "next_n"
        }
        self.next_n = lengths.get("next_n", 0)
        num_rows, num_cols = logits.shape
        self.plan = plans.plan(
            variant,
            plans.Shape(
                num_rows,
                num_cols,
                k,
                logits.stride(0),
                k,
                k,
                next_n=self.next_n,
                has_row_starts="row_starts" in self.lengths,
            ),
            study=study,
            traced=traced,
        )
        self.indices = torch.full((num_rows, k), UNWRITTEN, dtype=torch.int32, device=logits.device)
        self.values = torch.full((num_rows, k), float(UNWRITTEN), device=logits.device)
        self.workspace = torch.full(
            (self.plan.workspace_bytes // 4,), UNWRITTEN, dtype=torch.int32, device=logits.device
        )
        self.trace = torch.zeros(
            int(np.prod(self.plan.trace_shape)) * TRACE_STEP.itemsize if traced else 0,
            dtype=torch.uint8,
            device=logits.device,
        )

    def addresses(self):
        row_ends = self.lengths["seq_lens" if self.next_n else "row_ends"]
        found = {
            "logits": self.logits,
            "row_ends": row_ends,
            "indices": self.indices,
            "values": self.values,
            "workspace": self.workspace,
            "trace": self.trace,
        }
        found |= {name: self.lengths[name] for name in ("row_starts",) if name in self.lengths}
        return {name: tensor.data_ptr() for name, tensor in found.items()}

    def launch(self, stream=None):
        driver.launch(
            self.plan, self.addresses(), self.device, stream_handle() if stream is None else stream
        )
        return self

    def poison(self):
        self.indices.fill_(UNWRITTEN)
        self.values.fill_(float(UNWRITTEN))

    def assert_exact(self):
        assert_exact(
            self.logits.cpu(),
            self.indices.cpu(),
            values=self.values.cpu(),
            next_n=max(self.next_n, 1),
            **{name: value.cpu() for name, value in self.lengths.items()},
        )


def made(device, name, num_cols, lengths, poison="nan", **arguments):
    row_ends = np.array(lengths, np.int32)
    rows = workloads.make(
        name, len(lengths), num_cols, row_ends=row_ends, poison=poison, **arguments
    )
    return torch.from_numpy(rows).to(f"cuda:{device.index}")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("name", "arguments"),
    WORKLOADS,
    ids=["-".join(map(str, [n, *a.values()])) for n, a in WORKLOADS],
)
def test_every_path_is_exact_on_every_workload(device, call, name, arguments):
    variant, num_cols, lengths = CALLS[call]
    logits = made(device, name, num_cols, lengths, **arguments)
    Call(device, variant, logits, row_ends=lengths).launch().assert_exact()


@pytest.mark.parametrize("variant", ABLATIONS, ids=str)
@pytest.mark.parametrize("call", ["k512-one-block", "k512-splits"])
def test_ablations_are_exact_where_their_policy_is(device, call, variant):
    _, num_cols, lengths = CALLS[call]
    for name in ("normal", "masked_random", "masked_prefix", "near_equal", "infinities"):
        logits = made(device, name, num_cols, lengths)
        done = Call(device, str(variant), logits, row_ends=lengths, study=True).launch()
        if variant.policy.unsound_because:
            # Whatever it misses, no slot is left unwritten, out of range or filled twice.
            kinds = {
                violation.kind
                for violation in find_violations(
                    logits.cpu(), done.indices.cpu(), row_ends=done.lengths["row_ends"].cpu()
                )
            }
            assert kinds <= {"missing", "hole", "wrong_values"}
        else:
            done.assert_exact()


@pytest.mark.parametrize(
    "call", ["k512-one-block", "k512-splits", "generic-sort", "generic-splits"]
)
@pytest.mark.parametrize("name", ["normal", "masked_random", "same_leading_bits", "near_equal"])
def test_every_pass_does_what_its_twin_does(device, call, name):
    variant, num_cols, lengths = CALLS[call]
    logits = made(device, name, num_cols, lengths)
    done = Call(device, variant, logits, row_ends=lengths, traced=True)
    steps = empty_trace(*done.plan.trace_shape)
    done.trace.copy_(torch.from_numpy(steps.view(np.uint8).reshape(-1)))
    done.launch().assert_exact()
    steps = done.trace.cpu().numpy().view(TRACE_STEP).reshape(done.plan.trace_shape)
    rows = logits.cpu().numpy()
    starts, ends = live_bounds(*rows.shape, row_ends=np.array(lengths, np.int32))
    twin = vllm.select(variant, rows, K, starts, ends, trace=True).trace
    for field in TRACE_STEP.names:
        np.testing.assert_array_equal(steps[field], twin[field], err_msg=field)


@pytest.mark.parametrize("k", [1, 2, 100, 511, 2047, 2048])
def test_generic_takes_every_k(device, k):
    for num_cols in (5000, 20_000, 200_000):
        lengths = (num_cols, num_cols // 2, k, max(k - 1, 0))
        logits = made(device, "few_values", num_cols, lengths)
        Call(device, "vllm_generic", logits, k, row_ends=lengths).launch().assert_exact()


@pytest.mark.parametrize("variant", ["vllm_k512", "vllm_generic"])
def test_lengths_come_in_every_form(device, variant):
    logits = made(device, "normal", 20_000, [20_000] * 6)
    for lengths in (
        {"seq_lens": (19_999, 3000), "next_n": 3},
        {"seq_lens": (2, 600, 20_000), "next_n": 2},
        {"row_ends": (20_000, 15_000, 900, 600, 5, 30_000), "row_starts": (0, 7, 300, 600, 9, 1)},
        {"row_ends": (-(2**31), 2**31 - 1, 0, -1, 512, 20_001)},
    ):
        Call(device, variant, logits, **lengths).launch().assert_exact()


@pytest.mark.parametrize("variant", ["vllm_k512", "vllm_generic"])
def test_rows_may_lie_anywhere(device, variant):
    lengths = (40_000, 39_999, 17_000)
    storage = torch.full((3, 40_010), float("inf"), device=f"cuda:{device.index}")
    for first in range(4):
        logits = storage[:, first : first + 40_000]
        logits.copy_(made(device, "normal", 40_000, lengths))
        Call(device, variant, logits, row_ends=lengths).launch().assert_exact()
    shared = storage[:1, :40_000].expand(3, -1)
    Call(device, variant, shared, row_ends=lengths).launch().assert_exact()


def test_rows_may_be_more_than_4_gib_apart(device):
    stride = 2**30 + 3
    storage = torch.empty(2 * stride + 40_000, device=f"cuda:{device.index}")
    logits = storage.as_strided((3, 40_000), (stride, 1))
    logits.copy_(made(device, "normal", 40_000, [40_000] * 3))
    done = Call(device, "vllm_k512", logits, row_ends=[40_000] * 3).launch()
    done.logits = logits.clone()
    done.assert_exact()


@pytest.mark.parametrize(
    ("variant", "num_rows", "num_cols"),
    [("vllm_k512", 384, 131_072), ("vllm_k512", 1, 2**20), ("vllm_generic", 1000, 4096)],
)
def test_large_calls_are_exact(device, variant, num_rows, num_cols):
    lengths = [num_cols - 7 * row for row in range(num_rows)]
    logits = torch.randn(num_rows, num_cols, device=f"cuda:{device.index}")
    Call(device, variant, logits, row_ends=lengths).launch().assert_exact()


def captured(call, stream=None):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call.launch()
    return graph


@pytest.mark.parametrize("variant", ["vllm_k512", "vllm_generic"])
def test_a_captured_graph_serves_later_lengths_and_masks(device, variant):
    num_rows, num_cols = 6, 262_144
    logits = made(device, "normal", num_cols, [num_cols] * num_rows)
    call = Call(device, variant, logits, row_ends=[num_cols] * num_rows).launch()
    graph = captured(call, torch.cuda.Stream())
    random = np.random.default_rng(0)
    names = ("normal", "masked_random", "masked_prefix", "constant", "all_neg_inf", "near_equal")
    contents = {name: made(device, name, num_cols, [num_cols] * num_rows) for name in names}
    for turn in range(24):
        lengths = random.integers(-1, [2, 600, 20_000, 70_000, num_cols + 2, num_cols + 2])
        call.logits.copy_(contents[names[turn % len(names)]])
        call.lengths["row_ends"].copy_(torch.from_numpy(lengths.astype(np.int32)))
        call.poison()
        graph.replay()
        call.assert_exact()


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_kernel_that_is_not_loaded_is_refused_in_a_capture(device):
    fresh = driver.Device(device.platform, device.index)
    logits = made(device, "normal", 40_000, [40_000] * 2)
    call = Call(fresh, "vllm_k512", logits, row_ends=[40_000] * 2)
    with pytest.raises(driver.DriverError, match="warm up first"):
        captured(call)
    call.launch().assert_exact()
    call.poison()
    captured(call).replay()
    call.assert_exact()


def test_side_streams_and_threads_share_a_device(device):
    calls = [
        Call(
            device,
            "vllm_k512",
            made(device, name, 40_000, [40_000, 17_000]),
            row_ends=[40_000, 17_000],
        )
        for name in ("normal", "masked_random", "few_values", "nan")
    ]
    torch.cuda.synchronize()
    failures = []

    def work(call):
        stream = torch.cuda.Stream(device.index)
        try:
            for _ in range(50):
                call.launch(stream.cuda_stream)
            stream.synchronize()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for call in calls:
        call.assert_exact()


def test_a_device_that_is_not_current_is_served(device):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    other = driver.open_device(device.platform, 1 - device.index)
    lengths = (40_000, 600)
    logits = made(other, "normal", 40_000, lengths)
    call = Call(other, "vllm_k512", logits, row_ends=lengths)
    stream = torch.cuda.Stream(other.index)
    stream.wait_stream(torch.cuda.current_stream(other.index))
    call.launch(stream.cuda_stream)
    stream.synchronize()
    call.assert_exact()
    assert torch.cuda.current_device() == device.index
    with pytest.raises(driver.DriverError, match=r"stream must be|HANDLE|CONTEXT"):
        call.launch(torch.cuda.Stream(device.index).cuda_stream)


def test_a_fault_is_told_and_the_process_lives(device):
    if device.platform != "cuda":
        pytest.skip("the ROCm runtime ends the process on a memory fault")
    script = (
        "import torch\n"
        "from topk_lab import driver, plans\n"
        "plan = plans.plan('vllm_k512', plans.Shape(2, 1200, 512, 1200, 512))\n"
        "ends = torch.full((2,), 1200, dtype=torch.int32, device='cuda')\n"
        "device = driver.open_device('cuda', torch.cuda.current_device())\n"
        "bad = {'logits': 4096, 'row_ends': ends.data_ptr(), 'indices': 4096}\n"
        "driver.launch(plan, bad, device, 0)\n"
        "try:\n"
        "    torch.cuda.synchronize()\n"
        "except Exception as error:\n"
        "    print('torch:', str(error).splitlines()[0])\n"
        "try:\n"
        "    driver.launch(plan, bad, device, 0)\n"
        "except driver.DriverError as error:\n"
        "    print('driver:', error)\n"
        "print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    by_torch, by_driver, alive = done.stdout.strip().splitlines()
    assert "illegal memory access" in by_torch
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in by_driver
    assert "earlier work on the device may be at fault" in by_driver
    assert alive == "alive"
