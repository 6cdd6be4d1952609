"""Is the report whole, readable offline and the same each time?"""

import re

import nbformat
import numpy as np
import pytest

from topk_lab import claims, figures, report, results
from topk_lab.reference import trace

EMBEDDED = '<a href="https://example.org">x</a><img src="data:image/png;base64,AA==">'


def written(recorded, folder, **more):
    records, runs = recorded
    judged = claims.evaluate(records)
    return report.build(records, judged, more.pop("notebooks", {}), folder, runs=runs, **more)


@pytest.fixture(scope="module")
def path(recorded, tmp_path_factory):
    """Build the report once for the tests that only read it."""
    row = np.full(1000, -np.inf, np.float32)
    row[:300] = 1
    return written(
        recorded,
        tmp_path_factory.mktemp("report") / "out",
        notebooks={"01 <radix>": EMBEDDED},
        stages=[("twins", 1.25), ("gfx950", 2.5)],
        traces={"masked": figures.trace_bins(trace(row, 512, variant="vllm_k512"))},
    )


def test_report_is_one_file_that_loads_nothing(path):
    assert list(path.parent.iterdir()) == [path]
    page = path.read_text(encoding="utf-8")
    assert not report.REMOTE.search(page)
    assert not re.search(r"<(script|link|iframe)\b", page)
    assert page.count("<svg") == page.count("<figcaption>") == 5
    titles = re.findall(r"<figcaption><strong>(.*?)</strong><br>(.*?)</figcaption>", page, re.S)
    assert all(origin.strip() for _, origin in titles)
    # A link and an embedded picture are no downloads.
    assert EMBEDDED in page
    assert "01 &lt;radix&gt;" in page
    assert '<td>gfx950</td><td class="figure">2.5 s</td>' in page
    assert '<td>all</td><td class="figure">3.8 s</td>' in page


def test_report_shows_every_claim_with_its_verdict(recorded, path):
    judged = claims.evaluate(recorded[0])
    page = path.read_text(encoding="utf-8")
    for claim in judged.to_dict("records"):
        line = re.search(rf'<tr id="{re.escape(claim["id"])}">.*?</tr>', page, re.S)[0]
        assert f'class="verdict {claim["outcome"].replace(" ", "-")}">' in line
    assert (
        "107 claims: 2 reproduced, 0 same direction, 0 other direction, 0 not reproduced, "
        "105 published only."
    ) in page
    assert "212 on numba, gfx950, gfx942" in page


def test_report_says_where_its_records_come_from(recorded, path):
    records, runs = recorded
    page = path.read_text(encoding="utf-8")
    (run,) = runs.values()
    assert run["time"] in page
    assert "c0ffeec0ff clang 22.1" in page
    assert results.provenance(records) in page


def test_report_is_the_same_each_time(recorded, tmp_path):
    first = written(recorded, tmp_path / "a").read_bytes()
    assert written(recorded, tmp_path / "b").read_bytes() == first


def test_report_without_records_has_no_empty_sections(tmp_path):
    records = results.load([])
    page = report.build(records, claims.evaluate(records), {}, tmp_path).read_text()
    assert re.findall(r'<h2 id="(\w+)"', page) == ["claims", "figures"]
    assert "Records: no records." in page


@pytest.mark.parametrize(
    "fragment",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<img alt='a' src='//cdn.example/x.png'>",
        "<link rel=stylesheet href=http://cdn.example/x.css>",
        "<style>@import 'x.css'</style>",
        "<p style=\"background: url('https://cdn.example/x.png')\">",
    ],
)
def test_a_notebook_that_loads_from_the_network_is_refused(recorded, tmp_path, fragment):
    with pytest.raises(ValueError, match="notebook 01 must be readable offline"):
        written(recorded, tmp_path / "out", notebooks={"01": fragment})
    assert not (tmp_path / "out").exists()


def test_notebook_keeps_its_cells_and_outputs(tmp_path):
    output = nbformat.v4.new_output("stream", text="bin 2016\n")
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# How is the k-th key found?", id="a"),
            nbformat.v4.new_code_cell("print('bin', 2016)", id="b", outputs=[output]),
        ]
    )
    nbformat.write(notebook, tmp_path / "01.ipynb")
    fragment = report.notebook_html(tmp_path / "01.ipynb")
    assert "How is the k-th key found?" in fragment
    assert "bin 2016" in fragment
    assert "<html" not in fragment
    assert not report.REMOTE.search(fragment)
