"""Is `topk_lab.topk` exact on device tensors, in eager mode, compiled and captured?"""

import numpy as np
import pytest
import torch

import topk_lab
import topk_lab.ops  # registers the operator
from topk_lab import cases, targets, verify, workloads

pytestmark = pytest.mark.gpu

VARIANTS = ("vllm_generic", "vllm_k512")
TARGET = "hip" if torch.version.hip else "cuda"


def rows(num_rows=24, num_cols=70_000, name="normal", **arguments):
    return torch.from_numpy(workloads.make(name, num_rows, num_cols, **arguments)).cuda()


def checked(logits, indices, **lengths):
    on_host = {
        name: value.cpu() if hasattr(value, "cpu") else value for name, value in lengths.items()
    }
    topk_lab.assert_exact(logits.cpu(), indices.cpu(), **on_host)


def row_ends(num_rows, *lengths):
    pattern = torch.tensor(lengths, dtype=torch.int32)
    return pattern.repeat(-(-num_rows // len(lengths)))[:num_rows].cuda()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "experiment", ["boundaries", "masked_replay", "mixed_replay", "one_d_lengths", "workloads"]
)
def test_case_lists_are_exact(variant, experiment):
    for check in verify.checks(experiment, variant, TARGET):
        finding = verify.run(check)
        assert finding.status == "ok", verify.line(check, finding)


@pytest.mark.parametrize("variant", ["sglang_block512", "sglang_block1024"])
@pytest.mark.parametrize(
    "experiment", ["boundaries", "workloads", "sglang", "page_tables", "pass_by_pass"]
)
def test_one_block_a_row_is_exact(variant, experiment):
    planned = verify.checks(experiment, variant, TARGET)
    assert planned
    for check in planned:
        finding = verify.run(check)
        assert check.holds(finding), verify.line(check, finding)


@pytest.mark.parametrize("variant", ["aiter_one_block", "aiter_one_block[digit_bits=11]"])
@pytest.mark.parametrize(
    "experiment", ["boundaries", "workloads", "stable_answers", "page_tables", "pass_by_pass"]
)
def test_one_block_without_a_stash_is_exact(variant, experiment):
    planned = verify.checks(experiment, variant, TARGET)
    assert planned
    for check in planned:
        finding = verify.run(check)
        assert check.holds(finding), verify.line(check, finding)


@pytest.mark.parametrize(
    "experiment", ["boundaries", "workloads", "page_tables", "pass_by_pass", "graph_replays"]
)
def test_blocks_that_share_a_row_are_exact(experiment):
    planned = verify.checks(experiment, "shared_histogram", TARGET)
    assert planned
    for check in planned:
        finding = verify.run(check)
        assert check.holds(finding), verify.line(check, finding)


@pytest.mark.parametrize("experiment", ["exactness_under_overflow", "sglang_index_sets"])
def test_the_source_of_one_block_a_row_is_borne_out(experiment):
    for check in verify.checks(experiment, "sglang_block1024", TARGET):
        finding = verify.run(check)
        assert check.holds(finding), verify.line(check, finding)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_page_transform_follows_any_selection(variant):
    for check in verify.checks("page_tables", variant, TARGET):
        finding = verify.run(check)
        assert check.holds(finding), verify.line(check, finding)


@pytest.mark.parametrize(
    "variant",
    [
        *VARIANTS,
        "sglang_block512",
        "sglang_block1024",
        "sglang_block1024[stash_kib=48]",
        "aiter_one_block",
        "shared_histogram",
    ],
)
def test_a_captured_graph_reads_lengths_and_pages_anew(variant):
    num_rows, num_cols, page_size = 6, 70_000, 64
    pages = -(-num_cols // page_size)
    logits = rows(num_rows, num_cols)
    ends = row_ends(num_rows, num_cols)
    table = torch.zeros(num_rows // 2, pages, dtype=torch.int32, device="cuda")
    out = torch.empty(num_rows, 512, dtype=torch.int32, device="cuda")
    raw = torch.empty_like(out)
    needed = topk_lab.workspace_size(num_rows, num_cols, 512, variant, "cuda")
    workspace = torch.empty(max(needed, 4), dtype=torch.uint8, device="cuda")

    def call():
        return topk_lab.topk_paged(
            logits, 512, table, page_size, row_ends=ends, variant=variant, out=out, raw_out=raw,
            workspace=workspace,
        )  # fmt: skip

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert call() is out
    random = torch.Generator().manual_seed(0)
    for turn, lengths in enumerate([(70_000, 3), (0, -1), (513, 512), (65_537, 16_385)]):
        ends.copy_(row_ends(num_rows, *lengths))
        name = ("normal", "masked_random", "constant", "near_one")[turn]
        logits.copy_(rows(num_rows, num_cols, name))
        order = torch.randperm(table.numel(), generator=random).view(table.shape)
        table.copy_(order.to(torch.int32))
        out.fill_(-777)
        raw.fill_(-777)
        graph.replay()
        checked(logits, raw, row_ends=ends)
        found = raw.long()
        page = order.cuda().repeat_interleave(2, 0).gather(1, found.clamp(min=0) // page_size)
        due = torch.where(found < 0, -1, page * page_size + found % page_size)
        assert torch.equal(out.long(), due)


def test_rising_indices_of_a_device():
    logits = rows(5, 40_000, "few_values")
    indices = topk_lab.topk(logits, 1000, variant="sglang_block1024", order="index")
    checked(logits, indices, order="index")


@pytest.mark.parametrize("promises", [{"tie_break": "lowest"}, {"order": "index"}])
@pytest.mark.parametrize("k", [1, 1000, 5000])
def test_stable_answers_of_a_device_are_those_of_the_reference(k, promises):
    logits, ends = rows(5, 40_001, "few_values"), row_ends(5, 40_001, 1001, 3)
    given = {"row_ends": ends, "variant": "aiter_one_block", "return_values": True, **promises}
    values, indices = topk_lab.topk(logits, k, **given)
    due_values, due = topk_lab.topk(
        logits.cpu(), k, row_ends=ends.cpu(), order="index", return_values=True
    )
    assert torch.equal(indices.cpu(), due)
    assert torch.equal(values.cpu(), due_values)


def test_a_table_of_another_device_or_width_is_refused():
    logits = rows(2, 1000)
    table = torch.zeros(2, 16, dtype=torch.int32)
    with pytest.raises(TypeError, match="page_table must be on the device of logits"):
        topk_lab.topk_paged(logits, 5, table, 64)
    with pytest.raises(ValueError, match=r"at least 16 pages of 64 for 1000 columns, got 15"):
        topk_lab.topk_paged(logits, 5, table[:, :15].cuda(), 64)


@pytest.mark.parametrize("variant", ["auto", *VARIANTS])
def test_device_tensors_are_selected_exactly(variant):
    logits = rows()
    ends = row_ends(24, 70_000, 513, 512, 0, 16_385)
    values, indices = topk_lab.topk(logits, 512, row_ends=ends, variant=variant, return_values=True)
    assert indices.device == logits.device
    checked(logits, indices, row_ends=ends, values=values)


@pytest.mark.parametrize("k", [1, 100, 2048])
def test_auto_serves_other_k(k):
    logits = rows(5, 30_000)
    checked(logits, topk_lab.topk(logits, k))


def test_repeated_calls_read_what_memory_holds_now():
    logits, ends = rows(), row_ends(24, 70_000)
    out = torch.empty(24, 512, dtype=torch.int32, device="cuda")
    workspace = torch.empty(
        topk_lab.workspace_size(24, 70_000, 512, device="cuda"), dtype=torch.uint8, device="cuda"
    )
    for length in (70_000, 600, 16_385, 0, 65_537):
        logits.normal_()
        ends.fill_(length)
        out.fill_(-777)
        workspace.random_()
        topk_lab.topk(logits, 512, row_ends=ends, out=out, workspace=workspace)
        checked(logits, out, row_ends=ends)


def test_other_tensors_at_the_same_address_are_checked_anew():
    logits, ends = rows(), row_ends(24, 70_000)
    out = torch.empty(24, 512, dtype=torch.int32, device="cuda")
    topk_lab.topk(logits, 512, row_ends=ends, out=out)
    with pytest.raises(ValueError, match="row_ends must have shape"):
        topk_lab.topk(logits, 512, row_ends=ends[:20], out=out)
    with pytest.raises(TypeError, match="out must be int32, got float32"):
        topk_lab.topk(logits, 512, row_ends=ends, out=out.view(torch.float32))
    narrower = logits[:, :50_000]
    topk_lab.topk(narrower, 512, row_ends=ends, out=out)
    checked(narrower, out, row_ends=ends)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_graph_stays_exact_over_200_replays(variant):
    num_cols = 262_145
    logits, ends = rows(24, num_cols), row_ends(24, 70_000)
    out = torch.empty(24, 512, dtype=torch.int32, device="cuda")
    required = topk_lab.workspace_size(24, num_cols, 512, variant, "cuda")
    workspace = torch.empty(required, dtype=torch.uint8, device="cuda")

    def call():
        topk_lab.topk(logits, 512, row_ends=ends, out=out, workspace=workspace, variant=variant)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    generator = torch.Generator(device="cuda").manual_seed(7)
    bounds = torch.tensor([length for length, _ in cases.REPLAY_BOUNDS], device="cuda")
    numbers = torch.arange(24, device="cuda")
    for replay in range(200):
        logits.normal_(generator=generator)
        if replay % 3 == 1:
            keep = torch.rand(logits.shape, device="cuda", generator=generator) < 0.125
            logits.masked_fill_(~keep, -torch.inf)
        elif replay % 3 == 2:
            logits.copy_(logits.clamp_(min=0))
        chosen = torch.randint(0, num_cols + 1, (24,), device="cuda", generator=generator)
        at_bounds = numbers % 2 == replay % 2
        ends.copy_(torch.where(at_bounds, bounds[(numbers + replay) % 10], chosen))
        out.fill_(-777)
        graph.replay()
        checked(logits, out, row_ends=ends)


def test_a_capture_may_be_the_operators_own_first_call_after_a_warm_up():
    logits, ends = rows(3, 20_000), row_ends(3, 20_000)
    topk_lab.topk(logits, 512, row_ends=ends)
    other = rows(5, 18_000)
    out = torch.empty(5, 512, dtype=torch.int32, device="cuda")
    workspace = torch.empty(
        topk_lab.workspace_size(5, 18_000, 512, device="cuda"), dtype=torch.uint8, device="cuda"
    )
    ends_of_other = row_ends(5, 18_000, 400)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        topk_lab.topk(other, 512, row_ends=ends_of_other, out=out, workspace=workspace)
    graph.replay()
    checked(other, out, row_ends=ends_of_other)


def test_two_captures_share_a_pool_and_survive_allocations():
    pool = torch.cuda.graph_pool_handle()
    logits = rows(8, 40_000)
    ends = row_ends(8, 40_000, 17_000)
    topk_lab.topk(logits, 512, row_ends=ends)
    graphs, outs = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            outs.append(topk_lab.topk(logits, 512, row_ends=ends))
        graphs.append(graph)
    for _ in range(5):
        hog = torch.full((1 << 28,), 7, dtype=torch.float32, device="cuda")
        del hog
        logits.normal_()
        for graph, out in zip(graphs, outs, strict=True):
            out.fill_(-777)
            graph.replay()
            checked(logits, out, row_ends=ends)


def test_side_streams_see_what_they_wrote():
    stream = torch.cuda.Stream()
    logits = rows(24, 60_000)
    for turn in range(20):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            logits.fill_(-1.0)
            logits[:, turn : turn + 512] = 1.0
            indices = topk_lab.topk(logits, 512)
        stream.synchronize()
        expected = torch.arange(turn, turn + 512, dtype=torch.int32)
        assert torch.equal(indices.cpu().sort(dim=1).values, expected.expand(24, -1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_compiled_call_equals_eager(variant):
    def selected(logits, ends):
        return topk_lab.topk(logits, 512, row_ends=ends, variant=variant, return_values=True)

    compiled = torch.compile(selected, fullgraph=True, backend="aot_eager")
    for shape in ((3, 20_000), (5, 17_000)):
        logits, ends = rows(*shape), row_ends(shape[0], shape[1], 600)
        values, indices = compiled(logits, ends)
        checked(logits, indices, row_ends=ends, values=values)
        eager_values, _ = selected(logits, ends)
        assert torch.equal(values.sort(dim=1).values, eager_values.sort(dim=1).values)


def test_operator_passes_opcheck():
    logits, ends = rows(4, 1000), row_ends(4, 900)
    out = torch.empty(4, 512, dtype=torch.int32, device="cuda")
    for variant in VARIANTS:
        arguments = (logits, ends, None, 0, 512, variant, "any", "any", out, None, None)
        done = torch.library.opcheck(torch.ops.topk_lab.topk_out, arguments)
        assert set(done.values()) == {"SUCCESS"}


def test_tensors_on_other_devices_are_refused():
    logits = rows(2, 1000)
    with pytest.raises(
        TypeError, match="row_ends must be on the device of logits, cuda:0, got cpu"
    ):
        topk_lab.topk(logits, 512, row_ends=torch.full((2,), 5, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"variant must be one of vllm_generic, .* on cuda:0"):
        topk_lab.topk(logits, 512, variant="reference")


def test_more_rows_than_a_grid_axis_of_y_holds():
    logits = rows(1, 513, "ascending").expand(70_000, 513)
    indices = topk_lab.topk(logits, 512)
    expected = torch.arange(1, 513, dtype=torch.int32, device="cuda")
    assert torch.equal(indices.sort(dim=1).values, expected.expand(70_000, -1))


def test_target_reports_what_the_device_wrote():
    logits = workloads.make("normal", 3, 70_000)
    outcome = targets.run(TARGET, "vllm_k512", logits, 512, values=True)
    topk_lab.assert_exact(logits, outcome.indices, values=outcome.values)
    assert outcome.splits.tolist() == [8, 8, 8]
    assert len(outcome.code) == 64


@pytest.mark.parametrize("variant", ["sglang_block512", "vllm_k512"])
def test_page_tables_may_be_slices_of_wider_ones(variant):
    logits = workloads.make("normal", 3, 1000)
    wide = np.arange(3 * 40, dtype=np.int32).reshape(3, 40)
    table = wide[:, 5:21]
    outcome = targets.run(TARGET, variant, logits, 512, page_table=table, page_size=64)
    pages = np.take_along_axis(table, outcome.indices >> 6, axis=1)
    np.testing.assert_array_equal(outcome.slots, pages << 6 | outcome.indices & 63)
