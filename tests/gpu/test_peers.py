"""Is a peer that returns its own tensor judged on what a replay wrote, on a real device?"""

import sys
from types import ModuleType

import pytest
import torch

from topk_lab import results, workloads
from topk_lab.bench import Effort, TorchDevice, candidates, measure

pytestmark = pytest.mark.gpu

VARIANT = "peer:sgl_fast_topk_v2"


def timing(monkeypatch, function, cache="warm"):
    """What becomes of a function in the place of a peer's."""
    module = ModuleType("sgl_kernel")
    module.fast_topk_v2 = function
    monkeypatch.setitem(sys.modules, "sgl_kernel", module)
    device = TorchDevice()
    inputs = candidates.Inputs(workloads.make("normal", 3, 4096), device, cache)
    made = {name: candidates.stand_for(name, 2048, inputs) for name in (VARIANT, "torch.topk")}
    found = measure(made, device, cache=cache, effort=Effort(max_seconds=0.5))
    assert found["torch.topk"].status == "ok"
    return found[VARIANT]


def chosen(score, lengths, topk):
    return torch.topk(score, topk).indices.to(torch.int32)


@pytest.mark.parametrize("cache", results.CACHES)
def test_every_replay_writes_what_the_captured_call_returned(monkeypatch, cache):
    assert timing(monkeypatch, chosen, cache).status == "ok"


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_an_answer_that_is_not_recorded_is_wrong(monkeypatch):
    kept = []

    def only_once(score, lengths, topk):
        kept.append(None if kept else chosen(score, lengths, topk))
        return kept[0]

    found = timing(monkeypatch, only_once)
    assert found.status == "wrong"
    assert "unwritten" in found.reason
