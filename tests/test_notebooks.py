"""Are the notebooks arguments whose stored outputs anybody gets again?"""

import ast
import json
import re
import shutil
import sys

import nbformat
import numpy as np
import pytest

import topk_lab
from topk_lab import figures, notebooks
from topk_lab.environment import without_paths

NAMES = notebooks.names()

HEADER = """# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

"""
PARAMETERS = """# %% tags=["parameters"]
MODE = "auto"
SEED = 0

"""
SMALL = f"""{HEADER}# %% [markdown]
# # A question

{PARAMETERS}# %%
import base64, os, sys
import topk_lab
print(MODE, SEED)
print("more")

# %%
from IPython.display import Image
Image(base64.b64decode("iVBORw0" "KGgo="), format="png")

# %%
{{"kernel": sys.executable == os.environ["ASKED_FROM"], "package": topk_lab.__version__}}
"""

TIMING = re.compile(r"\b(?:perf_counter|monotonic|timeit|time\.time|datetime)\b|%%?time")
# A number in prose is one that no cell computes; gfx950 and k-th are names.
TYPED_NUMBER = re.compile(r"(?<![\w#.-])\d")


def source_of(name):
    return notebooks.folder() / f"{name}.py"


def stored(name):
    return nbformat.read(notebooks.folder() / f"{name}.ipynb", as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(notebook):
    """All text that the outputs of a notebook hold."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            yield output.get("text", "")
            for kind, content in output.get("data", {}).items():
                if not kind.startswith("image/"):
                    yield content if isinstance(content, str) else json.dumps(content)


def without_images(notebook):
    plain = json.loads(nbformat.writes(notebook))
    for cell in plain["cells"]:
        for output in cell.get("outputs", []):
            for kind in [kind for kind in output.get("data", {}) if kind.startswith("image/")]:
                output["data"][kind] = "an image"
                output["metadata"].pop(kind, None)  # its size
    return plain


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder of sources that holds one small notebook, named small."""
    sources = tmp_path / "notebooks"
    sources.mkdir()
    (sources / "small.py").write_text(SMALL)
    monkeypatch.setattr(notebooks, "folder", lambda: sources)
    monkeypatch.setenv("ASKED_FROM", sys.executable)
    return sources


# the notebooks as they are


def test_there_is_the_first_notebook():
    assert "01_radix_steps" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_source_defines_nothing_and_times_nothing(name):
    code = "\n".join(cell.source for cell in code_cells(notebooks.read(source_of(name))))
    assert not TIMING.search(code)
    tree = ast.parse("\n".join(line for line in code.splitlines() if not line.startswith("%")))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not imported & {"time", "timeit", "datetime"}
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
    assert not [node for node in ast.walk(tree) if isinstance(node, definitions)]


@pytest.mark.parametrize("name", NAMES)
def test_source_is_an_argument(name):
    cells = notebooks.read(source_of(name)).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert "**Question.**" in cells[0].source
    assert "**Answer.**" in cells[0].source
    parameters = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    assert [cell.source.splitlines()[0].split("#")[0].strip() for cell in parameters] == [
        'MODE = "auto"'
    ]
    assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(cells[-1].source)))
    for cell in cells:
        if cell.cell_type == "markdown":
            assert not TYPED_NUMBER.search(cell.source), cell.source


@pytest.mark.parametrize("name", NAMES)
def test_stored_notebook_belongs_to_its_source_and_to_no_machine(name):
    notebook = stored(name)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "version" not in notebook.metadata.language_info
    fresh = notebooks.read(source_of(name))
    assert [(cell.cell_type, cell.id, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.id, cell.source) for cell in fresh.cells
    ]
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell.metadata.keys() <= {"tags"} for cell in notebook.cells)
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    for text in texts(notebook):
        assert without_paths(text) == text
    for cell in cells:
        if any("image/png" in output.get("data", {}) for output in cell.outputs):
            assert "with_provenance(" in cell.source


@pytest.mark.parametrize("name", NAMES)
def test_executing_gives_the_stored_outputs(name, tmp_path, monkeypatch):
    committed = stored(name)
    shutil.copy(source_of(name), tmp_path)
    monkeypatch.setattr(notebooks, "folder", lambda: tmp_path)
    for devices in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(devices, "")
    assert notebooks.build([name]) == (name,)
    built = nbformat.read(tmp_path / f"{name}.ipynb", as_version=4)
    assert list(texts(built)) == list(texts(committed))
    assert without_images(built) == without_images(committed)


# building


def test_build_stores_outputs_of_this_interpreter_and_no_trace_of_the_mode(small):
    assert notebooks.build() == ("small",)
    first = (small / "small.ipynb").read_bytes()
    notebook = nbformat.reads(first.decode(), as_version=4)
    assert [cell.cell_type for cell in notebook.cells] == ["markdown", *["code"] * 4]
    assert [cell.id for cell in notebook.cells] == [f"cell-0{place}" for place in range(5)]
    assert "replay" not in "".join(cell.source for cell in notebook.cells)
    _, printed, image, result = (cell.outputs for cell in code_cells(notebook))
    assert [output.text for output in printed] == ["replay 0\nmore\n"]
    assert image[0].data["image/png"].startswith("iVBORw0KGgo=")
    assert (
        result[0].data["text/plain"] == f"{{'kernel': True, 'package': '{topk_lab.__version__}'}}"
    )
    assert result[0].execution_count == 4
    assert sorted(path.name for path in small.iterdir()) == ["small.ipynb", "small.py"]

    notebooks.build(["small"])
    assert (small / "small.ipynb").read_bytes() == first


def test_stale_finds_what_differs_but_for_images(small):
    path = small / "small.ipynb"
    assert notebooks.stale() == ("small",)
    assert notebooks.build(check=True) == ("small",)
    assert not path.exists()

    notebooks.build()
    text = path.read_text()
    assert text.count("iVBORw0KGgo=") == 1
    path.write_text(text.replace("iVBORw0KGgo=", "iVBORw0KGgoA"))
    assert notebooks.stale() == ()
    path.write_text(text.replace("replay 0", "replay 1"))
    assert notebooks.stale() == ("small",)
    path.write_text(text)
    (small / "small.py").write_text(SMALL.replace("# # A question", "# # Another question"))
    assert notebooks.stale(["small"]) == ("small",)
    assert path.read_text() == text


def test_execute_leaves_the_stored_notebook_alone(small, tmp_path):
    (small / "small.ipynb").write_text("{}")
    target = notebooks.execute("small", tmp_path / "out" / "deep", {"MODE": "live", "SEED": 7})
    assert target == tmp_path / "out" / "deep" / "small.ipynb"
    cells = code_cells(nbformat.read(target, as_version=4))
    assert cells[1].source == "MODE = 'live'\nSEED = 7"
    assert cells[2].outputs[0].text == "live 7\nmore\n"
    assert (small / "small.ipynb").read_text() == "{}"
    with pytest.raises(ValueError, match=r"^out_dir must not be the folder of"):
        notebooks.execute(small / "small.py", small)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mode": "live"}, "parameter must be one of MODE, SEED, got 'mode'"),
        ({"MODE": "lve"}, "MODE must be one of auto, live, live-cpu, replay, got 'lve'"),
    ],
)
def test_parameters_are_those_of_the_notebook(small, tmp_path, parameters, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        notebooks.execute("small", tmp_path / "out", parameters)
    assert not (tmp_path / "out").exists()


def test_a_cell_that_fails_or_hangs_is_named(small, monkeypatch):
    (small / "small.py").write_text(f"{HEADER}{PARAMETERS}# %%\n1 / SEED\n")
    with pytest.raises(notebooks.NotebookError) as failed:
        notebooks.build()
    assert (
        str(failed.value) == "small.py failed in code cell 2: ZeroDivisionError: division by zero"
    )

    (small / "small.py").write_text(f"{HEADER}{PARAMETERS}# %%\nwhile True:\n    pass\n")
    monkeypatch.setattr(notebooks, "TIME_LIMIT", 1)
    with pytest.raises(notebooks.NotebookError) as hung:
        notebooks.build()
    assert str(hung.value) == "small.py must end within 1 s, got no answer in code cell 2"
    assert not (small / "small.ipynb").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (HEADER, "small.py must have one cell with the tag parameters, got 0"),
        (HEADER + PARAMETERS * 2, "small.py must have one cell with the tag parameters, got 2"),
        (PARAMETERS, "small.py must name the kernel python3, got None"),
        (
            HEADER.replace("name: python3", "name: mine") + PARAMETERS,
            "small.py must name the kernel python3, got mine",
        ),
    ],
)
def test_a_malformed_source_is_refused(small, source, message):
    (small / "small.py").write_text(source)
    with pytest.raises(notebooks.NotebookError, match=f"^{re.escape(message)}$"):
        notebooks.build()


def test_unknown_names_and_packages_without_sources_are_refused(small, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"^notebook must be one of small, got 'other'$"):
        notebooks.build(["small", "other"])
    assert not (small / "small.ipynb").exists()
    monkeypatch.undo()
    monkeypatch.setattr(notebooks, "__file__", str(tmp_path / "site" / "topk_lab" / "notebooks.py"))
    for ask in (notebooks.folder, notebooks.names, notebooks.stale):
        with pytest.raises(FileNotFoundError, match=r"^notebooks must be run from a checkout"):
            ask()


# what notebooks show


def test_trace_table_shows_the_prefix_as_bits():
    row = np.full(1000, -np.inf, np.float32)
    row[:300] = np.arange(300)
    table = figures.trace_table(topk_lab.trace(row, 512, variant="vllm_k512"))
    assert table["prefix"].tolist() == ["0x00000000", "0x00000000", "0xff800000", "0xff800000"]
    assert table["above"].tolist() == [300] * 4


def test_provenance_stands_below_the_figure():
    trace = topk_lab.trace(np.arange(600, dtype=np.float32), 512, variant="vllm_k512")
    axes = figures.trace_histograms(figures.trace_bins(trace))
    figure = figures.with_provenance(axes, "computed here")
    assert figure is axes[0].figure
    assert figure.get_supxlabel() == "computed here"
    assert figures.with_provenance(axes[0], "elsewhere").get_supxlabel() == "elsewhere"
