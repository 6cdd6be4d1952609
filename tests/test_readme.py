"""Does README say what the committed records say?"""

from pathlib import Path

import pytest

from topk_lab import claims, report, results

README = Path(__file__).parent.parent / "README.md"


def test_generated_blocks_are_those_of_the_records():
    records = results.load_committed()
    blocks = report.readme_blocks(claims.evaluate(records), records)
    assert report.check_markers(README.read_text(encoding="utf-8"), blocks) == []


def test_committed_records_are_valid_and_decide_claims():
    assert results.validate(results.data_root() / "measured") > 0
    assert results.validate(results.data_root() / "emulated") > 0
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
