"""How do the notebooks get their outputs, and do the stored ones still belong to their sources?

A notebook's source is a jupytext percent script, ``notebooks/NAME.py``. The ``NAME.ipynb`` beside
it is generated: `build` executes the source in replay mode and stores it with its outputs, `stale`
finds the stored ones that differ from a fresh execution, `execute` runs a source with other
parameters and leaves the stored one alone.

Whatever is executed runs on the interpreter that asks, and on this copy of the package.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topk_lab.evidence import MODES

if TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["MODES", "NotebookError", "build", "execute", "folder", "names", "read", "stale"]

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
PARAMETERS_TAG = "parameters"
INJECTED_TAG = "injected-parameters"

# Seconds for the start of a kernel, and for all cells of a notebook together.
START_LIMIT = 60
TIME_LIMIT = 300


class NotebookError(RuntimeError):
    """A notebook that is malformed, fails or takes too long, or the packages to run it lack."""


def folder() -> Path:
    """Folder of the notebook sources.

    Returns
    -------
    Path

    Raises
    ------
    FileNotFoundError
        This copy of the package is not a checkout.
    """
    found = Path(__file__).resolve().parent.parent / "notebooks"
    if not found.is_dir():
        raise FileNotFoundError(
            "notebooks must be run from a checkout of topk_lab, got a package without them"
        )
    return found


def names() -> tuple[str, ...]:
    """Names of all notebooks, in order.

    Returns
    -------
    tuple of str

    Raises
    ------
    FileNotFoundError
        As `folder`.
    """
    return tuple(sorted(path.stem for path in folder().glob("*.py")))


def build(names: Sequence[str] | None = None, *, check: bool = False) -> tuple[str, ...]:
    """Execute sources in replay mode and store each with its outputs in the ``.ipynb`` beside it.

    Built twice on one machine, a file has the same bytes; on another one, images may differ.

    Parameters
    ----------
    names : sequence of str, optional
        Default: all.
    check : bool, default False
        Write nothing, only look, as `stale` does.

    Returns
    -------
    tuple of str
        Names of the notebooks that were written, or that would change.

    Raises
    ------
    FileNotFoundError
        As `folder`.
    ValueError
        No such notebook.
    NotebookError
        A notebook is malformed, fails or takes too long.
    """
    if check:
        return stale(names)
    built = _chosen(names)
    for name in built:
        _write(_replayed(name), folder() / f"{name}.ipynb")
    return built


def stale(names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Names of the notebooks whose stored cells or outputs are not those of their sources.

    Parameters
    ----------
    names : sequence of str, optional
        Default: all.

    Returns
    -------
    tuple of str
        Notebooks that are not stored yet, or differ from a fresh execution in more than images.

    Raises
    ------
    FileNotFoundError, ValueError, NotebookError
        As `build`.
    """
    return tuple(name for name in _chosen(names) if _differs(name))


def execute(
    notebook: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    parameters: Mapping[str, Any] | None = None,
) -> Path:
    """Execute a source and store the result away from the sources.

    Parameters
    ----------
    notebook : str or path
        A name, or the path of a source.
    out_dir : path
        Folder of the result; made if it is not there. Not the folder of the source.
    parameters : mapping, optional
        Values for names that the notebook's parameters cell assigns; they stand in a cell of their
        own behind it. Default: none, all parameters are as written.

    Returns
    -------
    Path
        The executed notebook, complete or not there.

    Raises
    ------
    FileNotFoundError
        As `folder`.
    ValueError
        No such notebook or parameter, an unknown mode, the source's own folder.
    NotebookError
        The notebook is malformed, fails or takes too long.
    """
    source = Path(notebook) if Path(notebook).suffix == ".py" else _source(str(notebook))
    target = Path(out_dir) / f"{source.stem}.ipynb"
    if target.parent.resolve() == source.parent.resolve():
        raise ValueError("out_dir must not be the folder of the notebook's source")
    executed = _executed(read(source), source, parameters or {})
    target.parent.mkdir(parents=True, exist_ok=True)
    _write(executed, target)
    return target


def read(source: str | os.PathLike[str]) -> NotebookNode:
    """Turn a source into a notebook without outputs.

    Parameters
    ----------
    source : path
        A jupytext percent script.

    Returns
    -------
    NotebookNode
        Its cells are numbered, so that the same source always gives the same notebook.

    Raises
    ------
    FileNotFoundError
        No such file.
    NotebookError
        Another kernel than python3, or not exactly one parameters cell.
    """
    source = Path(source)
    try:
        import jupytext
        import nbformat
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    notebook = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    kernel = notebook.metadata.get("kernelspec", {}).get("name")
    if kernel != KERNEL["name"]:
        raise NotebookError(f"{source.name} must name the kernel {KERNEL['name']}, got {kernel}")
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02}"
    notebook.metadata = nbformat.from_dict(
        {"jupytext": {"formats": "ipynb,py:percent"}, "kernelspec": KERNEL}
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    _parameters_cell(notebook, source.name)
    return notebook


def _missing(error: ModuleNotFoundError) -> NotebookError:
    return NotebookError(f"notebooks need {error.name}: pip install 'topk-lab[notebooks]'")


def _source(name: str) -> Path:
    source = folder() / f"{name}.py"
    if not source.is_file():
        raise ValueError(f"notebook must be one of {', '.join(names()) or 'none'}, got {name!r}")
    return source


def _chosen(wanted: Sequence[str] | None) -> tuple[str, ...]:
    chosen = names() if wanted is None else tuple(wanted)
    for name in chosen:
        _source(name)
    return chosen


def _tagged(cell: NotebookNode, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def _parameters_cell(notebook: NotebookNode, title: str) -> int:
    """Place of the parameters cell."""
    tagged = [place for place, cell in enumerate(notebook.cells) if _tagged(cell, PARAMETERS_TAG)]
    if len(tagged) != 1:
        raise NotebookError(
            f"{title} must have one cell with the tag {PARAMETERS_TAG}, got {len(tagged)}"
        )
    return tagged[0]


def _check_parameters(cell: NotebookNode, parameters: Mapping[str, Any]) -> None:
    import ast

    known = [
        target.id
        for statement in ast.parse(cell.source).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    ]
    for name, value in parameters.items():
        if name not in known:
            raise ValueError(f"parameter must be one of {', '.join(known)}, got {name!r}")
        if name == "MODE" and value not in MODES:
            raise ValueError(f"MODE must be one of {', '.join(MODES)}, got {value!r}")


def _replayed(name: str) -> NotebookNode:
    """Execute a source in replay mode; the cell that says so is not kept."""
    source = _source(name)
    notebook = _executed(read(source), source, {"MODE": "replay"})
    notebook.cells = [cell for cell in notebook.cells if not _tagged(cell, INJECTED_TAG)]
    _count_executions(notebook)
    return notebook


def _executed(notebook: NotebookNode, source: Path, parameters: Mapping[str, Any]) -> NotebookNode:
    import nbformat

    place = _parameters_cell(notebook, source.name)
    _check_parameters(notebook.cells[place], parameters)
    if parameters:
        lines = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
        injected = nbformat.v4.new_code_cell(
            lines, id=INJECTED_TAG, metadata={"tags": [INJECTED_TAG]}
        )
        notebook.cells.insert(place + 1, injected)
    _run(notebook, source)
    # Which interpreter ran it is no part of the notebook.
    notebook.metadata.get("language_info", {}).pop("version", None)
    _count_executions(notebook)
    return notebook


def _run(notebook: NotebookNode, source: Path) -> None:
    """Fill in the outputs of all cells, in a fresh kernel of this interpreter."""
    try:
        from jupyter_client.kernelspec import KernelSpecManager
        from jupyter_client.manager import AsyncKernelManager
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    except ModuleNotFoundError as error:
        raise _missing(error) from error

    deadline = time.monotonic() + TIME_LIMIT
    with tempfile.TemporaryDirectory(prefix="topk-lab-") as scratch:
        manager = AsyncKernelManager(
            kernel_name=KERNEL["name"],
            # No folder is searched: python3 is then the kernel of this interpreter.
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
            transport="ipc",
            connection_file=str(Path(scratch) / "kernel.json"),
        )
        client = NotebookClient(
            notebook,
            km=manager,
            timeout_func=lambda _: max(1, int(deadline - time.monotonic())),
            startup_timeout=START_LIMIT,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(source.parent)}},
        )
        try:
            client.execute(env=_kernel_environment(scratch), cleanup_kc=True)
        except CellExecutionError as error:
            raise NotebookError(
                f"{source.name} failed in code cell {_last_begun(notebook)}: "
                f"{error.ename}: {' '.join(error.evalue.split())}"
            ) from error
        except CellTimeoutError as error:
            raise NotebookError(
                f"{source.name} must end within {TIME_LIMIT} s, got no answer in "
                f"code cell {_last_begun(notebook)}"
            ) from error
        except DeadKernelError as error:
            raise NotebookError(
                f"{source.name} lost its kernel in code cell {_last_begun(notebook)}"
            ) from error


def _kernel_environment(scratch: str) -> dict[str, str]:
    """Environment in which this package is found and the user's IPython set-up is not."""
    checkout = str(Path(__file__).resolve().parent.parent)
    paths = [checkout, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "IPYTHONDIR": scratch}


def _last_begun(notebook: NotebookNode) -> int:
    """Number of the last code cell of the source that was begun, counted from 1."""
    cells = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and not _tagged(cell, INJECTED_TAG)
    ]
    begun = [number for number, cell in enumerate(cells, start=1) if cell.execution_count]
    return begun[-1] if begun else 1


def _count_executions(notebook: NotebookNode) -> None:
    """Number the code cells in order, whatever the kernel ran between them."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(cells, start=1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count


def _differs(name: str) -> bool:
    """Whether the stored notebook is not what its source gives, images aside."""
    fresh = read(_source(name))
    path = folder() / f"{name}.ipynb"
    if not path.is_file():
        return True
    import nbformat

    stored = nbformat.read(path, as_version=4)
    if [(cell.cell_type, cell.source) for cell in stored.cells] != [
        (cell.cell_type, cell.source) for cell in fresh.cells
    ]:
        return True
    return _outputs(stored) != _outputs(_replayed(name))


def _outputs(notebook: NotebookNode) -> list[Any]:
    """Outputs of all code cells, without their images."""
    return [
        [_without_images(output) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _without_images(output: NotebookNode) -> dict[str, Any]:
    kept = {key: value for key, value in output.items() if key not in ("data", "metadata")}
    data = output.get("data", {})
    return {**kept, "data": {kind: data[kind] for kind in data if not kind.startswith("image/")}}


def _write(notebook: NotebookNode, path: Path) -> None:
    import nbformat

    nbformat.validate(notebook)
    part = path.with_suffix(".ipynb.part")
    part.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    part.replace(path)
