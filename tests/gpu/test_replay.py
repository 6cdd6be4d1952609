"""Does one captured graph stay exact on a device, and is it judged there as on the host?

Needs pytest, torch and a device; `make test-gpu` runs it.
"""

import os

import numpy as np
import pytest
import torch

from topk_lab import driver, registry, targets, verify
from topk_lab.bench.device_logits import DRAWN, draw
from topk_lab.contract import UNWRITTEN, find_violations, inexact_rows

pytestmark = pytest.mark.gpu

SAFE = [info.name for info in registry.VARIANTS.values() if info.graph_safe]


@pytest.fixture(scope="module")
def target():
    platform = driver.platform()
    state = targets.status(platform) if platform else None
    if state is None or not state.usable:
        required = {platform, "gpu"} & set(os.environ.get("TOPK_LAB_REQUIRE", "").split(","))
        reason = state.reason if state else f"torch {torch.__version__} drives no device"
        (pytest.fail if required else pytest.skip)(reason)
    return platform


@pytest.mark.parametrize("variant", SAFE)
def test_one_graph_serves_200_lengths_and_contents(target, variant):
    checks = verify.checks("graph_replays", variant, target)
    assert len(checks) >= 6
    for check in checks:
        finding = verify.run(check)
        assert check.holds(finding), verify.line(check, finding)
        assert finding.counters["replays"] == 200


@pytest.mark.parametrize("variant", SAFE)
@pytest.mark.parametrize("experiment", ["fresh_lengths", "side_streams"])
def test_nothing_has_to_wait(target, variant, experiment):
    (check,) = verify.checks(experiment, variant, target)
    finding = verify.run(check)
    assert check.holds(finding), verify.line(check, finding)


ENDS = np.array([70_000, 66_001, 600, 512, 511, 1, 0], np.int32)


@pytest.mark.parametrize("workload", DRAWN)
def test_answers_are_judged_on_the_device_as_on_the_host(target, workload):
    logits = draw(workload, ENDS, 70_001, "cuda", seed=1)
    ends = torch.from_numpy(ENDS).cuda()
    live = torch.arange(70_001, device="cuda") < ends[:, None]
    order = torch.where(live, logits, -torch.inf).sort(dim=1, descending=True, stable=True)
    slots = torch.arange(512, device="cuda")
    right = torch.where(slots < ends[:, None], order.indices[:, :512], -1).int()
    # Columns past the end tie with masked ones; of the live ones the first are taken.
    assert inexact_rows(logits, right, ends).tolist() == []
    for row, slot, value in ((0, 3, UNWRITTEN), (1, 0, 66_001), (2, 511, int(right[2, 0]))):
        wrong = right.clone()
        wrong[row, slot] = value
        assert inexact_rows(logits, wrong, ends).tolist() == [row]
        found = find_violations(logits.cpu(), wrong.cpu(), row_ends=ENDS)
        assert {violation.row for violation in found} == {row}
