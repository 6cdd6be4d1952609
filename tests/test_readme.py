"""Does README say what the committed records say?"""

from pathlib import Path

import pytest

from tests.test_bench import run_on
from topk_lab import claims, environment, readme, results

README = Path(__file__).parent.parent / "README.md"
MARKED = """# topk_lab
before
<!-- topk-lab:claims -->
old
<!-- /topk-lab:claims -->
after
<!-- topk-lab:other -->
kept
<!-- /topk-lab:other -->
"""


def test_generated_blocks_are_those_of_the_records():
    records = results.load_committed()
    blocks = readme.blocks(claims.evaluate(records), records)
    assert readme.check_markers(README.read_text(encoding="utf-8"), blocks) == []


def test_committed_records_decide_claims():
    verdicts = claims.evaluate(results.load_committed())
    assert claims.not_reproduced(verdicts) == []
    assert (verdicts["outcome"] == "reproduced").sum() >= 13


@pytest.mark.parametrize(
    "name", ["notebooks/radix_steps.png", "kernels/README.md", "data/README.md"]
)
def test_what_it_links_to_is_there(name):
    assert name in README.read_text(encoding="utf-8")
    assert (README.parent / name).is_file()


def test_its_ten_lines_run():
    text = README.read_text(encoding="utf-8")
    lines = text.split("```python\n")[1].split("```")[0]
    assert len([line for line in lines.splitlines() if line and not line.startswith("#")]) <= 10
    exec(compile(lines.replace("262_144", "20_000"), "README", "exec"), {})


def test_markers_are_filled_and_a_stale_readme_is_found(recorded):
    records, _ = recorded
    generated = readme.blocks(claims.evaluate(records), records)
    blocks = {"claims": generated["claims"]}
    assert readme.check_markers(MARKED, blocks) == ["claims"]
    text = readme.update_markers(MARKED, blocks)
    assert readme.check_markers(text, blocks) == []
    assert readme.update_markers(text, blocks) == text
    assert text.startswith("# topk_lab\nbefore\n<!-- topk-lab:claims -->\n107 claims: 2 reproduced")
    assert text.endswith("after\n<!-- topk-lab:other -->\nkept\n<!-- /topk-lab:other -->\n")
    assert "\nold\n" not in text
    edited = text.replace("212 of 512 slots", "211 of 512 slots")
    assert readme.check_markers(edited, blocks) == ["claims"]


def test_readme_table_has_a_line_for_every_claim(recorded):
    records, _ = recorded
    judged = claims.evaluate(records)
    lines = readme.blocks(judged, records)["claims"].splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == len(judged) + 2 * 2
    assert {line.count(" | ") for line in table if not line.startswith("|--")} == {4}
    folded = lines.index("<details><summary>Published only: 105 more claims</summary>")
    assert all("published only" in line for line in lines[folded:] if line.startswith("| vLLM"))
    assert lines[folded - 2].startswith("Records: measured on ")


def test_blocks_without_a_record_say_so(recorded):
    records, _ = recorded
    blocks = readme.blocks(claims.evaluate(records), records)
    assert set(blocks) == {
        *("claims", "baselines", "matrix", "contention", "latency", "shapes", "cpu", "overhead"),
    }
    blocks.pop("claims")
    assert set(blocks.values()) == {"No record yet.\n"}


def test_the_matrix_stands_beside_what_is_published(tmp_path):
    run = environment.RunInfo.capture(kernel_hash="c0ffee" * 4, compiler="clang 22.1")
    recorder = results.Recorder(tmp_path / "matrix.jsonl", run, check=False)
    times = {("live", "warm"): (30, 40), ("live", "cold"): (20, 10), ("full", "warm"): (30, 10)}
    for (buffer, cache), both in times.items():
        for variant, time_us in zip(readme.MATRIX_PAIR, both, strict=True):
            for context in (10_000, 50_000):
                recorder.record(
                    experiment="vllm_matrix",
                    target="numba",
                    variant=variant,
                    status="ok",
                    workload_args={"buffer": buffer, "context": context},
                    mode="graph",
                    cache=cache,
                    samples_us=[float(time_us)] * 3,
                )
    records = results.load(tmp_path)
    lines = readme.blocks(claims.evaluate(records), records)["matrix"].splitlines()
    assert [line.strip("| ").split(" | ") for line in lines[2:8]] == [
        ["warm", readme.PUBLISHED_BUFFER, "2.310x", "2.191x", "1.008x", "12.344x", "0 of 1008"],
        ["warm", "full", "3.000x [3.000, 3.000]", *["3.000x"] * 3, "0 of 2", "0"],
        ["warm", "live", "0.750x [0.750, 0.750]", *["0.750x"] * 3, "2 of 2", "2"],
        [
            *("pressure_256MiB", readme.PUBLISHED_BUFFER),
            *("1.824x", "1.730x", "1.023x", "6.246x", "0 of 1008"),
        ],
        ["cold", "live", "2.000x [2.000, 2.000]", *["2.000x"] * 3, "0 of 2", "0"],
        [""],
    ]
    assert lines[-1].startswith("Records: measured on ")


def test_shapes_stand_between_the_floor_and_the_best_peer(tmp_path):
    recorder = results.Recorder(tmp_path, run_on(), check=False)
    published = results.load_published("peers_h200").set_index(["rows", "cols"]).sort_index()
    kernels = published.loc[(1, 131_072)].set_index("kernel")
    times = {
        "read_amax": 4.0,
        "torch.topk": 2 * kernels.at["torch.topk", "warm_us"],
        "delegate": 5.0,
    }
    for variant, time_us in times.items():
        for cache in ("warm", "cold"):
            recorder.record(
                experiment="delegate_shapes",
                target="cuda",
                variant=variant,
                status="ok",
                mode="graph",
                cache=cache,
                samples_us=[time_us] * 3,
                **{"num_rows": 1, "num_cols": 131_072, "k": 512, "workload": "normal"},
            )
    records = results.load(tmp_path)
    lines = readme.blocks(claims.evaluate(records), records)["shapes"].splitlines()
    peer_us = 2 * kernels.at["sglang_topk_v2", "warm_us"]
    # Nobody published times with cold caches.
    assert [line.strip("| ").split(" | ") for line in lines[2:4]] == [
        [
            *("1 x 131072", "normal", "warm", "4.0", "5.0", f"{peer_us:.1f}"),
            *("sglang_topk_v2, published", f"{peer_us / 5:.2f}x"),
        ],
        [""],
    ]
    mean = f"{peer_us / 5:.3f}x [{peer_us / 5:.3f}, {peer_us / 5:.3f}]"
    assert f"- warm: {mean} over 1 shapes, slower on 0" in lines
    assert lines[-1].startswith("Records: measured on NVIDIA H200")


def test_committed_records_fill_every_block():
    records = results.load_committed()
    blocks = readme.blocks(claims.evaluate(records), records)
    crowds = blocks["contention"].split("\n\n")[0].splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in crowds] == list(readme.CROWDS)
    for line in crowds:
        _, without, counted, ours, mirror, *ratios = line.strip("| ").split(" | ")
        assert int(without.replace(",", "")) >= int(counted.replace(",", ""))
        assert int(counted.replace(",", "")) >= int(ours.replace(",", ""))
        assert mirror.endswith(" us")
        assert all(0.3 < float(ratio) < 3 for ratio in ratios)
        assert len(ratios) == 3
    mirrors = [line for line in blocks["baselines"].splitlines() if line.startswith("| vllm_")]
    assert len(mirrors) == 4
    assert all(line.endswith(" of 18 |") for line in mirrors)
    layers = [line.split(" | ")[0] for line in blocks["overhead"].splitlines()[2:-2]]
    assert layers[:2] == ["| raw driver", "| prepared plan"]
    assert "measured on NVIDIA H200" in blocks["baselines"]
    lengths = [line.split(" | ") for line in blocks["latency"].splitlines()[2:-2]]
    assert [line[0] for line in lengths] == ["| 2048", "| 8192", "| 16384", "| 32768"]
    assert [line[1] for line in lengths] == ["1.07x", "1.30x", "1.43x", "1.60x"]
    assert lengths[-1][4].endswith(": latency-bound")
    settings = [line.strip("| ").split(" | ") for line in blocks["cpu"].splitlines()[2:5]]
    assert [line[:3] for line in settings] == [
        ["512", "1", "17"],
        ["512", "2", "20"],
        ["2048", "2", "20"],
    ]
    assert all(float(line[4].removesuffix("x")) >= 1 for line in settings)


@pytest.mark.parametrize(
    "text",
    [
        "no markers",
        "<!-- topk-lab:claims -->\nopen",
        MARKED + MARKED,
        MARKED.replace("<!-- /topk-lab:claims -->", "<!-- /topk-lab:other -->"),
    ],
)
def test_missing_or_doubled_markers_are_refused(text):
    with pytest.raises(ValueError, match="must hold one pair of markers"):
        readme.check_markers(text, {"claims": "x\n"})
    with pytest.raises(ValueError, match="must hold one pair of markers"):
        readme.update_markers(text, {"claims": "x\n"})
