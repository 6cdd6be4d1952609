"""On what does the package run, from which version on, and what does it refuse?

One table, ``data/support.toml``: ``topk-lab doctor``, a refused device's error and the page for a
ROCm node are made from it. A row names its source, and says who ran it: where nobody did, it says
so.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass, fields

from topk_lab import results

__all__ = ["GROUPS", "Row", "here", "markdown", "of_device", "refusal", "row_of", "rows"]

# Group -> what it is called, in the order of the table.
GROUPS = {
    "device": "device",
    "refused": "refused",
    "runtime": "runtime",
    "torch": "PyTorch",
    "container": "container",
    "partition": "partition",
}
NOBODY = "nobody ran it yet"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    group : str
        Key of `GROUPS`.
    name : str
        What it is about: an architecture, a version, an image, a mode. Of what is refused a
        regular expression of architectures.
    device : str
        Products, or a title.
    minimum : str
        Oldest ROCm (of a device), as two numbers, or oldest driver; may be empty.
    says : str
        What holds there.
    source : str
        Where that is stated.
    ran : str
        Who ran this package there.
    """

    group: str
    name: str
    device: str
    says: str
    source: str
    minimum: str = ""
    ran: str = NOBODY


@functools.cache
def rows() -> tuple[Row, ...]:
    """The table.

    Returns
    -------
    tuple of Row
        Group by group.

    Raises
    ------
    ValueError
        A row of a group, or with a field, that is not known.
    """
    known = {item.name for item in fields(Row)}
    content = tomllib.loads((results.data_root() / "support.toml").read_text(encoding="utf-8"))
    found = []
    for entry in content["row"]:
        unknown = sorted(set(entry) - known)
        if unknown or entry.get("group") not in GROUPS:
            raise ValueError(
                f"row {entry.get('name')!r} of support.toml must have a group of "
                f"{', '.join(GROUPS)} and fields of {', '.join(sorted(known))}, got {entry}"
            )
        found.append(Row(**entry))
    order = list(GROUPS)
    return tuple(sorted(found, key=lambda row: order.index(row.group)))


def row_of(arch: str) -> Row | None:
    """The row of a device's architecture, such as ``gfx950`` or ``sm_90``; None without one."""
    return next((row for row in rows() if row.group == "device" and row.name == arch), None)


def refusal(arch: str) -> str | None:
    """Why an architecture is refused by name; None where the table names none."""
    for row in rows():
        if row.group == "refused" and re.fullmatch(row.name, arch):
            return row.says
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def of_device(arch: str, version: str | None) -> str:
    """What the table says of a device, in one line.

    Parameters
    ----------
    arch : str
        Such as ``gfx950``.
    version : str or None
        Of the HIP that torch was built for; None if it is not known.

    Returns
    -------
    str
    """
    refused = refusal(arch)
    if refused:
        return f"{arch}: refused: {refused}"
    row = row_of(arch)
    if row is None:
        return f"{arch}: not in the table"
    parts = [f"{arch}: {row.device}"]
    if row.minimum and arch.startswith("gfx"):
        parts.append(f"ROCm {row.minimum} or newer")
        if version and _numbers(version) < _numbers(row.minimum):
            parts.append(f"torch is built for {version}, which is too old")
    return "; ".join([*parts, row.ran])


def here() -> list[str]:
    """What the table says of the devices of this machine, each kind once.

    Returns
    -------
    list of str
        Lines of `of_device`; empty where no driver can be asked.
    """
    from topk_lab import driver

    platform = driver.platform()
    if platform is None:
        return []
    try:
        archs = driver.devices(platform)
    except driver.DriverError:
        return []  # the target's own status says why
    import torch

    return [of_device(arch, torch.version.hip) for arch in dict.fromkeys(archs)]


def markdown() -> str:
    """The table as Markdown.

    Returns
    -------
    str
        Ends with a newline.
    """
    head = ("", "what", "minimum", "says", "ran", "source")
    lines = [head, ["---"] * len(head)]
    for row in rows():
        name = f"`{row.name}`"
        what = f"{row.device} {name}" if row.device else name
        minimum = f"ROCm {row.minimum}" if row.minimum[:1].isdigit() else row.minimum
        lines.append((GROUPS[row.group], what, minimum, row.says, row.ran, row.source))
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )
