"""Is the delegate selection timed on what its questions ask, and its first launch really read?"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.conftest import require
from tests.test_bench import SHORT, Calling, run_on
from topk_lab import plans, results, schedules, targets, workloads
from topk_lab.bench import EXPERIMENTS, candidates, delegate, matrix, measure, run
from topk_lab.bench.ratios import published_shapes

# Rows that no member for k = 512 keeps whole, as short as they can be.
SHORTEST = 1 + max(
    policy.whole_columns for policy in schedules.DELEGATE_POLICIES.values() if policy.max_k == 512
)


def cells(name):
    return EXPERIMENTS[name].cells()


def test_the_matrix_is_that_of_the_source_beside_its_selection():
    states = Counter(
        (cell.cache, cell.workload_args["buffer"]) for cell in cells("delegate_matrix")
    )
    assert states == {("warm", "live"): 1008, ("warm", "full"): 1008, ("cold", "live"): 1008}
    assert {cell.variants for cell in cells("delegate_matrix")} == {("vllm_k512", "delegate")}
    source = {str(cell) for cell in matrix.matrix_cells()}
    assert {str(cell) for cell in cells("delegate_matrix")} <= source
    axes = EXPERIMENTS["delegate_matrix"].axes()
    assert axes.keys() == EXPERIMENTS["vllm_matrix"].axes().keys()


def test_every_published_shape_is_timed_in_every_state_with_a_floor():
    listed = cells("delegate_shapes")
    assert len(listed) == 18 * 3
    assert {cell.cache for cell in listed} == set(results.CACHES)
    shapes = {(cell.num_rows, cell.num_cols, cell.workload) for cell in listed}
    assert shapes == {(rows, cols, name) for rows, cols, _, name, _ in published_shapes()}
    for cell in listed:
        assert {"torch.topk", "vllm_k512", "shared_histogram", "delegate"} < set(cell.variants)
        assert set(candidates.READS) < set(cell.variants)
        # A row that a block keeps whole is read by that block.
        _, policy = schedules.delegate_policy("delegate", cell.num_rows, cell.num_cols, cell.k)
        assert (delegate.REDUCE in cell.variants) == (cell.num_cols > policy.whole_columns)


def test_every_workload_is_timed_beside_normal_rows():
    listed = cells("delegate_rows")
    for shape in delegate.ROW_SHAPES:
        of_shape = [cell for cell in listed if (cell.num_rows, cell.num_cols) == shape]
        assert [cell.workload for cell in of_shape] == list(workloads.names())
        assert "normal" in workloads.names()
    assert {cell.k for cell in listed} == {512}


def test_a_k_beyond_512_is_timed_beside_the_variants_that_take_it():
    for cell in cells("delegate_large_k"):
        assert ("vllm_generic" in cell.variants) == (cell.k <= 2048)
        assert {"aiter_one_block", "shared_histogram", "delegate"} <= set(cell.variants)
        for name in cell.variants:
            refused = schedules.gate_refusal(name, cell.num_rows, cell.num_cols, cell.k)
            assert refused is None
    assert {cell.k for cell in cells("delegate_large_k")} == {1024, 2048, 4096}


def test_growth_goes_as_far_as_two_gibibytes():
    sizes = [4 * cell.num_rows * cell.num_cols for cell in cells("delegate_growth")]
    assert (min(sizes), max(sizes)) == (4 * 32_768, 2**31)
    assert {cell.num_rows: cell.num_cols for cell in cells("delegate_growth")} == {
        1: 2**22,
        24: 2**22,
        128: 2**22,
    }
    assert all(delegate.REDUCE in cell.variants for cell in cells("delegate_growth"))
    assert all(2 <= cell.calls_per_graph <= 20 for cell in cells("delegate_growth"))


def test_every_member_stands_beside_the_choice():
    listed = cells("delegate_members")
    assert len(listed) == 28
    compiled = {name for name, policy in schedules.DELEGATE_POLICIES.items() if policy.max_k == 512}
    chosen = []
    for cell in listed:
        assert {"delegate", "delegate[launches=two,dies=8]"} < set(cell.variants)
        named = [name for name in cell.variants if "[member=" in name]
        ran = [delegate.member(cell, name, None) for name in named]
        assert {one["member"] for one in ran} == compiled
        assert len({(one["member"], one["launches"]) for one in ran}) == len(ran)
        # Wherever the choice goes, it is timed under its own name too.
        chosen.append(delegate.member(cell, "delegate", None))
        assert chosen[-1] in ran or chosen[-1]["launches"] == "fused+fused_global"
        # Shorter rows are kept whole; of longer ones LDS holds the delegates where they fit.
        forms = {8192: 4, 524_288: 5}.get(cell.num_cols, 8)
        assert len(ran) == forms
    assert {one["member"] for one in chosen} > compiled
    assert {one["launches"] for one in chosen} == {
        *("two", "fused", "fused_global", "fused+fused_global"),
    }


def test_the_member_that_ran_is_said():
    (cell,) = (
        cell for cell in cells("delegate_growth") if (cell.num_rows, cell.num_cols) == (24, 2**20)
    )
    long = {"member": "k512_long", "launches": "two"}
    assert delegate.member(cell, "delegate", None) == long
    assert delegate.member(cell, delegate.REDUCE, None) == long
    assert delegate.member(cell, "delegate[member=k512]", None) == long | {"member": "k512"}
    wide = replace(cell, num_rows=128, num_cols=131_072)
    assert delegate.member(wide, "delegate", None) == {"member": "k512", "launches": "fused"}
    assert delegate.member(wide, delegate.REDUCE, None) == {"member": "k512", "launches": "two"}
    assert delegate.member(cell, "read_amax", None) == {}
    assert delegate.member(cell, "vllm_k512", None) == {}
    case = cells("delegate_matrix")[0]
    assert delegate.matrix_counters(case, "vllm_k512", None).keys() == {"input_bytes"}


@pytest.fixture
def emulated(monkeypatch):
    """Plans that are launched by the driver run as gfx950 code."""
    require("gfx950")

    def launched(plan, tensors, device):
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        return lambda: targets.emulate("gfx950", plan, arrays)

    monkeypatch.setattr(delegate, "launched", launched)


@pytest.fixture
def small():
    """A cell of two rows, just long enough to have delegates."""
    (cell,) = (
        cell
        for cell in cells("delegate_shapes")
        if (cell.num_rows, cell.num_cols, cell.workload, cell.cache)
        == (24, 262_144, "masked_prefix", "warm")
    )
    names = ("read_amax", delegate.REDUCE, "delegate")
    return replace(cell, num_rows=2, num_cols=SHORTEST, variants=names)


@pytest.mark.parametrize("cache", results.CACHES)
def test_the_first_launch_alone_reads_every_row(emulated, small, cache):
    cell = replace(small, cache=cache)
    device = Calling()
    timings = measure(delegate.shape_candidates(cell, device), device, cache=cache, effort=SHORT)
    assert {name: timing.status for name, timing in timings.items()} == dict.fromkeys(
        cell.variants, "ok"
    )


@pytest.mark.parametrize("fault", ["lower", "missing", "last"])
def test_a_first_launch_that_leaves_something_out_is_found_out(emulated, small, monkeypatch, fault):
    honest = delegate.launched
    segment = schedules.delegate_policy("delegate", 2, SHORTEST, 512)[1].segment

    def spoiled(plan, tensors, device):
        call = honest(plan, tensors, device)
        found = tensors["workspace"]

        def spoil():
            call()
            if fault == "lower":  # no delegate is the row's greatest logit
                found[1] = found[1].where(found[1] >= 0, 0x7F000000)
            elif fault == "missing":
                found[1, 3] = 0
            else:
                found[1, -(-SHORTEST // segment) - 1] = 0

        return spoil

    monkeypatch.setattr(delegate, "launched", spoiled)
    device = Calling()
    timing = measure(delegate.shape_candidates(small, device), device, effort=SHORT)[
        delegate.REDUCE
    ]
    assert timing.status == "wrong"
    assert timing.reason == "1 rows; row 1: its greatest logit was not found"


def test_delegates_are_turned_back_into_the_logits_that_they_stand_for():
    logits = np.array([-np.inf, -1.5, -1e-45, 0.0, 1e-45, 2.0, np.inf, np.nan], np.float32)
    bits = logits.view(np.uint32)
    keys = np.where(bits >> 31, ~bits, bits | 0x80000000)
    keys[-1] = 0xFFFFFFFF
    delegates = torch.from_numpy(np.append(keys, np.zeros(2, np.uint32)).view(np.int32))[None]
    found = delegate._maxima(delegates, 9).numpy()[0]
    np.testing.assert_array_equal(found[:8], logits)
    assert np.isnan(found[8])
    assert found[9] == -np.inf


def test_the_first_launch_is_that_of_the_selection_s_plan():
    plan = delegate._plan(24, 262_144, 512)
    member, policy = schedules.delegate_policy("delegate", 24, 262_144, 512)
    first, *rest = plan.launches
    assert first.kernel == f"delegate_reduce_{policy.segment}"
    assert [launch.kernel for launch in rest] == [f"delegate_{member}_select"]
    assert {place.name for _, place in first.pointers} == {"logits", "row_ends", "workspace"}
    shape = plans.Shape(24, 262_144, 512, 262_144, 512)
    assert plan.launches == plans.plan("delegate", shape).launches


SMALL = {
    "delegate_shapes": {"num_rows": [6], "cache": ["warm", "cold"]},
    "delegate_rows": {"num_rows": [8], "workload": ["few_values", "nan"]},
    "delegate_large_k": {"num_rows": [1], "num_cols": [32_768]},
    "delegate_members": {"num_rows": [1], "num_cols": [8192, 32_768]},
    "delegate_matrix": {
        **{"concurrency": [1], "speculative_tokens": [1], "context": [10_000]},
        **{"compression_ratio": [2], "buffer": ["live"]},
    },
}


@pytest.mark.parametrize("name", SMALL)
def test_all_variants_of_a_cell_are_checked_timed_and_recorded(tmp_path, name):
    recorder = results.Recorder(tmp_path, run_on(), check=True)
    arguments = {"device": Calling(), "effort": SHORT, "say": lambda line: None}
    written = run(name, recorder, axes=SMALL[name], **arguments)
    frame = results.load(tmp_path)
    assert results.validate(tmp_path) == len(written) == len(frame) > 0
    assert set(frame["status"]) == {"ok"}
    assert set(frame["experiment"]) == {name}
    for cell in frame.to_dict("records"):
        assert ("member" in cell["counters"]) == cell["variant"].startswith("delegate")
        assert 0 < cell["counters"]["input_bytes"] <= 4 * cell["num_rows"] * cell["num_cols"]
    assert run(name, recorder, axes=SMALL[name], resume=True, **arguments) == []
