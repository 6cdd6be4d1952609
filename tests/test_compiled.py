"""Is compiled code kept from one process to the next, and never served for other sources?"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import platformdirs
import pytest
from numba import types

from topk_lab import compiled

PACKAGE = Path(compiled.__file__).parent

# Says what was selected, how long the first call took, and whether anything was compiled in it.
FIRST_CALL = """
import time
import numpy as np
from numba.core import event
from topk_lab import cpu
row = np.array([[3, 1, 4, 1, 5, 9, 2, 6]], np.float32)
with event.install_recorder("numba:compile") as compilations:
    begin = time.perf_counter()
    indices, _ = cpu.select(row, 3)
    taken = time.perf_counter() - begin
print(indices[0].tolist(), len(compilations.buffer) > 0, taken)
"""


# An editable install finds its own sources before any path is looked at.
OF_THE_PATH = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
"""


def start(code, cache, package=PACKAGE, **environment):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", OF_THE_PATH + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cache,
        env=os.environ
        | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(package.parent)}
        | environment,
    )


def finished(process):
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    indices, compiled_anew, taken = out.rsplit(" ", 2)
    return indices, compiled_anew == "True", float(taken)


@pytest.fixture
def copy(tmp_path):
    """A copy of the package that may be edited."""
    copied = tmp_path / "checkout" / "topk_lab"
    shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    return copied


def test_several_processes_compile_at_once_and_the_next_loads(tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    together = [finished(process) for process in [start(FIRST_CALL, cache) for _ in range(2)]]
    assert [answer[:2] for answer in together] == [("[4, 5, 7]", True)] * 2
    indices, compiled_anew, taken = finished(start(FIRST_CALL, cache))
    assert (indices, compiled_anew) == ("[4, 5, 7]", False)
    assert taken < min(one[2] for one in together) / 4
    assert {path.suffix for path in cache.rglob("*.nb*")} == {".nbi", ".nbc"}


def test_an_edited_callee_is_compiled_anew(copy, tmp_path):
    # What is edited stands in another file than the compiled function, and its time of change is
    # put back: Numba's own cache would see neither.
    cache = tmp_path / "cache"
    cache.mkdir()
    selection = copy / "cpu" / "selection.py"
    assert finished(start(FIRST_CALL, cache, copy))[:2] == ("[4, 5, 7]", True)
    assert finished(start(FIRST_CALL, cache, copy))[:2] == ("[4, 5, 7]", False)
    before = selection.stat()
    source = selection.read_text()
    edited = source.replace("        indices[i] = -1\n", "        indices[i] = -2\n")
    edited = edited.replace(
        "        indices[i] = column_of(kept[i])\n", "        indices[i] = 7 - column_of(kept[i])\n"
    )
    assert edited != source
    selection.write_text(edited)
    os.utime(selection, ns=(before.st_atime_ns, before.st_mtime_ns))
    shutil.rmtree(selection.parent / "__pycache__", ignore_errors=True)
    assert finished(start(FIRST_CALL, cache, copy))[:2] == ("[3, 2, 0]", True)
    selection.write_text(source)
    os.utime(selection, ns=(before.st_atime_ns, before.st_mtime_ns))
    shutil.rmtree(selection.parent / "__pycache__", ignore_errors=True)
    assert finished(start(FIRST_CALL, cache, copy))[:2] == ("[4, 5, 7]", False)


def test_the_checkout_is_not_written_to(copy, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    before = sorted(copy.rglob("*"))
    finished(start(FIRST_CALL, cache, copy, PYTHONDONTWRITEBYTECODE="1"))
    assert sorted(copy.rglob("*")) == before


def test_sources_hold_all_that_compiled_functions_use():
    files = {path.resolve() for path in compiled.source_files()}
    assert PACKAGE / "cpu" / "selection.py" in files
    outside = {"compiled", "threads", "__init__"}  # they hold no compiled function or constant
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("topk_"):
                continue
            parts = node.module.split(".")[1:]
            for name in node.names:
                tried = (
                    PACKAGE.joinpath(*parts, f"{name.name}.py"),
                    PACKAGE.joinpath(*parts).with_suffix(".py"),
                    PACKAGE.joinpath(*parts, "__init__.py"),
                )
                found = next(one for one in tried if one.is_file())
                assert found in files or found.stem in outside, (path.name, found)


def test_switches_of_numba_have_code_of_their_own(tmp_path):
    code = "from topk_lab import compiled; print(compiled.cache_folder())"
    folders = {
        start(code, tmp_path, **environment).communicate(timeout=60)[0]
        for environment in ({}, {"NUMBA_BOUNDSCHECK": "1"}, {"NUMBA_OPT": "1"})
    }
    assert len(folders) == 3


def test_a_folder_that_cant_be_written_warns_and_compiles(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setattr(compiled.config, "CACHE_DIR", str(blocked))

    @compiled.compiled(types.void(types.int64[::1]))
    def fill(numbers):
        numbers[:] = 7

    numbers = np.zeros(3, np.int64)
    with pytest.warns(RuntimeWarning, match="can't be kept in .* set NUMBA_CACHE_DIR"):
        fill(numbers)
    assert numbers.tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    ("numba_folder", "own", "under"),
    [("a", "b", "a"), ("", "b", "b"), ("", "", None)],
    ids=["numbas", "ours", "the-users"],
)
def test_where_code_is_kept(numba_folder, own, under, monkeypatch):
    monkeypatch.setattr(compiled.config, "CACHE_DIR", numba_folder)
    monkeypatch.setenv("TOPK_LAB_CACHE", own)
    root = Path(under or platformdirs.user_cache_dir("topk_lab"))
    assert compiled.cache_folder() == root / "numba" / compiled.DIGEST
