"""Does a real device keep what the harness promises of graphs, caches and clocks?"""

import pytest
import torch

from topk_lab import workloads
from topk_lab.bench import PEERS, Effort, TorchDevice, candidates, current_gpu, measure

pytestmark = pytest.mark.gpu

SHORT = Effort(max_seconds=0.5)


@pytest.fixture(scope="module")
def device():
    return TorchDevice()


def inputs(device, num_cols, cache="warm"):
    return candidates.Inputs(workloads.make("normal", 1, num_cols), device, cache)


def topk(logits):
    return PEERS["torch.topk"].make(current_gpu(), 512, None, logits)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_graph_that_holds_nothing_is_wrong_and_has_no_time(device):
    def make(logits):
        call, indices = topk(logits)

        def call_outside_of_graphs():
            if not torch.cuda.is_current_stream_capturing():
                call()

        return call_outside_of_graphs, indices

    logits = inputs(device, 4096)
    timings = measure(
        {"escaped": logits.selection(make), "torch.topk": logits.selection(topk)},
        device,
        effort=SHORT,
    )
    assert timings["escaped"].status == "wrong"
    assert "unwritten" in timings["escaped"].reason
    assert timings["torch.topk"].status == "ok"


def test_warm_and_cold_times_are_told_apart(device):
    times = {}
    for cache in ("warm", "pressure_256MiB", "cold"):
        read = inputs(device, 65_536, cache).read(candidates.READS["read_amax_1024"])
        timing = measure({"read": read}, device, cache=cache, effort=SHORT)["read"]
        assert timing.status == "ok"
        times[cache] = timing
    assert times["cold"].calls_per_graph == candidates.MOST_COPIES
    assert times["warm"].median_us < times["cold"].median_us
    assert times["warm"].median_us < times["pressure_256MiB"].median_us


def test_time_of_a_call_settles_as_a_graph_holds_more(device):
    times = [
        measure(
            {"torch.topk": inputs(device, 4096).selection(topk)},
            device,
            calls_per_graph=calls,
            effort=SHORT,
        )["torch.topk"].median_us
        for calls in (1, 16, 64)
    ]
    assert times[0] > times[1]
    assert times[1] == pytest.approx(times[2], rel=0.1)


def test_the_same_candidate_repeats_within_three_percent(device):
    logits = inputs(device, 131_072)
    timings = measure(
        {
            "a": logits.selection(topk),
            "b": logits.read(candidates.READS["read_amax"]),
            "a again": logits.selection(topk),
        },
        device,
    )
    assert timings["a again"].median_us == pytest.approx(timings["a"].median_us, rel=0.03)
    assert len(timings["a"].samples_us) >= 50


def test_an_eager_call_is_slower_than_a_replayed_one(device):
    logits = inputs(device, 4096)
    read = {"read": logits.read(candidates.READS["read_amax"])}
    eager, graph = (
        measure(read, device, mode=mode, effort=SHORT)["read"] for mode in ("eager", "graph")
    )
    assert eager.calls_per_graph is None
    assert eager.median_us > graph.median_us
