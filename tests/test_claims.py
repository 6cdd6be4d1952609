"""Does a claim get the verdict that its records deserve, and none without records?"""

from dataclasses import replace

import pandas as pd
import pytest

from topk_lab import cases, claims, environment, reproduce, results, verify
from topk_lab.bench import matrix

EXACT = claims.Claim(
    id="exact",
    source="s",
    statement="t",
    kind="exact",
    published=2,
    unit="cases",
    experiment="boundaries",
    cells=2,
    targets=("numba", "gfx950"),
    query={"variant": "vllm_k512"},
)
COUNT = claims.Claim(
    id="count",
    source="s",
    statement="t",
    kind="count",
    published={"a": 1, "b": 4},
    unit="splits",
    experiment="boundaries",
    cells=2,
    targets=("gfx950",),
    measure="counters.splits",
    by="workload_args.case",
)
RATIO = claims.Claim(
    id="ratio",
    source="s",
    statement="t",
    kind="time",
    published=2.0,
    unit="x",
    experiment="matrix",
    cells=2,
    measure="ratio",
    statistic="geomean",
    baseline="vllm_generic",
    candidate="vllm_k512",
    tolerance=0.1,
    hardware="MI355X",
    query={"cache": "warm"},
)


@pytest.fixture
def record(tmp_path):
    """Write cells, and read all that were written so far."""

    def write(*cells, device="NVIDIA H200", time="2026-01-01T00:00:00Z", run_id="0" * 32):
        gpu = {
            "name": device,
            "arch": "x",
            "compute_units": 1,
            "memory_bytes": 1,
            "runtime": "HIP 7.2",
            "driver": None,
        }
        place = {
            "os": "Debian",
            "machine": "x86_64",
            "cpu": "a CPU",
            "cpu_threads": 2,
            "python": "3.11.7",
            "packages": {},
            "device": gpu,
        }
        code = dict.fromkeys(("git", "dirty", "kernel_hash", "compiler")) | {"package": "1"}
        run = environment.RunInfo(run_id, time, place, code)
        recorder = results.Recorder(tmp_path / f"{run_id}.jsonl", run, check=False)
        for cell in cells:
            recorder.record(**cell)
        return results.load(tmp_path)

    return write


def cell(target="numba", case="a", status="ok", **more):
    return {
        "experiment": "boundaries",
        "target": target,
        "variant": "vllm_k512",
        "status": status,
        "reason": None if status == "ok" else "row 0: missing",
        "workload_args": {"case": case},
        **more,
    }


def timed(variant, us, num_rows=1, target="cuda", **more):
    return {
        "experiment": "matrix",
        "target": target,
        "variant": variant,
        "status": "ok",
        "num_rows": num_rows,
        "mode": "graph",
        "cache": "warm",
        "samples_us": [us],
        **more,
    }


def verdict(records, claim):
    (line,) = claims.evaluate(records, [claim]).to_dict("records")
    return line["verdict"], line["found"]


def test_no_verdict_without_a_record():
    frame = claims.evaluate(results.load([]))
    assert set(frame["outcome"]) == {"published only"}
    assert set(frame["found"]) == {""}
    assert set(frame["provenance"]) == {"no records"}
    assert claims.not_reproduced(frame) == []
    assert all(text.startswith("published only (") for text in frame["verdict"])


def test_exact_needs_every_cell_on_every_target(record):
    frame = record(*(cell(target, case) for target in ("numba", "gfx950") for case in "ab"))
    assert verdict(frame, EXACT) == ("reproduced", "2/2 on numba, 2/2 on gfx950")


@pytest.mark.parametrize(
    ("left_out", "why"),
    [
        ([("gfx950", "a"), ("gfx950", "b")], "recorded: 0 of 2 cells on gfx950"),
        ([("numba", "b")], "recorded: 1 of 2 cells on numba"),
    ],
)
def test_too_few_exact_cells_decide_nothing(record, left_out, why):
    everything = [(target, case) for target in ("numba", "gfx950") for case in "ab"]
    frame = record(*(cell(*place) for place in everything if place not in left_out))
    assert verdict(frame, EXACT)[0] == f"published only ({why})"


@pytest.mark.parametrize("status", ["wrong", "error"])
def test_one_cell_that_is_not_exact_contradicts(record, status):
    frame = record(cell("numba", "a"), cell("numba", "b", status))
    assert verdict(frame, EXACT) == ("not reproduced", "1/2 on numba")
    assert claims.not_reproduced(claims.evaluate(frame, [EXACT])) == ["exact"]


def test_a_target_that_was_not_asked_for_still_contradicts(record):
    exact = [cell(target, case) for target in ("numba", "gfx950") for case in "ab"]
    frame = record(*exact, cell("hip", "a", "wrong"))
    assert verdict(frame, EXACT)[0] == "not reproduced"


def test_a_skipped_cell_counts_for_nothing(record):
    frame = record(
        *(cell("numba", case) for case in "ab"),
        *(cell("gfx950", case, "skipped") for case in "ab"),
    )
    assert verdict(frame, EXACT) == (
        "published only (recorded: 0 of 2 cells on gfx950)",
        "2/2 on numba",
    )


def test_the_last_run_of_a_cell_decides(record):
    everything = [(target, case) for target in ("numba", "gfx950") for case in "ab"]
    record(*(cell(*place, "wrong") for place in everything))
    frame = record(
        *(cell(*place) for place in everything), time="2026-02-01T00:00:00Z", run_id="1" * 32
    )
    assert verdict(frame, EXACT)[0] == "reproduced"


def test_an_ablation_is_not_the_variant(record):
    exact = [cell(target, case) for target in ("numba", "gfx950") for case in "ab"]
    ablation = cell("numba", "a", "wrong", variant="vllm_k512[fits_rule=false]")
    assert verdict(record(*exact, ablation), EXACT)[0] == "reproduced"


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ((1, 4), ("reproduced", "1, 4 on gfx950")),
        (([1, 1], [4, 4, 4]), ("reproduced", "1, 4 on gfx950")),
        ((1, 3), ("not reproduced", "1, 3 on gfx950")),
        ((1, [4, 4, 3]), ("not reproduced", "1, 4, 4, 3 on gfx950")),
    ],
)
def test_counts_compare_case_by_case(record, splits, expected):
    frame = record(
        *(
            cell("gfx950", case, counters={"splits": count})
            for case, count in zip("ab", splits, strict=True)
        )
    )
    assert verdict(frame, COUNT) == expected


def test_a_count_that_was_not_taken_decides_nothing(record):
    frame = record(cell("gfx950", "a", counters={"splits": 1}), cell("gfx950", "b"))
    assert verdict(frame, COUNT)[0] == "published only (recorded: 1 of 2 cells on gfx950)"


def test_two_counts_of_one_case_must_agree(record):
    frame = record(
        cell("gfx950", "a", counters={"splits": 1}),
        cell("gfx950", "b", counters={"splits": 4}, seed=0),
        cell("gfx950", "b", counters={"splits": 2}, seed=1),
    )
    assert verdict(frame, COUNT) == ("not reproduced", "1, 2 on gfx950")


@pytest.mark.parametrize(("most", "expected"), [(1024, "reproduced"), (1025, "not reproduced")])
def test_a_bound_holds_for_the_greatest_count(record, most, expected):
    bound = claims.Claim(
        **{**COUNT.__dict__, "published": 1024, "by": "", "compare": "at most", "statistic": "max"}
    )
    frame = record(
        cell("gfx950", "a", counters={"splits": 3}), cell("gfx950", "b", counters={"splits": most})
    )
    assert verdict(frame, bound)[0] == expected


def pairs(factor, target="cuda"):
    """Two shapes, each `factor` times faster in the geometric mean."""
    return [
        timed("vllm_generic", 10.0 * factor, 1, target),
        timed("vllm_k512", 5.0, 1, target),
        timed("vllm_generic", 10.0 * factor, 2, target),
        timed("vllm_k512", 20.0, 2, target),
    ]


@pytest.mark.parametrize(
    ("device", "factor", "expected"),
    [
        ("AMD Instinct MI355X", 2.1, "reproduced"),
        ("AMD Instinct MI355X", 1.2, "not reproduced"),
        ("NVIDIA H200", 2.0, "same direction on NVIDIA H200"),
        ("NVIDIA H200", 1.2, "same direction on NVIDIA H200"),
        ("NVIDIA H200", 1.0, "other direction on NVIDIA H200"),
        ("NVIDIA H200", 0.9, "other direction on NVIDIA H200"),
    ],
)
def test_a_time_is_reproduced_on_its_own_device_alone(record, device, factor, expected):
    target = "hip" if "MI355X" in device else "cuda"
    found = f"{factor:.5g}x on {device}"
    assert verdict(record(*pairs(factor, target), device=device), RATIO) == (expected, found)


def test_too_few_pairs_decide_nothing(record):
    frame = record(*pairs(2.0)[:3])
    assert verdict(frame, RATIO)[0] == "published only (recorded: 1 of 2 cells on NVIDIA H200)"


def test_the_own_device_outweighs_others(record):
    record(*pairs(2.0), run_id="1" * 32)
    frame = record(*pairs(1.0, "hip"), device="AMD Instinct MI355X")
    assert verdict(frame, RATIO)[0] == "not reproduced"


def test_times_of_a_cpu_and_of_results_that_are_not_exact_count_for_nothing(record):
    on_cpu = pairs(2.0, "numba")
    wrong = [timed("vllm_k512", 1.0, samples_us=None, status="wrong", reason="row 0: missing")]
    frame = record(*on_cpu, *wrong)
    assert verdict(frame, RATIO) == (
        "published only (no record of experiment matrix on MI355X)",
        "",
    )


def test_times_of_a_cpu_decide_a_claim_about_it(record):
    claim = replace(RATIO, targets=("numba", "torch"), hardware="")
    first, *others = pairs(2.0, "numba")
    frame = record(first | {"target": "torch"}, *others)
    assert verdict(frame, claim)[0].startswith("reproduced")
    assert verdict(frame, RATIO)[0].startswith("published only (no record")


def test_warm_and_cold_are_not_mixed(record):
    cold = [line | {"cache": "cold"} for line in pairs(5.0)]
    assert verdict(record(*cold), RATIO)[0].startswith("published only (no record")


def profiled(events_us, kernel_us, num_rows, target="cuda"):
    """A pair whose baseline's times are these, and whose candidate takes 10 us by either."""
    return [
        timed("vllm_generic", events_us, num_rows, target, counters={"kernel_us": kernel_us}),
        timed("vllm_k512", 10.0, num_rows, target, counters={"kernel_us": 10.0}),
    ]


AGREEMENT = claims.Claim(
    **{**RATIO.__dict__, "published": 1, "measure": "agreement", "tolerance": 0.02}
)


@pytest.mark.parametrize(
    ("statistic", "first", "second", "expected", "found"),
    [
        ("geomean", (20.2, 20.0), (30.0, 30.0), "reproduced", "1.005x"),
        ("geomean", (21.0, 20.0), (31.5, 30.0), "not reproduced", "1.05x"),
        ("geomean", (21.0, 20.0), (30.0, 31.5), "reproduced", "1x"),
        ("spread", (21.0, 20.0), (30.0, 31.5), "not reproduced", "1.1025x"),
    ],
)
def test_two_ways_to_time_agree_on_a_ratio(record, statistic, first, second, expected, found):
    claim = claims.Claim(**{**AGREEMENT.__dict__, "statistic": statistic, "hardware": "H200"})
    frame = record(*profiled(*first, 1), *profiled(*second, 2))
    assert verdict(frame, claim) == (expected, f"{found} on NVIDIA H200")


def test_agreement_needs_both_times_and_has_a_direction_anywhere(record):
    frame = record(*profiled(20.0, 20.0, 1), *pairs(2.0)[2:])
    assert verdict(frame, AGREEMENT)[0].startswith("published only (recorded: 1 of 2 cells")
    frame = record(
        *profiled(20.0, 20.0, 1),
        *profiled(30.0, 30.0, 2),
        time="2026-02-01T00:00:00Z",
        run_id="1" * 32,
    )
    assert verdict(frame, AGREEMENT)[0] == "same direction on NVIDIA H200"


def test_buffers_are_not_mixed(record):
    live = [line | {"workload_args": {"buffer": "live"}} for line in pairs(2.0)]
    full = [line | {"workload_args": {"buffer": "full"}} for line in pairs(4.0)]
    frame = record(*live, *full)
    for buffer, found in (("live", "2x"), ("full", "4x")):
        query = {"cache": "warm", "workload_args.buffer": buffer}
        claim = claims.Claim(**{**RATIO.__dict__, "query": query})
        assert verdict(frame, claim)[1] == f"{found} on NVIDIA H200"


TIME = claims.Claim(
    id="time",
    source="s",
    statement="t",
    kind="time",
    published={"8": 36.8, "256": 36.8},
    unit="us",
    experiment="matrix",
    cells=2,
    measure="median_us",
    by="num_rows",
    tolerance=0.1,
    hardware="MI355X",
)


@pytest.mark.parametrize(
    ("device", "us", "expected"),
    [
        ("AMD Instinct MI355X", 38.0, "reproduced"),
        ("AMD Instinct MI355X", 45.0, "not reproduced"),
        ("NVIDIA H200", 36.8, "published only (a time of MI355X, none recorded there)"),
    ],
)
def test_an_absolute_time_has_no_direction_elsewhere(record, device, us, expected):
    # A cell without num_rows makes the column one of floats: 8.0 must still be the row "8".
    other = timed("vllm_k512", 1.0, num_rows=None) | {"experiment": "other"}
    frame = record(timed("vllm_k512", 36.8, 8), timed("vllm_k512", us, 256), other, device=device)
    assert verdict(frame, TIME)[0] == expected


@pytest.mark.parametrize(
    ("slowest", "expected"),
    [(39.0, "same direction on NVIDIA H200"), (60.0, "other direction on NVIDIA H200")],
)
def test_flatness_is_a_direction(record, slowest, expected):
    flat = claims.Claim(
        **{**TIME.__dict__, "published": 1, "by": "", "statistic": "spread", "compare": "at most"}
    )
    frame = record(timed("vllm_k512", 36.8, 8), timed("vllm_k512", slowest, 256))
    assert verdict(frame, flat)[0] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kind = "time"\npublished = 1\nspeed = 2', "claim x: no field is named speed"),
        ('kind = "fast"\npublished = 1', "kind must be one of exact, count, time"),
        ('kind = "exact"', "claim x: .*missing 1 required positional argument: 'published'"),
        ('kind = "exact"\npublished = 1', "must have an experiment, or a why"),
        ('kind = "exact"\npublished = 1\nexperiment = "e"', "must have targets"),
        (
            'kind = "time"\npublished = 1\nexperiment = "e"\nmeasure = "ratio"\nhardware = "h"',
            "baseline and candidate must be given",
        ),
        (
            'kind = "time"\npublished = 1\nexperiment = "e"\nmeasure = "median_us"',
            "must name its hardware",
        ),
        (
            'kind = "count"\npublished = {a = 1}\nexperiment = "e"\nmeasure = "counters.n"\n'
            'targets = ["numba"]',
            "by must be given exactly when published is a table",
        ),
    ],
)
def test_a_claim_that_says_too_little_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "claims.toml"
    path.write_text(f'[[claim]]\nid = "x"\nsource = "s"\nstatement = "t"\n{text}\n')
    with pytest.raises(ValueError, match=message):
        claims.load_claims(path)


def test_an_id_is_given_once(tmp_path):
    entry = '[[claim]]\nid = "x"\nsource = "s"\nstatement = "t"\nkind = "time"\npublished = 1\n'
    path = tmp_path / "claims.toml"
    path.write_text(2 * (entry + 'why = "w"\n'))
    with pytest.raises(ValueError, match="claim x: the id is taken"):
        claims.load_claims(path)


def test_the_package_states_the_claims_of_both_sources_and_its_own():
    stated = claims.load_claims()
    assert {claim.source for claim in stated} == {
        "vLLM #56743",
        "derived from vLLM #56743",
        "vLLM #56506",
        "SGLang #36004",
        "derived from SGLang #36004",
        "topk_lab",
    }
    published = {claim.id: claim.published for claim in stated}
    assert published["vllm-56743.neg-inf-legacy-pads"] == 212
    assert published["vllm-56743.warm-geomean"] == 2.310
    assert published["vllm-56743.pressure-geomean"] == 1.824
    assert published["sglang-36004.speedup-128k"] == 1.60
    assert published["sglang-36004.recall-uniform"] == 0.348
    assert len(published) == len(stated) == 107


@pytest.mark.parametrize(
    "claim",
    [
        claim
        for claim in claims.load_claims()
        if claim.experiment in verify.EXPERIMENTS and set(claim.targets) & set(reproduce.TARGETS)
    ],
    ids=lambda claim: claim.id,
)
@pytest.mark.parametrize("target", ["numba", "gfx950"])
def test_claims_ask_for_every_check_that_the_programme_runs(claim, target):
    if target not in claim.targets:
        target = claim.targets[0]
    planned = [
        {
            name: getattr(check, name)
            for name in ("variant", "workload", "workload_args", "num_cols")
        }
        for experiment, variant, seed in reproduce.PROGRAMME
        if experiment == claim.experiment and seed is None
        for check in verify.checks(experiment, variant, target)
    ]
    asked = [cell for cell in planned if claims._matches(cell, claim.query)]
    assert claim.cells == len(asked)
    if claim.by:
        found = dict.fromkeys(claims._key(claims._field(cell, claim.by)) for cell in asked)
        assert list(claim.published) == list(found)


@pytest.mark.parametrize(
    ("experiment", "cells"),
    [("vllm_matrix", matrix.matrix_cells), ("profiled_pairs", matrix.profiled_cells)],
)
def test_claims_ask_for_cells_that_the_experiment_times(experiment, cells):
    timed = [cell.fields() | {"variant": variant} for cell in cells() for variant in cell.variants]
    for claim in claims.load_claims():
        if claim.experiment == experiment:
            asked = [cell for cell in timed if claims._matches(cell, claim.query)]
            of_two = claim.kind == "time" and claim.measure != "median_us"
            assert len(asked) == claim.cells * (2 if of_two else 1), claim.id


def test_the_listed_cases_are_what_the_claims_ask_for(record):
    lists = {
        "boundaries": cases.boundaries(),
        "masked_replay": cases.masked_replay(),
        "one_d_lengths": cases.one_d_lengths(),
    }
    frame = record(
        *(
            {
                "experiment": experiment,
                "target": target,
                "variant": case.variant,
                "status": "ok",
                "num_rows": case.num_rows,
                "workload_args": {"case": case.id},
                "counters": {"splits": list(case.splits), "plans": 1},
            }
            for experiment, listed in lists.items()
            for case in listed
            for target in ("numba", "gfx950", "gfx942")
        )
    )
    judged = claims.evaluate(frame)
    decided = judged[judged["outcome"] != "published only"]
    assert list(decided["id"]) == [
        "vllm-56743.boundaries",
        "vllm-56743.split-policy",
        "vllm-56743.fallback-splits",
        "vllm-56743.masked-replay",
        "vllm-56743.one-d-lengths",
        "topk-lab.one-plan",
    ]
    assert set(decided["verdict"]) == {"reproduced"}
    assert decided["found"].tolist()[1] == ("1, 4, 1, 3, 3, 1, 2, 2, 1, 1 on numba, gfx950, gfx942")
    assert decided["cells"].tolist() == [33, 30, 3, 57, 3, 57]


def test_legacy_pads_are_a_count_of_what_is_wrong(record):
    (claim,) = (
        claim for claim in claims.load_claims() if claim.id == "vllm-56743.neg-inf-legacy-pads"
    )

    def run(slots, status):
        return [
            cell(target, status=status, counters={"wrong_slots": slots})
            | {"experiment": "neg_inf_rule"}
            | {"variant": "vllm_k512[fits_rule=false,final_pad=neg_flt_max]"}
            for target in claim.targets
        ]

    assert verdict(record(*run(212, "wrong")), claim)[0] == "reproduced"
    frame = record(*run(0, "ok"), time="2026-02-01T00:00:00Z", run_id="1" * 32)
    assert verdict(frame, claim)[0] == "not reproduced"


def test_the_frame_carries_what_decided(record):
    frame = record(*(cell(target, case) for target in ("numba", "gfx950") for case in "ab"))
    judged = claims.evaluate(frame, [EXACT, COUNT])
    assert isinstance(judged, pd.DataFrame)
    assert list(judged["cells"]) == [4, 0]
    assert judged["provenance"][0] == "measured on a CPU; emulated on gfx950; 2026-01-01"
    assert list(judged["published"]) == ["2 cases", "1, 4 splits"]
