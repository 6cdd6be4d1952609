"""Are the cases of the matrix those of the source, and large inputs what they are said to be?"""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.test_bench import SHORT, Calling, run_on
from topk_lab import results, schedules, workloads
from topk_lab.bench import EXPERIMENTS, Timing, candidates, graphs, matrix, measure, run
from topk_lab.bench.device_logits import draw
from topk_lab.contract import find_violations
from topk_lab.reference import exact

CASE = {
    "concurrency": 2,
    "speculative_tokens": 3,
    "context": 10_000,
    "compression_ratio": 2,
    "logits": "masked",
    "buffer": "live",
}


def test_every_state_has_the_1008_cases_of_the_source():
    cells = EXPERIMENTS["vllm_matrix"].cells()
    states = Counter((cell.cache, cell.workload_args["buffer"]) for cell in cells)
    assert set(states.values()) == {7 * 6 * 6 * 2 * 2}
    assert set(states) == {
        *itertools.product(("warm", "pressure_256MiB"), ("live", "full")),
        ("warm", "ragged"),
        ("cold", "live"),
    }
    # No two cells would be recorded as the same one.
    assert len({(cell.cache, *cell.workload_args.items()) for cell in cells}) == len(cells)
    assert {cell.k for cell in cells} == {512}
    assert {cell.variants for cell in cells} == {("vllm_generic", "vllm_k512")}
    assert max(cell.num_rows for cell in cells) == schedules.K512_MAX_ROWS == 64 * 6
    for cell in cells[:: len(cells) // 97]:
        arguments = cell.workload_args
        tokens = arguments["speculative_tokens"]
        assert (cell.num_rows, cell.next_n) == (arguments["concurrency"] * tokens, tokens)
        longest = arguments["context"] // arguments["compression_ratio"]
        full = arguments["buffer"] != "live"
        assert cell.num_cols == (schedules.K512_MAX_COLUMNS if full else longest)
        assert schedules.gate_refusal("vllm_k512", cell.num_rows, cell.num_cols, 512) is None
        assert (cell.calls_per_graph is None) == (cell.cache != "warm")


def test_tokens_see_what_is_before_them_and_lengths_are_divided_last():
    # Of 10,000 tokens the last three see 9998, 9999 and 10,000: two to a column.
    assert matrix.matrix_row_ends(CASE).tolist() == [4999, 4999, 5000] * 2
    ragged = CASE | {"buffer": "ragged", "concurrency": 4, "compression_ratio": 1}
    assert matrix.matrix_row_ends(ragged).tolist()[2::3] == [2500, 5000, 7500, 10_000]


def test_graphs_of_long_rows_hold_fewer_calls():
    cells = [cell for cell in matrix.matrix_cells() if cell.cache == "warm"]
    calls = {cell.calls_per_graph for cell in cells}
    assert min(calls) == 2
    assert max(calls) == 20
    for cell in cells[::50]:
        read = 4 * int(matrix.matrix_row_ends(cell.workload_args).sum(dtype=np.int64))
        assert cell.calls_per_graph in (20, max(2, matrix.GRAPH_BYTES // read))


def test_the_profiled_pairs_are_72_of_the_cases():
    cells = matrix.profiled_cells()
    assert len(cells) == len({tuple(cell.workload_args.items()) for cell in cells}) == 72
    known = {tuple(cell.workload_args.items()) for cell in matrix.matrix_cells()}
    assert {tuple(cell.workload_args.items()) for cell in cells} <= known


ENDS = np.array([1000, 1000, 997, 64, 9, 8, 1, 0], np.int32)


@pytest.mark.parametrize("name", ["normal", "masked_blocks"])
def test_drawn_logits_mask_as_many_blocks_as_the_workload(name):
    drawn = draw(name, ENDS, 1003, "cpu", seed=4).numpy()
    made = workloads.make(name, len(ENDS), 1003, row_ends=ENDS, poison="1e20")
    assert drawn.shape == made.shape
    for row, end in enumerate(ENDS):
        masked = np.isneginf(drawn[row, :end])
        # A last block that is cut short may be the one that is kept, or not.
        blocks = masked[: end - end % 8].reshape(-1, 8).any(axis=1).sum()
        due = np.isneginf(made[row, :end])[: end - end % 8].reshape(-1, 8).any(axis=1).sum()
        assert blocks == due or (end % 8 and abs(int(blocks) - int(due)) == 1)
        assert (drawn[row, end:] == made[row, end:]).all()
        # Whole blocks of 8 are masked or kept.
        for block in np.array_split(masked, range(8, end, 8)):
            assert block.size == 0 or block.all() or not block.any()
    kept = drawn[np.isfinite(drawn) & (drawn < 1e19)]
    assert abs(kept.mean()) < 0.2
    assert abs(kept.std() - 1) < 0.2
    assert np.array_equal(drawn, draw(name, ENDS, 1003, "cpu", seed=4).numpy(), equal_nan=True)
    assert not np.array_equal(drawn, draw(name, ENDS, 1003, "cpu", seed=5).numpy())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("masked_random", {}),
        ("masked_random", {"fraction": 0.9}),
        ("masked_prefix", {}),
        ("masked_prefix", {"finite": 10}),
    ],
)
def test_drawn_logits_mask_as_many_columns_as_the_workload(name, arguments):
    drawn = draw(name, ENDS, 1003, "cpu", **arguments).numpy()
    made = workloads.make(name, len(ENDS), 1003, row_ends=ENDS, poison="1e20", **arguments)
    masked, due = np.isneginf(drawn), np.isneginf(made)
    assert masked.sum(axis=1).tolist() == due.sum(axis=1).tolist()
    assert (drawn[made == 1e20] == 1e20).all()
    if name == "masked_prefix":
        assert np.array_equal(masked, due)
    else:  # anywhere, and elsewhere in each row
        assert not np.array_equal(masked[0], masked[1])
        assert masked[0, :500].sum() == pytest.approx(masked[0, 500:1000].sum(), rel=0.2)


def test_drawn_columns_are_reversed_as_a_cell_s():
    whole = np.full(2, 900, np.int32)
    drawn = draw("masked_prefix", whole, 900, "cpu", finite=10, columns_reversed=True)
    finite = torch.isfinite(drawn)
    assert finite[:, -10:].all()
    assert finite.sum() == 20
    with pytest.raises(ValueError, match="row_ends must be 1003 with columns_reversed, got 0"):
        draw("masked_prefix", ENDS, 1003, "cpu", columns_reversed=True)


def test_drawn_rows_are_chunked_without_a_trace(monkeypatch):
    whole = draw("masked_blocks", ENDS, 1003, "cpu")
    monkeypatch.setattr("topk_lab.bench.device_logits.CHUNK_ELEMENTS", 3 * 1003)
    parts = draw("masked_blocks", ENDS, 1003, "cpu")
    whole_blocks = ENDS % 8 == 0
    counts = [torch.isneginf(part).sum(dim=1).numpy()[whole_blocks] for part in (parts, whole)]
    assert counts[0].tolist() == counts[1].tolist() == [872, 872, 56, 0, 0]


def test_what_can_not_be_drawn_is_refused():
    with pytest.raises(ValueError, match=r"one of normal, .*, masked_blocks here, got 'constant'"):
        draw("constant", ENDS, 1003, "cpu")
    with pytest.raises(TypeError, match="of masked_prefix must be among finite here, got fraction"):
        draw("masked_prefix", ENDS, 1003, "cpu", fraction=0.5)
    with pytest.raises(TypeError, match="of normal must be among none here, got scale"):
        draw("normal", ENDS, 1003, "cpu", scale=2.0)
    with pytest.raises(TypeError, match="row_ends must be int32, got float64"):
        draw("normal", ENDS + 0.5, 1003, "cpu")
    with pytest.raises(ValueError, match=r"row_ends must be in \[0, 900\], got 1000"):
        draw("normal", ENDS, 900, "cpu")


@pytest.fixture
def recorded(tmp_path):
    def run_once(name, axes, device=None, **arguments):
        recorder = results.Recorder(tmp_path, run_on(), check=True)
        arguments = {"effort": SHORT, "say": lambda line: None} | arguments
        run(name, recorder, device=device or Calling(), axes=axes, **arguments)
        results.validate(tmp_path)
        return results.load(tmp_path)

    return run_once


SMALL = {"concurrency": [2], "speculative_tokens": [3], "context": [10_000], "logits": ["masked"]}


def test_a_case_is_checked_timed_and_recorded(recorded):
    axes = SMALL | {"compression_ratio": [2], "buffer": ["live"]}
    frame = recorded("vllm_matrix", axes)
    assert set(frame["status"]) == {"ok"}
    assert set(zip(frame["variant"], frame["cache"], strict=True)) == set(
        itertools.product(("vllm_generic", "vllm_k512"), results.CACHES)
    )
    cell = frame[(frame["variant"] == "vllm_k512") & (frame["cache"] == "warm")].iloc[0]
    assert (cell["num_rows"], cell["num_cols"], cell["next_n"]) == (6, 5000, 3)
    assert cell["workload_args"] == CASE
    assert cell["counters"]["input_bytes"] == 4 * 2 * (4999 + 4999 + 5000)
    assert cell["calls_per_graph"] == 20
    again = recorded("vllm_matrix", axes, resume=True)
    assert len(again) == len(frame)


def test_other_lengths_than_the_cell_s_are_found_out(recorded, monkeypatch):
    def ignoring_lengths(variant, k, row_ends, logits):
        whole = torch.full_like(row_ends, logits.shape[1])
        return candidates.operator(variant, k, whole, logits)

    monkeypatch.setattr(
        candidates,
        "stand_for",
        lambda variant, k, inputs: inputs.selection(
            lambda logits: ignoring_lengths(variant, k, inputs.row_ends, logits)
        ),
    )
    frame = recorded("vllm_matrix", SMALL | {"compression_ratio": [2], "buffer": ["live"]})
    assert set(frame["status"]) == {"wrong"}
    assert frame["reason"].str.contains("row 0: out_of_range|row 0: wrong_values").all()


def test_a_tensor_is_judged_where_it_is(monkeypatch):
    ends = np.array([600, 20], np.int32)
    logits = draw("normal", ends, 700, "cpu")
    inputs = candidates.Inputs(logits, Calling(), "warm", row_ends=ends)
    called = []
    monkeypatch.setattr(
        candidates,
        "first_fault",
        lambda *question: called.append(question),
    )
    timing = measure(
        {"twin": candidates.stand_for("vllm_generic", 512, inputs)}, Calling(), effort=SHORT
    )["twin"]
    assert timing.status == "ok"
    (question,) = called
    answer = question[1].numpy()
    assert not find_violations(logits.numpy(), answer, row_ends=ends)


def test_the_row_that_is_wrong_is_named():
    ends = np.array([600, 20, 700], np.int32)
    logits = draw("normal", ends, 700, "cpu")

    def last_row_left_out(logits):
        answer = torch.full((3, 512), -777, dtype=torch.int32)
        return lambda: answer[:2].copy_(right[:2]), answer

    inputs = candidates.Inputs(logits, Calling(), "warm", row_ends=ends)
    right = torch.from_numpy(exact.select(logits.numpy(), 512, 0 * ends, ends)[0])
    candidate = inputs.selection(last_row_left_out)
    timing = measure({"wrong": candidate}, Calling(), effort=SHORT)["wrong"]
    assert timing.status == "wrong"
    assert timing.reason.startswith("1 rows; row 2: unwritten: ")


# Graphs


def test_replayed_lengths_span_three_orders_of_magnitude():
    lengths = graphs.replay_lengths()
    assert len(lengths) == 200
    assert (min(lengths), max(lengths)) == (1000, schedules.K512_MAX_COLUMNS)
    steps = np.diff(np.log(np.unique(lengths)))
    assert steps.max() < 2 * steps.min()
    assert lengths != sorted(lengths)


class Counting(Calling):
    """Counts its captures."""

    captures = 0

    def capture(self, calls):
        self.captures += 1
        return super().capture(calls)


@pytest.fixture
def short_replays(monkeypatch):
    monkeypatch.setattr(graphs, "REPLAYS", 7)
    monkeypatch.setattr(graphs, "LONGEST", 18_000)
    monkeypatch.setattr(graphs, "ROWS", 2)


def test_a_clock_that_is_read_no_more_costs_no_times():
    first = Timing(
        "ok", None, (10.0, 12.0, 11.0), 1, {"clock_mhz": (1.0, 2.0), "power_w": (3.0, 4.0)}
    )
    last = Timing("ok", None, (20.0,), 1, {"clock_mhz": (5.0, 6.0)})
    timeline = graphs._timeline([1000, 2000], [first, last])
    assert timeline.samples_us == (11.0, 20.0)
    assert timeline.clocks == {"clock_mhz": (1.0, 6.0)}
    assert timeline.more == {"lengths": [1000, 2000]}


def test_one_graph_serves_every_length(recorded, short_replays):
    device = Counting()
    frame = recorded("graph_replay", {}, device)
    assert device.captures == len(graphs.REPLAY_VARIANTS) == len(frame)
    assert set(frame["status"]) == {"ok"}
    for cell in frame.to_dict("records"):
        assert cell["counters"]["lengths"] == graphs.replay_lengths()
        assert cell["n"] == 7
        assert cell["samples_us"] == [10.0] * 7


def test_a_replay_that_is_not_exact_is_named(recorded, short_replays, monkeypatch):
    def frozen(variant, k, inputs):
        ends = inputs.row_ends.clone()
        return inputs.selection(lambda logits: candidates.operator(variant, k, ends, logits))

    monkeypatch.setattr(graphs, "stand_for", frozen)
    frame = recorded("graph_replay", {"variant": ["vllm_k512"]})
    (cell,) = frame.to_dict("records")
    lengths = graphs.replay_lengths()
    first = next(i for i, length in enumerate(lengths) if length != graphs.LONGEST)
    assert cell["status"] == "wrong"
    assert cell["reason"].startswith(f"replay {first}, length {lengths[first]}: ")
    assert cell["samples_us"] is None


def test_calls_of_a_graph_are_an_axis(recorded):
    axes = {"num_cols": [10_000], "variant": ["torch.topk"], "calls_per_graph": [1, 50]}
    frame = recorded("graph_calls", axes)
    assert sorted(frame["calls_per_graph"]) == [1, 50]
    assert len(recorded("graph_calls", axes, resume=True)) == 2
    eager = [cell for cell in graphs.call_cells() if cell.mode == "eager"]
    assert {cell.num_cols for cell in eager} == set(graphs.CALL_COLUMNS)
    assert {cell.calls_per_graph for cell in eager} == {None}


def test_every_split_count_is_timed_beside_the_policies(recorded):
    cells = graphs.policy_cells()
    counts = {
        int(name.rpartition("_")[2].rstrip("]")) for name in cells[0].variants if "fixed" in name
    }
    assert counts == set(graphs.FIXED_SPLITS)
    assert max(counts) == schedules.MOST_FIXED_SPLITS
    assert all(1 <= cell.workload_args["length"] <= cell.num_cols for cell in cells)
    (cell,) = (
        cell
        for cell in cells
        if (cell.num_rows, cell.workload_args["length"], cell.workload) == (2, 4096, "normal")
    )
    small = replace(cell, num_cols=5000, variants=("vllm_k512[splits=fixed_3]", "vllm_k512"))
    made = graphs.policy_candidates(small, Calling())
    assert {timing.status for timing in measure(made, Calling(), effort=SHORT).values()} == {"ok"}
    assert graphs.read_bytes(small, "vllm_k512", None) == {"input_bytes": 4 * 2 * 4096}


def test_the_profiler_s_time_stands_beside_that_of_the_events(recorded, monkeypatch):
    class Profiling(Calling):
        def kernel_us(self, run, replays):
            before = self.now
            for _ in range(replays):
                run()
            return 0.75 * (self.now - before)

    monkeypatch.setattr(matrix, "PROFILED_CONCURRENCY", (1,))
    monkeypatch.setattr(matrix, "K512_MAX_COLUMNS", 6000)
    axes = {"concurrency": [1], "context": [10_000], "compression_ratio": [2], "logits": ["dense"]}
    frame = recorded("profiled_pairs", axes, Profiling())
    assert set(frame["status"]) == {"ok"}
    assert [counters["kernel_us"] for counters in frame["counters"]] == [7.5, 7.5]
    assert all(math.isclose(time, 10.0) for time in frame["median_us"])
