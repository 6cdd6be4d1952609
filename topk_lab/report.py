"""What did the records show, on one page that can be read anywhere?

`build` writes ``index.html``: claims, figures, environment, times of the stages and the executed
notebooks in a single file that loads nothing.
"""

from __future__ import annotations

import html
import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topk_lab import results, schedules
from topk_lab.claims import summary_line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["build", "notebook_html", "svg"]

CPU_SHOWN = (512, 2)  # k, threads

REMOTE = re.compile(
    r"<(?:script|link|img|iframe|source|video|audio|embed|object)\b[^>]*"
    r"(?:src|href|data)\s*=\s*[\"']?(?:https?:)?//"
    r"|@import|url\(\s*[\"']?(?:https?:)?//|import\(\s*[\"']https?:",
    flags=re.IGNORECASE,
)

STYLE = """
:root { color-scheme: light; --ink: #1f2430; --muted: #5b6272; --line: #d9dce3; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: #fff;
       max-width: 68rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { margin: 2.4rem 0 .6rem; font-size: 1.3rem; }
nav a { margin-right: 1.1rem; } a { color: #0a5a9c; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
table.claims td:first-child { width: 42%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem .35rem 0;
         border-bottom: 1px solid var(--line); }
th.group { padding-top: 1rem; font-size: .95rem; }
td.figure { font-variant-numeric: tabular-nums; white-space: normal; min-width: 6rem; }
.verdict { font-weight: 600; }
.reproduced { color: #0061a1; } .same-direction { color: #1d7fb8; }
.other-direction { color: #9a6700; }
.not-reproduced { color: #b34700; } .published-only { color: var(--muted); font-weight: 400; }
figure { margin: 1.4rem 0; } figure svg { max-width: 100%; height: auto; }
figcaption, .origin { color: var(--muted); font-size: .82rem; }
section.notebook { border-left: 3px solid var(--line); padding-left: 1rem; overflow-x: auto; }
section.notebook img { max-width: 100%; } section.notebook .prompt { display: none; }
section.notebook .anchor-link { display: none; }
section.notebook pre { background: #f5f6f8; padding: .6rem; overflow-x: auto; font-size: .84rem; }
section.notebook table { width: auto; }
summary { cursor: pointer; font-weight: 600; }
"""


def build(
    records: pd.DataFrame,
    claims_frame: pd.DataFrame,
    notebooks_html: Mapping[str, str],
    out_dir: str | os.PathLike[str],
    *,
    runs: Mapping[str, Mapping[str, Any]] | None = None,
    stages: Sequence[tuple[str, float]] = (),
    traces: Mapping[str, pd.DataFrame] | None = None,
) -> Path:
    """Write the report.

    Parameters
    ----------
    records : pandas.DataFrame
        As `results.load` returns it.
    claims_frame : pandas.DataFrame
        As `claims.evaluate` returns it for these records.
    notebooks_html : mapping
        Title -> executed notebook, as `notebook_html` returns it.
    out_dir : path
        Folder of ``index.html``; made if it is not there.
    runs : mapping, optional
        Run id -> run line (`results.load_runs`), for the environment table.
    stages : sequence of (str, float), optional
        What this reproduction did, and how long that took (s).
    traces : mapping, optional
        Title -> frame of `figures.trace_bins`.

    Returns
    -------
    Path
        The file, complete or not there: it is written beside its place and moved.

    Raises
    ------
    ValueError
        A notebook that would load something from the network.
    """
    for title, fragment in notebooks_html.items():
        remote = REMOTE.search(fragment)
        if remote:
            raise ValueError(
                f"notebook {title} must be readable offline, got {remote.group(0)[:60]!r}"
            )
    sections = [
        ("claims", "Claims", _claims_section(claims_frame, records)),
        ("figures", "Figures", _figures_section(records, claims_frame, traces or {})),
        ("environment", "Environment", _environment_section(runs or {}, records)),
        ("stages", "Times of the stages", _stages_section(stages)),
        ("notebooks", "Notebooks", _notebooks_section(notebooks_html)),
    ]
    shown = [section for section in sections if section[2]]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in shown)
    body = "\n".join(f'<h2 id="{name}">{title}</h2>\n{text}' for name, title, text in shown)
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>topk_lab: what the records show</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>Exact top-k for sparse-attention decode</h1>\n<p>{summary_line(claims_frame)}</p>\n"
        f"<nav>{links}</nav>\n{body}\n</body>\n</html>\n"
    )
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    part = folder / "index.html.part"
    part.write_text(page, encoding="utf-8")
    part.replace(path)
    return path


def notebook_html(path: str | os.PathLike[str]) -> str:
    """Turn an executed notebook into a fragment that `build` takes.

    Parameters
    ----------
    path : path
        An ``.ipynb`` with its outputs.

    Returns
    -------
    str
        HTML of its cells, without a page around them and without anything remote.
    """
    import nbconvert

    exporter = nbconvert.HTMLExporter(template_name="basic")
    fragment, _ = exporter.from_filename(str(path))
    return fragment


def _claims_section(claims_frame: pd.DataFrame, records: pd.DataFrame) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("claim", "published", "found", "verdict"))
    origin = html.escape(results.provenance(results.latest(records)))
    lines = [
        f'<p class="origin">Records: {origin}.</p>',
        f'<table class="claims">\n<thead><tr>{head}</tr></thead>\n<tbody>',
    ]
    for source, group in claims_frame.groupby("source", sort=False):
        lines.append(f'<tr><th class="group" colspan="4">{html.escape(source)}</th></tr>')
        lines += [_claim_row(claim) for claim in group.to_dict("records")]
    lines.append("</tbody>\n</table>")
    return "\n".join(lines)


def _claim_row(claim: Mapping[str, Any]) -> str:
    text = {name: html.escape(str(value)) for name, value in claim.items()}
    css = claim["outcome"].replace(" ", "-")
    return (
        f'<tr id="{text["id"]}"><td>{text["statement"]}</td>'
        f'<td class="figure">{text["published"]}</td>'
        f'<td class="figure" title="{text["provenance"]}">{text["found"]}</td>'
        f'<td class="verdict {css}">{text["verdict"]}</td></tr>'
    )


def _figures_section(
    records: pd.DataFrame, claims_frame: pd.DataFrame, traces: Mapping[str, pd.DataFrame]
) -> str:
    from topk_lab import figures

    shown = []
    if not claims_frame.empty:
        overview = figures.claims_overview(claims_frame).figure
        shown.append(
            _figure("overview", overview, "Verdicts by source and kind", "the table above")
        )
    for title, bins in traces.items():
        steps = figures.trace_histograms(bins)[0].figure
        origin = "computed by the Numba twin when this page was built"
        shown.append(
            _figure(f"trace-{title}", steps, f"How the k-th key is found: {title}", origin)
        )
    current = results.latest(records)
    checked = current[current["variant"].map(_is_sound) & current["samples_us"].isna()]
    for experiment, cells in checked.groupby("experiment", sort=False):
        grid = figures.exactness_grid(cells).figure
        title = f"Exactness, experiment {experiment}, policies that claim it"
        shown.append(_figure(f"exact-{experiment}", grid, title, results.provenance(cells)))
    shown += _cpu_figure(current)
    peers = results.load_published("peers_h200")
    for time, state in (("warm_us", "warm caches"), ("cold_us", "256 MiB zeroed before each call")):
        drawn = figures.peers_times(peers, time=time).figure
        title = f"Peers' kernels against the read floor, k = 512, {state}"
        shown.append(_figure(f"peers-{time}", drawn, title, results.provenance(peers)))
    return "\n".join(shown)


def _cpu_figure(current: pd.DataFrame) -> list[str]:
    """The selection on a CPU in reads of its input, where it was timed."""
    from topk_lab import figures, models

    timed = current[current["experiment"] == "cpu_selection"]
    if timed.empty:
        return []
    times = models.cpu_times(timed)
    k, threads = CPU_SHOWN
    shown = times[(times["k"] == k) & (times["threads"] == threads)]
    normal = shown[shown["workload"] == "normal"]
    drawn = figures.cpu_over_floor(normal).figure
    title = f"Selection on a CPU, in reads of its input, k = {k}, {threads} threads"
    return [_figure("cpu", drawn, title, results.provenance(timed))]


def _is_sound(variant: str) -> bool:
    """Whether a variant claims to be exact; studied policies that don't are wrong as due."""
    if variant.partition("[")[0] not in schedules.POLICIES:
        return True
    return schedules.parse_variant(variant).policy.sound


def _figure(name: str, figure: Figure, title: str, origin: str) -> str:
    return (
        f'<figure role="img" aria-label="{html.escape(title)}">\n{svg(figure, name)}\n'
        f"<figcaption><strong>{html.escape(title)}</strong><br>{html.escape(origin)}"
        "</figcaption>\n</figure>"
    )


def svg(figure: Figure, salt: str) -> str:
    """Draw a figure as SVG: same bytes each time, ids that no other figure has.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    salt : str
        Makes the ids of this figure its own.

    Returns
    -------
    str
        An ``<svg>`` element.
    """
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": salt}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :].strip()


def _environment_section(runs: Mapping[str, Mapping[str, Any]], records: pd.DataFrame) -> str:
    used = set(records["run"])
    lines = []
    for run in sorted(runs.values(), key=lambda run: run["time"]):
        if run["run"] not in used:
            continue
        environment, code = run["environment"], run["code"]
        device = environment["device"]
        packages = ", ".join(f"{name} {v}" for name, v in environment["packages"].items())
        commit = (code["git"] or "no checkout")[:10] + (" (edited)" if code["dirty"] else "")
        kernels = (code["kernel_hash"] or "")[:10]
        cells = (
            run["time"],
            environment["cpu"] or environment["machine"],
            f"{device['name']}, {device['runtime']}" if device else "none",
            f"{environment['os']}, Python {environment['python']}, {packages}",
            f"{code['package']}, commit {commit}",
            f"{kernels} {code['compiler'] or ''}".strip() or "none built",
        )
        lines.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    if not lines:
        return ""
    names = ("run", "CPU", "GPU", "software", "code", "kernels")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _stages_section(stages: Sequence[tuple[str, float]]) -> str:
    if not stages:
        return ""
    lines = [*stages, ("all", sum(seconds for _, seconds in stages))]
    body = "".join(
        f'<tr><td>{html.escape(name)}</td><td class="figure">{seconds:.1f} s</td></tr>'
        for name, seconds in lines
    )
    return (
        f"<table><thead><tr><th>stage</th><th>time</th></tr></thead><tbody>{body}</tbody></table>"
    )


def _notebooks_section(notebooks_html: Mapping[str, str]) -> str:
    return "\n".join(
        f"<details><summary>{html.escape(title)}</summary>\n"
        f'<section class="notebook">\n{fragment}\n</section></details>'
        for title, fragment in notebooks_html.items()
    )
