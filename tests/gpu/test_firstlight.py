"""Does a first run hold on a real device, and is its record one that may be sent?"""

import pytest

from topk_lab import driver, firstlight, results
from topk_lab.firstlight.state import EXPERIMENT

pytestmark = pytest.mark.gpu


def test_a_quick_first_run_finds_nothing_wrong(tmp_path):
    target = driver.platform()
    said = []
    outcome = firstlight.run(target, tmp_path, minutes=4, quick=True, say=said.append)
    assert outcome.failures == {}, "\n".join(said)
    assert list(outcome.reports) == firstlight.parts()
    frame = results.load(outcome.record)
    assert set(frame["kind"]) == {"measured"}
    timed = frame[frame["samples_us"].notna()]
    assert {"reference_shapes", "latency_vs_batch", "vllm_matrix"} <= set(timed["experiment"])
    assert (frame.loc[frame["experiment"] == EXPERIMENT, "target"] == target).all()
