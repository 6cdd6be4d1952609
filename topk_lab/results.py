"""Which cells ran, where, on what code, and what came out?

A record file is JSON Lines: one *run* line (environment and code) and behind it the *cell* lines of
that run. ``data/schema/record-1.json`` states both. A number is ``measured`` (a CPU or a GPU at
hand ran it), ``emulated`` (the emulator counted it; it never times) or ``published`` (somebody else
reported it), and every frame that this module returns says which in its column ``kind``. A file
that is to be sent ends with a *seal* line (`topk_lab.contributions`), which holds neither.

A large file may be packed (`pack`): ``*.jsonl.gz`` is read, checked and compacted as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gzip
import importlib.util
import json
import math
import os
import re
import statistics
import tempfile
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topk_lab.environment import (
    CPU_TARGETS,
    DEVICE_TARGETS,
    EMULATED_TARGETS,
    RECORD_SCHEMA,
    RunInfo,
    device_name_of,
    without_paths,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CELL_FIELDS",
    "IDENTITY",
    "KINDS",
    "STATUSES",
    "RecordError",
    "Recorder",
    "RunInfo",
    "compact",
    "data_root",
    "device_folder",
    "identity",
    "latest",
    "load",
    "load_committed",
    "load_published",
    "load_runs",
    "of_one_device",
    "only_kind",
    "pack",
    "packed",
    "provenance",
    "published_names",
    "validate",
]

KINDS = ("measured", "emulated", "published")
STATUSES = ("ok", "wrong", "error", "skipped")
MODES = ("graph", "eager")
CACHES = ("warm", "pressure_256MiB", "cold")

CELL_FIELDS = (
    *("schema", "run", "kind", "experiment", "target", "variant", "policy"),
    *("num_rows", "num_cols", "k", "next_n", "workload", "workload_args", "seed"),
    *("mode", "cache", "calls_per_graph", "status", "reason"),
    *("samples_us", "median_us", "q1_us", "q3_us", "n", "counters"),
)
DEVICE_VARIABLE = "TOPK_LAB_DEVICE"
PLAIN, PACKED = ".jsonl", ".jsonl.gz"
CODE_FIELDS = ("git", "dirty", "kernel_hash", "compiler")
RUN_COLUMNS = ("device", "recorded", *CODE_FIELDS, "file")

# Two cells with these equal are the same cell, run twice.
IDENTITY = (
    *("kind", "experiment", "target", "device", "variant", "policy"),
    *("num_rows", "num_cols", "k", "next_n", "workload", "workload_args", "seed"),
    *("mode", "cache", "calls_per_graph"),
)


class RecordError(ValueError):
    """A record file, or a record about to be written, breaks the schema."""


@functools.cache
def data_root() -> Path:
    """Folder that holds ``published``, ``claims.toml`` and ``schema``.

    Returns
    -------
    Path
        ``data`` of the checkout, else the copy inside the installed package.
    """
    package = Path(__file__).resolve().parent
    for folder in (package.parent / "data", package / "data"):
        if (folder / "claims.toml").is_file():
            return folder
    raise FileNotFoundError("data/claims.toml must lie beside the package or in it, found neither")


def device_folder(name: str) -> str:
    """Folder below ``measured`` of a device's records, such as ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _plain_number(value: Any) -> Any:
    """Turn NumPy scalars and arrays into what JSON holds."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        f"a record must hold numbers, texts, lists and dicts, got {type(value).__name__}"
    )


def _to_json(line: dict[str, Any]) -> str:
    return json.dumps(line, allow_nan=False, default=_plain_number, separators=(", ", ": "))


def _require(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise RecordError(f"{name} must be one of {', '.join(map(str, allowed))}, got {value!r}")


def _summary(samples_us: Sequence[float]) -> dict[str, Any]:
    samples = [float(sample) for sample in samples_us]
    if not samples or not all(math.isfinite(sample) and sample > 0 for sample in samples):
        raise RecordError("samples_us must hold at least one time, all finite and above 0")
    if len(samples) == 1:
        q1 = median = q3 = samples[0]
    else:
        q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return {
        "samples_us": samples,
        "median_us": round(median, 4),
        "q1_us": round(q1, 4),
        "q3_us": round(q3, 4),
        "n": len(samples),
    }


class Recorder:
    """Append the cells of one run to record files.

    Each call of `record` writes whole lines under a lock, so several processes may append to the
    same file; the run line goes before a run's first cell in each file.

    Parameters
    ----------
    destination : path
        A folder: a cell goes to ``<kind>/<device or target>/<experiment>.jsonl`` below it, the
        layout of ``data``. Or one file, named ``*.jsonl``. Nothing is appended to a packed file:
        new cells go beside it, and `pack` joins them.
    run : RunInfo
        The run.
    check : bool, optional
        Check every line against the schema (needs jsonschema). Default: if jsonschema is there.

    Raises
    ------
    ValueError
        `destination` is a packed file.
    RuntimeError
        ``check=True`` without jsonschema.
    """

    def __init__(
        self, destination: str | os.PathLike[str], run: RunInfo, *, check: bool | None = None
    ) -> None:
        self.destination = Path(destination)
        if self.destination.name.endswith(PACKED):
            raise ValueError(
                f"destination must be a folder or a file named *{PLAIN}, "
                f"got {self.destination.name}, which is packed"
            )
        self.run = run
        if check is None:
            check = importlib.util.find_spec("jsonschema") is not None
        self._validator = _schema_validator() if check else None
        self._started: set[Path] = set()

    def path(self, *, kind: str, target: str, experiment: str) -> Path:
        """File that a cell goes to."""
        if self.destination.suffix == ".jsonl":
            return self.destination
        if target in EMULATED_TARGETS:
            folder = target
        elif target in DEVICE_TARGETS:
            folder = device_folder(self.run.device_name(target))
        else:
            folder = "cpu"
        return self.destination / kind / folder / f"{experiment}.jsonl"

    def record(
        self,
        *,
        experiment: str,
        target: str,
        variant: Any,
        status: str,
        reason: str | None = None,
        num_rows: int | None = None,
        num_cols: int | None = None,
        k: int | None = None,
        next_n: int | None = None,
        workload: str | None = None,
        workload_args: dict[str, Any] | None = None,
        seed: int | None = None,
        mode: str | None = None,
        cache: str | None = None,
        calls_per_graph: int | None = None,
        samples_us: Sequence[float] | None = None,
        counters: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Write one cell.

        The kind follows from the target (gfx targets are emulated, all others measured), so a count
        of the emulator can't be written down as a measurement.

        Parameters
        ----------
        experiment : str
            Registered name of the experiment.
        target : str
            numba, torch, gfx90a, gfx942, gfx950, hip or cuda.
        variant : str or schedules.Variant
            What ran, for example ``"vllm_k512[fits_rule=false]"``; its whole policy is written too.
        status : {"ok", "wrong", "error", "skipped"}
            ok: checked exact. Every other status needs a `reason` and takes no samples.
        reason : str, optional
            One line. File paths in it are cut to their last part.
        num_rows, num_cols, k, next_n : int, optional
            Shape; next_n is 0 for one row end per row.
        workload, workload_args, seed
            What the logits were; ``workload_args["case"]`` is a listed case's id.
        mode, cache, calls_per_graph
            How a time was taken: required with `samples_us`.
        samples_us : sequence of float, optional
            Times of single calls (us).
        counters : dict, optional
            Counted numbers, or lists of numbers.

        Returns
        -------
        dict
            The line as written.

        Raises
        ------
        RecordError
            A word that the schema does not know, a time without mode or cache, a time of a result
            that is not exact.
        """
        _require("target", target, (*CPU_TARGETS, *EMULATED_TARGETS, *DEVICE_TARGETS))
        _require("status", status, STATUSES)
        _require("mode", mode, (*MODES, None))
        _require("cache", cache, (*CACHES, None))
        kind = "emulated" if target in EMULATED_TARGETS else "measured"
        if (status == "ok") != (reason is None):
            raise RecordError(
                f"reason must be given exactly when status is not ok, got {status} with {reason!r}"
            )
        timing: dict[str, Any] = dict.fromkeys(("samples_us", "median_us", "q1_us", "q3_us")) | {
            "n": 0
        }
        if samples_us is not None:
            if status != "ok" or kind == "emulated" or mode is None or cache is None:
                raise RecordError(
                    "samples_us must come with status ok, a target that is not emulated, "
                    "a mode and a cache, "
                    f"got {status}, {target}, {mode}, {cache}"
                )
            timing = _summary(samples_us)
        spelling, policy = _spelled(variant)
        cell = {
            "schema": RECORD_SCHEMA,
            "run": self.run.run,
            "kind": kind,
            "experiment": experiment,
            "target": target,
            "variant": spelling,
            "policy": policy,
            "num_rows": num_rows,
            "num_cols": num_cols,
            "k": k,
            "next_n": next_n,
            "workload": workload,
            "workload_args": without_paths(workload_args or {}),
            "seed": seed,
            "mode": mode,
            "cache": cache,
            "calls_per_graph": calls_per_graph,
            "status": status,
            "reason": without_paths(reason),
            **timing,
            "counters": counters or {},
        }
        self._append(self.path(kind=kind, target=target, experiment=experiment), cell)
        return cell

    def _append(self, path: Path, cell: dict[str, Any]) -> None:
        lines = [cell] if path in self._started else [self.run.line(), cell]
        texts = [_to_json(line) for line in lines]
        if self._validator is not None:
            for text in texts:
                problem = _first_problem(self._validator, json.loads(text))
                if problem:
                    raise RecordError(f"{path.name}: {problem}")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            # Whoever else appends waits: a line half written is not taken for one cut off.
            fcntl.flock(handle, fcntl.LOCK_EX)
            if path not in self._started:
                _require_whole_lines(handle, path.name)
            os.write(handle, "".join(text + "\n" for text in texts).encode())
        finally:
            os.close(handle)
        self._started.add(path)


def _spelled(variant: Any) -> tuple[str, dict[str, Any]]:
    """Canonical spelling of a variant, and its policy where the schedules know one."""
    from topk_lab import schedules

    if isinstance(variant, str):
        if variant.partition("[")[0] not in schedules.POLICIES:
            return variant, {}
        variant = schedules.parse_variant(variant)
    return str(variant), asdict(variant.policy)


def _require_whole_lines(handle: int, name: str) -> None:
    size = os.fstat(handle).st_size
    if size and os.pread(handle, 1, size - 1) != b"\n":
        raise RecordError(f"{name} must end with a newline, its last line was cut off")


def _schema_validator() -> Any:
    try:
        import jsonschema
    except ModuleNotFoundError as error:
        raise RuntimeError("checking records needs jsonschema: pip install jsonschema") from error
    schema = json.loads(
        (data_root() / "schema" / f"record-{RECORD_SCHEMA}.json").read_text(encoding="utf-8")
    )
    return jsonschema.Draft202012Validator(schema)


def _first_problem(validator: Any, line: Any) -> str | None:
    errors = sorted(
        validator.iter_errors(line), key=lambda error: list(map(str, error.absolute_path))
    )
    if not errors:
        return None
    where = ".".join(map(str, errors[0].absolute_path)) or "the line"
    return f"{where}: {errors[0].message}"


def _summary_problem(cell: dict[str, Any]) -> str | None:
    if cell["samples_us"] is None:
        return None
    for name, value in _summary(cell["samples_us"]).items():
        found = cell[name]
        agrees = (
            found == value
            if name in ("samples_us", "n")
            else math.isclose(found, value, abs_tol=1e-4)
        )
        if not agrees:
            return f"{name}: {found} does not follow from samples_us, {value} does"
    return None


def validate(path: str | os.PathLike[str]) -> int:
    """Check a record file, or every one below a folder, against the schema.

    Beyond the schema: every cell's run line stands before it, summaries follow from their samples,
    and below a folder named ``measured`` or ``emulated`` every cell is of that kind.

    Parameters
    ----------
    path : path
        A file, or a folder.

    Returns
    -------
    int
        Number of cells.

    Raises
    ------
    RecordError
        Each problem on its own line: file, line number, what is wrong.
    RuntimeError
        jsonschema is not installed.
    """
    validator = _schema_validator()
    problems: list[str] = []
    cells = 0
    for file in _record_files([path]):
        folders = file.resolve().parts[-3:-1]
        runs: set[str] = set()
        for number, line in _lines(file, seals=True):
            problem = _first_problem(validator, line)
            if problem is None and "seal" in line:
                continue
            if problem is None and "environment" in line:
                runs.add(line["run"])
                continue
            if problem is None:
                cells += 1
                problem = _summary_problem(line)
                if line["run"] not in runs:
                    problem = f"run: no run line {line['run']} stands before this cell"
                for kind in KINDS:
                    if kind in folders and line["kind"] != kind:
                        problem = f"kind: must be {kind} in this folder, got {line['kind']}"
            if problem is not None:
                problems.append(f"{file.name}:{number}: {problem}")
    if problems:
        raise RecordError("\n".join(problems))
    return cells


def _record_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            # Packed cells first: those beside them are newer.
            found = [*path.rglob(f"*{PACKED}"), *path.rglob(f"*{PLAIN}")]
            files += sorted(found, key=lambda file: (_unpacked_name(file), file.suffix == PLAIN))
        elif path.is_file():
            files.append(path)
        else:
            raise FileNotFoundError(f"record file {path.name} must exist, found nothing there")
    return files


def _unpacked_name(path: Path) -> str:
    return str(path).removesuffix(".gz")


def packed(path: str | os.PathLike[str]) -> Path:
    """Where a record file lies once it is packed.

    Parameters
    ----------
    path : path
        A record file, packed or not.

    Returns
    -------
    Path

    Examples
    --------
    >>> from topk_lab import results
    >>> results.packed("data/measured/cpu/boundaries.jsonl").name
    'boundaries.jsonl.gz'
    """
    plain = Path(_unpacked_name(Path(path)))
    return plain.with_name(plain.name + ".gz")


def _as_paths(paths: Any) -> list[str | os.PathLike[str]]:
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def _text_lines(path: Path) -> Iterator[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            yield from file
    except UnicodeDecodeError as error:
        raise RecordError(f"{path.name}: must be UTF-8, got {error}") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RecordError(f"{path.name}: must be a whole gzip file, got {error}") from error


def _run_problem(line: dict[str, Any]) -> str | None:
    """Why cells can't be read with this run line, or None; `validate` says the rest."""
    for name, kind in (("run", str), ("time", str), ("environment", dict), ("code", dict)):
        if not isinstance(line.get(name), kind):
            return f"{name} must be a {kind.__name__}, got {line.get(name)!r}"
    missing = [name for name in CODE_FIELDS if name not in line["code"]]
    return f"code must have {', '.join(missing)}" if missing else None


def _times_problem(samples_us: Any) -> str | None:
    """Why this can't stand for the times of a cell, or None if it can: no times are legal."""
    if samples_us is None:
        return None
    if not isinstance(samples_us, list) or not samples_us:
        return f"samples_us must be null or a list of times, got {samples_us!r}"
    for sample in samples_us:
        number = isinstance(sample, int | float) and not isinstance(sample, bool)
        if not (number and math.isfinite(sample) and sample > 0):
            return f"samples_us must be finite numbers above 0, got {sample!r}"
    return None


def _lines(path: Path, seals: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered runs and cells of a file, and its seal where that is asked for."""
    with contextlib.closing(_text_lines(path)) as texts:
        for number, text in enumerate(texts, start=1):
            try:
                line = json.loads(text)
            except json.JSONDecodeError as error:
                raise RecordError(
                    f"{path.name}:{number}: must be JSON, got {text.strip()[:40]!r}"
                ) from error
            if not isinstance(line, dict) or line.get("schema") != RECORD_SCHEMA:
                raise RecordError(
                    f"{path.name}:{number}: must be a record of schema {RECORD_SCHEMA}"
                )
            if seals or "seal" not in line:
                yield number, line


def load_runs(paths: Any) -> dict[str, dict[str, Any]]:
    """Read the run lines of record files.

    Parameters
    ----------
    paths : path or iterable of paths
        Files, or folders that are searched for ``*.jsonl`` and ``*.jsonl.gz``.

    Returns
    -------
    dict
        Run id -> run line.
    """
    return {
        line["run"]: line
        for file in _record_files(_as_paths(paths))
        for _, line in _lines(file)
        if "environment" in line
    }


def load(paths: Any) -> pd.DataFrame:
    """Read record files as one tidy frame.

    Parameters
    ----------
    paths : path or iterable of paths
        Files, or folders that are searched for ``*.jsonl`` and ``*.jsonl.gz``.

    Returns
    -------
    pandas.DataFrame
        One row a cell, in the order of the files: the fields of the schema, and of its run
        ``device``, ``recorded`` (UTC), ``git``, ``dirty``, ``kernel_hash``, ``compiler``, ``file``.

    Raises
    ------
    FileNotFoundError
        A path that is not there.
    RecordError
        A line that is not JSON, of another schema version, or without its run line; a run line that
        does not say when it was and of which code; samples that are no times.

    Examples
    --------
    >>> from topk_lab import results
    >>> frame = results.load([])
    >>> len(frame), frame.columns[2]
    (0, 'kind')
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for file in _record_files(_as_paths(paths)):
        runs: dict[str, dict[str, Any]] = {}
        for number, line in _lines(file):
            place = f"{file.name}:{number}"
            if "environment" in line:
                problem = _run_problem(line)
                if problem:
                    raise RecordError(f"{place}: {problem}")
                runs[line["run"]] = line
                continue
            run = runs.get(line["run"]) if isinstance(line.get("run"), str) else None
            if run is None or set(line) != set(CELL_FIELDS):
                raise RecordError(f"{place}: must be a cell with its run line before it")
            problem = _times_problem(line["samples_us"])
            if problem:
                raise RecordError(f"{place}: {problem}")
            code = run["code"]
            rows.append(
                {
                    **line,
                    "device": device_name_of(line["target"], run["environment"]),
                    "recorded": run["time"],
                    **{name: code[name] for name in CODE_FIELDS},
                    "file": file.name,
                }
            )
    return pd.DataFrame(rows, columns=[*CELL_FIELDS, *RUN_COLUMNS])


def load_committed(experiment: str | None = None) -> pd.DataFrame:
    """Read the records that the package carries: ``data/measured`` and ``data/emulated``.

    Parameters
    ----------
    experiment : str, optional
        Read the files of one experiment only, which are named after it. Default: all.

    Returns
    -------
    pandas.DataFrame
        As `load` returns it; empty if there are none.
    """
    folders = [data_root() / kind for kind in ("measured", "emulated")]
    files = _record_files([folder for folder in folders if folder.is_dir()])
    if experiment is not None:
        files = [file for file in files if file.name in (experiment + PLAIN, experiment + PACKED)]
    return load(files)


def identity(cell: Mapping[str, Any], fields: Sequence[str] = IDENTITY) -> str:
    """What all runs of a cell have in common, as one text.

    Parameters
    ----------
    cell : mapping
        A line of the frame that `load` returns.
    fields : sequence of str, optional
        Which fields. Default: all that tell cells apart.

    Returns
    -------
    str
        Equal for equal cells, even where one frame holds a number as 20 and another, for a gap in
        that column, as 20.0.
    """
    values = [cell[name] for name in fields]
    for position, value in enumerate(values):
        if isinstance(value, float):
            values[position] = None if math.isnan(value) else value
            if value.is_integer():
                values[position] = int(value)
    return json.dumps(values, sort_keys=True, default=_plain_number)


def latest(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the last run of every cell.

    Parameters
    ----------
    frame : pandas.DataFrame
        As `load` returns it.

    Returns
    -------
    pandas.DataFrame
        Of cells that differ only in run and outcome, the one recorded last (of
        equal times, the later line).
    """
    if frame.empty:
        return frame
    ordered = frame.sort_values("recorded", kind="stable")
    keys = [identity(cell) for cell in ordered.to_dict("records")]
    last = {key: position for position, key in enumerate(keys)}
    return ordered.iloc[sorted(last.values())].sort_index()


def of_one_device(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the cells of one device: its times are no other's.

    Parameters
    ----------
    frame : pandas.DataFrame
        As `load` returns it.

    Returns
    -------
    pandas.DataFrame
        Those of the device that ``TOPK_LAB_DEVICE`` names a part of; without it, of the device that
        has the most.

    Raises
    ------
    ValueError
        No device of that name.
    """
    if frame.empty:
        return frame
    devices = frame["device"].value_counts().index
    wanted = os.environ.get(DEVICE_VARIABLE, "")
    named = [device for device in devices if wanted.lower() in device.lower()]
    if not named:
        raise ValueError(
            f"{DEVICE_VARIABLE} must be part of one of {', '.join(devices)}, got {wanted!r}"
        )
    return frame[frame["device"] == named[0]]


def compact(path: str | os.PathLike[str]) -> int:
    """Drop from a record file the cells that a later run replaced, and runs without cells.

    The new file takes the old one's place in one step.

    Parameters
    ----------
    path : path
        A record file; a packed one stays packed.

    Returns
    -------
    int
        Number of cells that remain.
    """
    path = Path(path)
    lines = [line for _, line in _lines(path)]
    runs = {line["run"]: line for line in lines if "environment" in line}
    newest: dict[str, dict[str, Any]] = {}
    for line in sorted(
        (line for line in lines if "experiment" in line), key=lambda line: runs[line["run"]]["time"]
    ):
        device = device_name_of(line["target"], runs[line["run"]]["environment"])
        key = identity({**line, "device": device})
        newest.pop(key, None)
        newest[key] = line
    kept: list[dict[str, Any]] = []
    written: set[str] = set()
    for cell in newest.values():
        if cell["run"] not in written:
            kept.append(runs[cell["run"]])
            written.add(cell["run"])
        kept.append(cell)
    _replace(path, (_to_json(line) + "\n" for line in kept))
    return len(newest)


def _replace(path: Path, texts: Iterable[str]) -> None:
    """Put a file of these lines in the place of another in one step, packed if its name says so."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            if path.suffix == ".gz":
                # No name and no time: the same lines always give the same bytes.
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
                    compressed.writelines(text.encode() for text in texts)
            else:
                file.writelines(text.encode() for text in texts)
        part.chmod(0o644)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def pack(path: str | os.PathLike[str]) -> Path:
    """Compress a record file, behind what was packed of it before.

    The packed file appears, or takes the old one's place, in one step; then the plain one goes. The
    same lines give the same bytes on every day (with the same zlib).

    Parameters
    ----------
    path : path
        A record file named ``*.jsonl``.

    Returns
    -------
    Path
        The file named ``*.jsonl.gz``.

    Raises
    ------
    ValueError
        A file of another name.
    FileNotFoundError
        No such file.
    RecordError
        A line that is not a record, or cut off.
    """
    path = Path(path)
    if not path.name.endswith(PLAIN):
        raise ValueError(f"path must be a file named *{PLAIN}, got {path.name}")
    (path,) = _record_files([path])
    target = packed(path)
    sources = [target, path] if target.exists() else [path]
    _replace(target, (_to_json(line) + "\n" for source in sources for _, line in _lines(source)))
    path.unlink()
    return target


def published_names() -> list[str]:
    """Names of the tables in ``data/published``."""
    return sorted(path.stem for path in (data_root() / "published").glob("*.csv"))


def load_published(name: str) -> pd.DataFrame:
    """Read one table of ``data/published``.

    Parameters
    ----------
    name : str
        File name without ending, for example ``"peers_h200"``.

    Returns
    -------
    pandas.DataFrame
        The table, and the columns ``kind`` (published, or derived from what was published),
        ``origin``, ``hardware`` and ``date`` from the file beside it.

    Raises
    ------
    ValueError
        No such table.
    """
    import pandas as pd

    if name not in published_names():
        raise ValueError(f"name must be one of {', '.join(published_names())}, got {name!r}")
    folder = data_root() / "published"
    about = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
    frame = pd.read_csv(folder / f"{name}.csv")
    for column in ("kind", "origin", "hardware", "date"):
        if column not in frame:
            frame[column] = " ".join(str(about[column]).split())
    return frame


def only_kind(frame: pd.DataFrame) -> str:
    """The one kind of numbers that a frame holds: what may stand on one axis.

    Parameters
    ----------
    frame : pandas.DataFrame
        With a column ``kind``.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        Several kinds, none, or no such column.
    """
    kinds = sorted(set(frame["kind"])) if "kind" in frame else []
    if len(kinds) != 1:
        raise ValueError(f"frame must hold numbers of one kind, got {', '.join(kinds) or 'none'}")
    return kinds[0]


def provenance(frame: pd.DataFrame) -> str:
    """One line that says where the numbers of a frame come from.

    Parameters
    ----------
    frame : pandas.DataFrame
        As `load` or `load_published` return it, or a part of that.

    Returns
    -------
    str
        Kinds, devices, code and days of records; origin, hardware and date of published tables.
    """
    if frame.empty:
        return "no records"
    if "origin" in frame:
        first = frame.iloc[0]
        return f"{first['kind']}: {first['origin']}; {first['hardware']}; {first['date']}"
    parts = []
    for kind in KINDS:
        part = frame[frame["kind"] == kind]
        if part.empty:
            continue
        devices = ", ".join(sorted(set(part["device"])))
        parts.append(f"{kind} on {devices}")
    days = sorted({str(time)[:10] for time in frame["recorded"]})
    parts.append(days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}")
    for label, column, length in (
        ("code", "git", 10),
        ("kernels", "kernel_hash", 10),
        ("built by", "compiler", None),
    ):
        values = sorted({str(value)[:length] for value in frame[column] if isinstance(value, str)})
        if values:
            parts.append(f"{label} {', '.join(values)}")
    if any(value is True for value in frame["dirty"]):
        parts.append("with uncommitted changes")
    return "; ".join(parts)
