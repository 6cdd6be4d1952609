"""May the record of somebody else's run be taken, and where does it belong?

The last line of a contributed file is its *seal*: how many cells there are, and a hash over all
lines before. It shows that a file is whole and as it was written, not who wrote it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topk_lab import __version__, code_objects, results
from topk_lab.environment import DEVICE_TARGETS, RECORD_SCHEMA
from topk_lab.results import RecordError

__all__ = ["add", "seal", "unseal"]

PACKED_BYTES = 2**20  # a file that is larger is packed


def _split(path: Path) -> tuple[list[bytes], bytes | None]:
    """The lines of a file but its seal, and the seal."""
    lines = path.read_bytes().splitlines(keepends=True)
    return (lines[:-1], lines[-1]) if lines and b'"seal"' in lines[-1][:120] else (lines, None)


def _write(path: Path, lines: list[bytes]) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(b"".join(lines))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def unseal(path: str | os.PathLike[str]) -> None:
    """Take the seal from a record file, so that cells can be added.

    Parameters
    ----------
    path : path
        A record file; one without a seal stays as it is.
    """
    lines, found = _split(Path(path))
    if found is not None:
        _write(Path(path), lines)


def seal(path: str | os.PathLike[str]) -> None:
    """Put a seal behind the lines of a record file, in the place of an older one.

    Parameters
    ----------
    path : path
        A record file with at least one run.

    Raises
    ------
    RecordError
        It has none.
    """
    path = Path(path)
    lines, _ = _split(path)
    runs = [line for line in map(json.loads, lines) if "environment" in line]
    if not runs:
        raise RecordError(f"{path.name}: run: a record must have a run line, got none")
    stated = {
        "cells": len(lines) - len(runs),
        "sha256": hashlib.sha256(b"".join(lines)).hexdigest(),
    }
    line = {"schema": RECORD_SCHEMA, "run": runs[-1]["run"], "seal": stated}
    _write(path, [*lines, (json.dumps(line) + "\n").encode()])


def _checked_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that may be contributed, without its seal."""
    lines, sealed = _split(path)
    parsed = []
    for number, text in enumerate([*lines, *([sealed] if sealed else [])], start=1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise RecordError(f"{path.name}:{number}: must be JSON, got {text[:40]!r}") from error
        version = line.get("schema") if isinstance(line, dict) else None
        if isinstance(version, int) and version > RECORD_SCHEMA:
            raise RecordError(
                f"{path.name}:{number}: schema: {version} is newer than {RECORD_SCHEMA}, the "
                f"newest that topk_lab {__version__} reads; update the package"
            )
        if version != RECORD_SCHEMA:
            raise RecordError(
                f"{path.name}:{number}: schema: must be {RECORD_SCHEMA}, got {version!r}"
            )
        parsed.append(line)
    if sealed is None:
        raise RecordError(
            f"{path.name}: seal: must be the last line, as topk-lab firstlight writes it, got none"
        )
    stated = parsed.pop()["seal"]
    cells = sum("environment" not in line for line in parsed)
    if stated.get("cells") != cells:
        raise RecordError(
            f"{path.name}: seal.cells: says {stated.get('cells')}, the file has {cells}"
        )
    if stated.get("sha256") != hashlib.sha256(b"".join(lines)).hexdigest():
        raise RecordError(
            f"{path.name}: seal.sha256: is not that of the lines before it: they were edited"
        )
    if not any("environment" in line for line in parsed):
        raise RecordError(f"{path.name}: run: a record must have a run line, got none")
    return parsed


def _code_problem(code: Mapping[str, Any]) -> str | None:
    """Why cells of this code say nothing of the code that is here."""
    if code["package"] != __version__:
        return (
            f"code.package: must be {__version__}, the version here, got {code['package']}; run "
            "topk-lab firstlight of this version"
        )
    kernels = code_objects.sources()
    if code["kernel_hash"] != kernels:
        return (
            f"code.kernel_hash: must be {kernels}, that of the kernels here, got "
            f"{code['kernel_hash']}; run topk-lab firstlight of this version"
        )
    if code["dirty"]:
        return f"code.dirty: topk_lab or kernels were edited since commit {code['git']}"
    return None


def _problem(line: Mapping[str, Any], runs: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Why a line can't be taken, beyond the schema."""
    if "environment" in line:
        return _code_problem(line["code"])
    if line["kind"] != "measured" or line["target"] not in DEVICE_TARGETS:
        return (
            f"kind: must be measured on {' or '.join(DEVICE_TARGETS)}, got {line['kind']} on "
            f"{line['target']}: only a device's own run is contributed"
        )
    if runs[line["run"]]["environment"]["device"] is None:
        return "environment.device: must be there, got none: no device was usable"
    return None


def add(
    path: str | os.PathLike[str], root: str | os.PathLike[str] | None = None
) -> dict[Path, int]:
    """Take a contributed run: check it, and file its cells.

    Parameters
    ----------
    path : path
        A record file, as ``topk-lab firstlight`` leaves it.
    root : path, optional
        Default: ``data`` of this checkout.

    Returns
    -------
    dict of Path to int
        Each file that it went to, and how many of its cells did. Of a cell that was there before
        the last run counts; files above 1 MiB are packed.

    Raises
    ------
    RecordError
        The file, the field and what is wrong with it; nothing is filed then.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"FILE must be a record of topk-lab firstlight, found no {path}")
    lines = _checked_lines(path)
    results.validate(path)
    runs = {line["run"]: line for line in lines if "environment" in line}
    for number, line in enumerate(lines, start=1):
        problem = _problem(line, runs)
        if problem:
            raise RecordError(f"{path.name}:{number}: {problem}")
    folder = Path(root) if root is not None else results.data_root()
    filed: dict[Path, list[dict[str, Any]]] = {}
    for line in lines:
        if "experiment" in line:
            device = runs[line["run"]]["environment"]["device"]["name"]
            place = folder / "measured" / results.device_folder(device)
            filed.setdefault(place / f"{line['experiment']}.jsonl", []).append(line)
    return {_file(place, cells, runs): len(cells) for place, cells in filed.items()}


def _file(place: Path, cells: list[dict[str, Any]], runs: Mapping[str, Mapping[str, Any]]) -> Path:
    """Append cells, their runs before them, and keep the last run of each cell."""
    place.parent.mkdir(parents=True, exist_ok=True)
    packed = results.packed(place)
    named = dict.fromkeys(cell["run"] for cell in cells)
    text = "".join(json.dumps(line) + "\n" for line in (*(runs[run] for run in named), *cells))
    with place.open("a", encoding="utf-8") as file:
        file.write(text)
    if packed.exists() or place.stat().st_size > PACKED_BYTES:
        place = results.pack(place)
    results.compact(place)
    return place
