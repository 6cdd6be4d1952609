"""Is every published figure here with its origin, and do the tables agree with one another?"""

import csv
import itertools
import json
import math
import tomllib

import pytest

from topk_lab import cases, claims, results, schedules

PUBLISHED = results.data_root() / "published"
TABLES = sorted(path.stem for path in PUBLISHED.glob("*.csv"))


def rows(name):
    with (PUBLISHED / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def claim(name):
    return next(claim for claim in claims.load_claims() if claim.id == name)


def test_every_table_has_its_origin_and_no_origin_lacks_its_table():
    assert sorted(path.stem for path in PUBLISHED.glob("*.toml")) == TABLES
    assert {path.suffix for path in PUBLISHED.iterdir()} == {".csv", ".toml"}


@pytest.mark.parametrize("name", TABLES)
def test_origin_describes_every_column(name):
    about = tomllib.loads((PUBLISHED / f"{name}.toml").read_text())
    assert {"title", "origin", "hardware", "date", "kind", "columns"} <= set(about)
    assert about["kind"] in ("published", "derived")
    assert (about["kind"] == "derived") == (name in ("neg_inf_atomics", "stash_overflow_recall"))
    table = rows(name)
    assert list(about["columns"]) == list(table[0])
    # A cell too many or too few in a line shows as a None key or value.
    assert all(None not in row and None not in row.values() for row in table)


def test_matrix_has_as_many_cases_as_the_source_counts():
    matrix = rows("vllm_56743_matrix")
    assert [len(row["values"].split()) for row in matrix] == [int(row["count"]) for row in matrix]
    cases_counted = math.prod(int(row["count"]) for row in matrix)
    summary = rows("vllm_56743_summary")
    warm = [row for row in summary if row["condition"] == "warm"]
    exact = [claim for claim in claims.load_claims() if "matrix-exact" in claim.id]
    assert [claim.cells for claim in exact] == [cases_counted] * 4 == [1008] * 4
    places = {(claim.query["cache"], claim.query["workload_args.buffer"]) for claim in exact}
    assert places == set(itertools.product(("warm", "pressure_256MiB"), ("live", "full")))
    assert {int(row["cases"]) for row in warm} == {1008}


@pytest.mark.parametrize(
    ("table_condition", "statistic", "claim_id"),
    [
        ("warm", "geomean", "vllm-56743.warm-geomean"),
        ("warm", "median", "vllm-56743.warm-median"),
        ("warm", "max", "vllm-56743.warm-greatest"),
        ("pressure_256MiB", "geomean", "vllm-56743.pressure-geomean"),
        ("pressure_256MiB", "median", "vllm-56743.pressure-median"),
        ("pressure_256MiB", "max", "vllm-56743.pressure-greatest"),
        ("gpu_trace", "geomean", "vllm-56743.profiled-pairs"),
    ],
)
def test_claims_carry_the_published_speed_ups(table_condition, statistic, claim_id):
    (figure,) = (
        row["value"]
        for row in rows("vllm_56743_summary")
        if (row["condition"], row["statistic"]) == (table_condition, statistic)
    )
    assert claim(claim_id).published == float(figure)
    if table_condition != "gpu_trace":
        assert claim(f"{claim_id}-full").published == float(figure)


def test_every_claim_about_the_matrix_is_of_one_buffer_and_stated_for_both():
    matrix = {
        claim.id: claim for claim in claims.load_claims() if claim.experiment == "vllm_matrix"
    }
    for name, stated in matrix.items():
        buffer = "full" if "-full" in name else "live"
        assert stated.query["workload_args.buffer"] == buffer, name
        if "matrix-exact" in name:
            continue
        other = matrix[name.removesuffix("-full") if buffer == "full" else f"{name}-full"]
        assert other.published == stated.published
        assert other.statement != stated.statement


def test_representative_rows_agree_with_their_speed_ups_and_claims():
    table = rows("vllm_56743_rows")
    assert [row["context"] for row in table] == ["10000", "50000", "100000"]
    for row in table:
        before, after, ratio = (
            float(row[name]) for name in ("baseline_us", "candidate_us", "speedup")
        )
        assert before / after == pytest.approx(ratio, abs=1.5e-3)
        for buffer in ("", "-full"):
            times = claim(f"vllm-56743.row-{row['context']}{buffer}")
            assert times.published == {"vllm_generic": before, "vllm_k512": after}
            speedup = claim(f"vllm-56743.row-{row['context']}-speedup{buffer}")
            assert speedup.published == ratio
            rows_of_call = int(row["concurrency"]) * int(row["speculative_tokens"])
            assert times.query["num_rows"] == rows_of_call
            asked = {name: str(value) for name, value in times.query.items()}
            for axis in ("context", "compression_ratio", "concurrency", "logits"):
                assert asked[f"workload_args.{axis}"] == row[axis]


@pytest.mark.parametrize("side", ["host", "device"])
def test_split_table_is_the_schedule_on_both_sides_of_every_bound(side):
    table = [row for row in rows("vllm_56743_split_policy") if row["side"] == side]
    checked = 0
    for row in table:
        for num_rows in (int(row["min_rows"]), int(row["max_rows"])):
            for length in (int(row["min_length"]), int(row["max_length"])):
                if side == "host":
                    found = schedules.max_splits("vllm_k512", num_rows, length)
                else:
                    found = schedules.active_splits("vllm_k512", num_rows, length, 16)
                assert found == int(row["splits"]), row
                checked += 1
    assert checked == 4 * len(table)


@pytest.mark.parametrize("side", ["host", "device"])
def test_split_table_leaves_no_gap(side):
    table = [row for row in rows("vllm_56743_split_policy") if row["side"] == side]
    by_rows = {}
    for row in table:
        by_rows.setdefault((int(row["min_rows"]), int(row["max_rows"])), []).append(row)
    bands = sorted(by_rows)
    assert bands[0][0] == 1
    assert bands[-1][1] == 384
    assert all(below[1] + 1 == above[0] for below, above in itertools.pairwise(bands))
    for band in bands:
        spans = sorted((int(row["min_length"]), int(row["max_length"])) for row in by_rows[band])
        assert spans[0][0] == 0
        assert spans[-1][1] == 1024 * 1024
        assert all(low[1] + 1 == high[0] for low, high in itertools.pairwise(spans))


def test_boundary_table_is_the_list_that_is_run_and_the_claim():
    table = rows("vllm_56743_boundaries")
    assert [
        (row["case"], int(row["num_rows"]), row["variant"], int(row["active_splits"]))
        for row in table
    ] == [(case.id, case.num_rows, case.variant, case.splits[0]) for case in cases.boundaries()]
    for row in table:
        host = schedules.max_splits(row["variant"], int(row["num_rows"]), int(row["num_cols"]))
        assert int(row["host_splits"]) == host
    *gated, fallback = table
    assert claim("vllm-56743.split-policy").published == {
        row["case"]: int(row["active_splits"]) for row in gated
    }
    assert claim("vllm-56743.fallback-splits").published == int(fallback["active_splits"])
    assert claim("vllm-56743.boundaries").cells == len(table)


def test_replay_table_is_the_list_that_is_run():
    table = rows("vllm_56743_masked_replay")
    assert claim("vllm-56743.masked-replay").cells == len(table) == len(cases.masked_replay())
    bounds = [row for row in table if row["part"] == "bound"]
    listed = [case for case in cases.masked_replay() if case.id.startswith("length-")]
    assert [(f"length-{row['row_end']}", int(row["active_splits"])) for row in bounds] == [
        (case.id, case.splits[0]) for case in listed
    ]


def test_serving_figures_give_the_stated_ratios():
    table = rows("vllm_56506_serving")
    stated = claim("vllm-56506.fixed-cost").published
    first, last = table[0], table[-1]
    latency = float(last["itl_p50_s"]) / float(first["itl_p50_s"])
    output = float(last["output_tokens_per_s"]) / float(first["output_tokens_per_s"])
    assert round(latency, 1) == stated["latency"]
    assert round(output) == stated["output"]


def test_gsm8k_percentages_follow_from_the_counts():
    for row in rows("gsm8k"):
        if row["percent"]:
            share = 100 * int(row["correct"]) / int(row["questions"])
            assert share == pytest.approx(float(row["percent"]), abs=5e-3)
    by_source = {}
    for row in rows("gsm8k"):
        by_source.setdefault(row["source"], {})[row["arm"]] = int(row["correct"])
    assert claim("vllm-56743.gsm8k").published == by_source["vLLM #56743"]
    assert claim("sglang-36004.gsm8k").published == by_source["SGLang #36004"]


def test_sglang_figures_agree_with_one_another_and_with_the_claims():
    for row in rows("sglang_36004_kernel"):
        assert int(row["c4_len"]) == int(row["context"]) // 4
        name = f"sglang-36004.speedup-{int(row['context']) // 1024}k"
        assert claim(name).published == float(row["speedup"])
        assert claim(name).query["num_cols"] == int(row["c4_len"])
    figures = {}
    for row in rows("sglang_36004_figures"):
        figures.setdefault(row["quantity"], []).append(float(row["value"]))
    saved, step = figures["saved_per_decode_step"][0], figures["decode_step"][0]
    assert 100 * saved / step == pytest.approx(figures["saved_share"][0], abs=0.05)
    assert claim("sglang-36004.step-share").published == figures["saved_share"][0]
    assert figures["kernel_time"] == list(claim("sglang-36004.flat-time").published.values())
    assert figures["throughput_gain"] == list(claim("sglang-36004.throughput").published.values())
    assert claim("sglang-36004.identical-sets").published == figures["identical_index_sets"][0]
    assert list(claim("sglang-36004.waves").published.values()) == figures["waves_per_block"]


def test_neg_inf_atomics_follow_from_the_split_policy():
    table = rows("neg_inf_atomics")
    for row in table:
        length, splits = int(row["row_end"]), int(row["splits"])
        assert splits == schedules.active_splits("vllm_k512", 24, length, 16)
        assert int(row["split_columns"]) == length // splits
        assert int(row["atomics_before"]) == math.ceil(length // splits * 7 / 8)
        threads = schedules.POLICIES["vllm_k512"].block_size
        assert int(row["atomics_after_at_most"]) == threads
    assert claim("vllm-56743.neg-inf-atomics-before").published == {
        row["row_end"]: int(row["atomics_before"]) for row in table
    }


def test_no_peer_is_faster_than_reading_each_row_once():
    table = rows("peers_h200")
    shapes = {(row["rows"], row["cols"], row["distribution"]) for row in table}
    assert len(shapes) == 18
    assert len(table) == 194
    for shape in shapes:
        mine = {
            row["kernel"]: row
            for row in table
            if (row["rows"], row["cols"], row["distribution"]) == shape
        }
        floors = {name: mine.pop(name) for name in ("read_once_floor", "one_empty_kernel")}
        mine.pop("two_empty_kernels")
        assert {"torch.topk", "vllm_generic", "vllm_k512", "sglang_topk_v2"} <= set(mine)
        for time in ("warm_us", "cold_us"):
            limit = float(floors["read_once_floor"][time])
            assert limit > float(floors["one_empty_kernel"][time])
            assert min(float(row[time]) for row in mine.values()) > limit


def test_schema_names_exactly_the_fields_that_records_have():
    schema = json.loads((results.data_root() / "schema" / "record-1.json").read_text())
    cell = schema["$defs"]["cell_line"]
    assert tuple(cell["required"]) == tuple(cell["properties"]) == results.CELL_FIELDS
    private = {"host", "hostname", "user", "path", "serial", "uuid"}
    named = set(cell["properties"])
    run = schema["$defs"]["run_line"]["properties"]
    for part in (run, run["environment"]["properties"], run["code"]["properties"]):
        named |= set(part)
    assert not named & private


def test_committed_records_are_valid():
    for kind in ("measured", "emulated"):
        for folder in (results.data_root() / kind).iterdir():
            assert results.validate(folder) > 0, folder


def test_readme_names_every_table():
    text = (results.data_root() / "README.md").read_text()
    for name in TABLES:
        last = name.removeprefix("vllm_56743").removeprefix("sglang_36004")
        assert f"`{name}`" in text or f"`{last}`" in text, name
