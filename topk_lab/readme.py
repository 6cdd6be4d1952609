"""Which texts and which picture of README come from the records, and are they up to date?

Numbers in README stand between markers: `blocks` generates what belongs there, `update_markers`
puts it there, `check_markers` says what differs.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from topk_lab import models, results, support
from topk_lab.claims import PUBLISHED_ONLY, summary_line

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["blocks", "check_markers", "node_blocks", "node_page", "picture", "update_markers"]

BLOCK_SIZES = ("sglang_block512", "sglang_block1024")
LEAST_ROWS = 8  # of the published statement that the time is flat

MATRIX_PAIR = ("vllm_generic", "vllm_k512")
MATRIX_CACHES = ("warm", "pressure_256MiB", "cold")
PUBLISHED_BUFFER = "MI355X, published"

CONTENTION_SHAPE = {"num_rows": 24, "num_cols": 262_144}
CONTENTION_TARGET = "gfx950"
WAITING = (models.UNCOUNTED, models.COUNTED, models.UNCROWDED)
TIMED = (models.OPAQUE, models.UNCOUNTED, models.UNCROWDED)
CROWDS = {
    "no mask": ("normal", {}),
    "7 of 8 masked": ("masked_blocks", {"of": 8}),
    "all masked": ("all_neg_inf", {}),
    "zeros of a ReLU": ("relu_zeros", {}),
    "one value": ("constant", {}),
    "values close together": ("near_equal", {}),
    "the last bits alone differ": ("same_leading_bits", {}),
}

MARKED = re.compile(
    r"(?P<open><!-- topk-lab:(?P<name>[a-z-]+) -->\n)(?P<body>.*?)"
    r"(?P<close><!-- /topk-lab:(?P=name) -->)",
    flags=re.DOTALL,
)


def blocks(claims_frame: pd.DataFrame, records: pd.DataFrame) -> dict[str, str]:
    """Generate the texts that stand between markers in README.

    Parameters
    ----------
    claims_frame : pandas.DataFrame
        As `claims.evaluate` returns it.
    records : pandas.DataFrame
        The committed records that decided it.

    Returns
    -------
    dict
        Marker name -> Markdown. ``claims``: the summary, the decided claims and where the verdicts
        come from, and, folded, what is published only. ``baselines``: the mirrors against their
        upstreams. ``matrix``: how the speed-ups of vLLM's change spread over its 1008 cases.
        ``contention``: what a crowded bin costs and what the remedies save. ``latency``: what more
        threads change, and up to how many rows the time is flat. ``shapes``: the delegate
        selection beside the floor and the best peer. ``cpu``: the selection on a CPU beside
        torch.topk, numpy.argpartition and one read. ``overhead``: what the host pays for a call.
    """
    undecided = claims_frame["outcome"] == PUBLISHED_ONLY
    lines = [
        summary_line(claims_frame),
        "",
        *_claim_lines(claims_frame[~undecided]),
        "",
        f"Records: {results.provenance(results.latest(records))}.",
        "",
        f"<details><summary>Published only: {int(undecided.sum())} more claims</summary>",
        "",
        *_claim_lines(claims_frame[undecided]),
        "",
        "</details>",
    ]
    return {
        "claims": "\n".join(lines) + "\n",
        "baselines": _baselines_block(records),
        "matrix": _matrix_block(records),
        "contention": _contention_block(records),
        "latency": _latency_block(records),
        "shapes": _shapes_block(records),
        "cpu": _cpu_block(records),
        "overhead": _overhead_block(records),
    }


def _markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _latest_of_one_device(records: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """An experiment's last cells, of the device that has the most: no table mixes two."""
    return results.of_one_device(results.latest(records[records["experiment"] == experiment]))


def _baselines_block(records: pd.DataFrame) -> str:
    """The mirrors' times as multiples of their upstreams', both on the same device."""
    from topk_lab.bench import ratios

    timed = records[records["experiment"] == "reference_shapes"]
    if timed.empty:
        return "No record yet.\n"
    frame = ratios.geomeans(ratios.against_published(timed))
    rows = [
        (
            row["variant"],
            row["cache"],
            f"{row['geomean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]",
            f"{row['best']:.3f}",
            f"{row['worst']:.3f}",
            f"{row['above_limit']} of {row['shapes']}",
        )
        for row in frame.to_dict("records")
    ]
    names = ("mirror", "cache", "geomean [95 %]", "best shape", "worst shape", "above 1.10")
    return f"{_markdown(names, rows)}\nRecords: {results.provenance(results.latest(timed))}.\n"


def _matrix_block(records: pd.DataFrame) -> str:
    """Speed-ups over the source's matrix by buffer and cache, beside the published ones."""
    timed = _latest_of_one_device(records, "vllm_matrix")
    if timed.empty:
        return "No record yet.\n"
    found = models.distribution(models.paired(timed, *MATRIX_PAIR), ["cache", "buffer"])
    published = models.published_distribution()
    rows = []
    for cache in MATRIX_CACHES:
        told = published[published["cache"] == cache].assign(buffer=PUBLISHED_BUFFER)
        for line in [
            *told.to_dict("records"),
            *found[found["cache"] == cache].to_dict("records"),
        ]:
            between = f" [{line['low']:.3f}, {line['high']:.3f}]" if "low" in line else ""
            rows.append(
                (
                    *(line["cache"], line["buffer"], f"{line['geomean']:.3f}x{between}"),
                    *(f"{line[name]:.3f}x" for name in ("median", "least", "greatest")),
                    f"{int(line['slower'])} of {int(line['cases'])}",
                    str(line.get("losing", "")),
                )
            )
    names = (
        *("cache", "buffer", "geomean [95 %]", "median", "least", "greatest"),
        *("below 1", f"below {models.LOSING}"),
    )
    return f"{_markdown(names, rows)}\nRecords: {results.provenance(timed)}.\n"


def _contention_block(records: pd.DataFrame) -> str:
    """Lanes that wait in compiled AMD code, and times on a device, for rows that crowd."""
    found = results.latest(records[records["experiment"] == "neg_inf_contention"])
    found = found[found["num_cols"] == CONTENTION_SHAPE["num_cols"]]
    counts = found[found["target"] == CONTENTION_TARGET]
    times = found[(found["cache"] == "warm") & (found["num_rows"] == CONTENTION_SHAPE["num_rows"])]
    if counts.empty or times.empty:
        return "No record yet.\n"
    rows = []
    for label, (workload, arguments) in CROWDS.items():
        counted, timed = (
            {
                cell["variant"]: cell
                for cell in cells.to_dict("records")
                if (cell["workload"], cell["workload_args"]) == (workload, arguments)
            }
            for cells in (counts, times)
        )
        waiting = [
            f"{counted[name]['counters']['lds_atomic_serialized_lanes']:,}" for name in WAITING
        ]
        mirror = timed[models.COUNTED]["median_us"]
        ratios = [f"{timed[name]['median_us'] / mirror:.2f}" for name in TIMED]
        rows.append((label, *waiting, f"{mirror:.1f} us", *ratios))
    names = (
        *("rows of 262144", "waiting lanes, -inf not counted", "counted", "uncrowded"),
        *("H200: counted", "increments hidden", "not counted", "uncrowded"),
    )
    shown = found.loc[counts.index.union(times.index)]
    return f"{_markdown(names, rows)}\nRecords: {results.provenance(shown)}.\n"


def _latency_block(records: pd.DataFrame) -> str:
    """1024 threads against 512 by the length of a row, and where the time is flat in the rows."""
    timed = _latest_of_one_device(records, "latency_vs_batch")
    if timed.empty:
        return "No record yet.\n"
    alone = timed[timed["num_rows"].between(LEAST_ROWS, _rows_a_unit(timed))]
    published = results.load_published("sglang_36004_kernel").set_index("c4_len")["speedup"]
    found = models.speedups(alone, *BLOCK_SIZES).set_index(["num_cols", "cache"])
    flat = models.flatness(alone, LEAST_ROWS, int(alone["num_rows"].max()))
    flat = flat[flat["cache"] == "warm"].set_index(["num_cols", "variant"])
    rows = []
    for num_cols in sorted({length for length, _ in found.index}):
        ratios = [
            f"{line.speedup:.2f}x [{line.low:.2f}, {line.high:.2f}]"
            for line in (found.loc[num_cols, cache] for cache in ("warm", "cold"))
        ]
        growths = [
            f"{line.growth:.2f} [{line.growth_low:.2f}, {line.growth_high:.2f}]: {line.verdict}"
            for line in (flat.loc[num_cols, variant] for variant in BLOCK_SIZES)
        ]
        rows.append((str(num_cols), f"{published[num_cols]:.2f}x", *ratios, *growths))
    span = f"{LEAST_ROWS} to {int(alone['num_rows'].max())} rows"
    names = (
        *("columns", "MI355X, published", "warm", "cold"),
        *(f"{name.removeprefix('sglang_block')} threads, {span}" for name in BLOCK_SIZES),
    )
    return f"{_markdown(names, rows)}\nRecords: {results.provenance(timed)}.\n"


def _rows_a_unit(timed: pd.DataFrame) -> int:
    """Compute units of the device: as many rows have a unit each."""
    return int(max(counters.get("units", 0) for counters in timed["counters"]))


def _shapes_block(records: pd.DataFrame) -> str:
    """The delegate selection's times beside the floor and the best peer, shape by shape."""
    from topk_lab.bench import ratios

    timed = results.latest(records[records["experiment"].isin(["delegate_shapes", "peer_shapes"])])
    if not (timed["experiment"] == "delegate_shapes").any():
        return "No record yet.\n"
    found = ratios.against_peers(timed)
    found = found[found["peer"].notna()]
    rows = [
        (
            f"{cell['num_rows']} x {cell['num_cols']}",
            *(cell["workload"], cell["cache"]),
            *(f"{cell[name]:.1f}" for name in ("floor_us", "time_us", "peer_us")),
            f"{cell['peer']}, {cell['peer_kind']}",
            f"{cell['speedup']:.2f}x",
        )
        for cell in found.to_dict("records")
    ]
    means = "".join(
        f"- {mean['cache']}: {1 / mean['geomean']:.3f}x "
        f"[{1 / mean['high']:.3f}, {1 / mean['low']:.3f}] over {mean['shapes']} shapes, "
        f"slower on {mean['above_limit']}\n"
        for mean in ratios.geomeans(found, limit=1.0).to_dict("records")
    )
    names = (
        *("rows x columns", "logits", "cache", "floor, us", "ours, us", "best peer, us"),
        *("which", "speed-up"),
    )
    said = f"Speed-up, geometric mean [95 %]:\n\n{means}"
    return f"{_markdown(names, rows)}\n{said}\nRecords: {results.provenance(timed)}.\n"


def _cpu_block(records: pd.DataFrame) -> str:
    """The selection on a CPU: speed-ups over long rows, reads of the input, hard rows, memory."""
    timed = results.latest(records[records["experiment"] == "cpu_selection"])
    if timed.empty:
        return "No record yet.\n"
    times = models.cpu_times(timed)

    def told(value: float, text: str) -> str:
        return "" if value != value else text.format(value)

    rows = [
        (
            *(f"{line[name]:.0f}" for name in ("k", "threads", "shapes")),
            f"{line['torch_speedup']:.1f}x",
            f"{line['least_speedup']:.1f}x",
            told(line["numpy_speedup"], f"{{:.1f}}x over {line['numpy_shapes']:.0f}"),
            told(line["over_floor"], "{:.2f}"),
            told(line["extra_share"], "{:.2%}"),
        )
        for line in models.cpu_summary(times).to_dict("records")
        if line["shapes"] > 1
    ]
    names = (
        *("k", "threads", "shapes", "torch.topk, geomean", "least", "numpy.argpartition"),
        *("reads, 64 MB and more, at most", "extra memory there, at most"),
    )
    short = times[times["num_cols"] < models.LONG_COLUMNS]
    slower = short[short["torch_speedup"] < 1]
    said = (
        f"On {len(slower)} of {len(short)} shapes with shorter rows torch.topk is faster: a call "
        f"takes {times['time_us'].min():.0f} us at least.\n"
    )
    hard = models.cpu_workloads(times)
    if len(hard):
        slowest = hard.iloc[0]
        said += (
            f"Of {len(hard)} other workloads that ran with normal rows in one run, the hardest on "
            f"{slowest['num_rows']} x {slowest['num_cols']}, {slowest['workload']}, takes "
            f"{slowest['ratio']:.2f} times as long.\n"
        )
    return f"{_markdown(names, rows)}\n{said}\nRecords: {results.provenance(timed)}.\n"


def _overhead_block(records: pd.DataFrame) -> str:
    """Host time of each layer of a call."""
    timed = _latest_of_one_device(records, "host_overhead")
    if timed.empty:
        return "No record yet.\n"
    layers = {cell["workload_args"]["layer"]: cell for cell in timed.to_dict("records")}
    raw = layers["raw driver"]["median_us"]
    rows = [
        (
            layer,
            f"{cell['median_us']:.2f} [{cell['q1_us']:.2f}, {cell['q3_us']:.2f}]",
            f"{cell['median_us'] - raw:+.2f}",
        )
        for layer, cell in layers.items()
    ]
    names = ("layer", "us a call, median [quartiles]", "above the raw driver")
    return f"{_markdown(names, rows)}\nRecords: {results.provenance(timed)}.\n"


def _claim_lines(claims_frame: pd.DataFrame) -> list[str]:
    names = ("source", "statement", "published", "found", "verdict")
    rows = (
        [str(claim[name]).replace("|", "\\|") for name in names]
        for claim in claims_frame.to_dict("records")
    )
    return _markdown(("source", "claim", *names[2:]), rows).splitlines()


def node_page() -> Path:
    """The page for owners of a ROCm node, whose table of support is generated."""
    return Path(__file__).resolve().parent / "ROCM_NODE.md"


def node_blocks() -> dict[str, str]:
    """Generate the texts that stand between markers in the page of `node_page`.

    Returns
    -------
    dict
        ``support``: the table of `topk_lab.support`. ``expected``: times of AMD devices, published.
    """
    rows = results.load_published("vllm_56743_rows")
    told = [
        (
            f"{row['concurrency']} sequences x {row['speculative_tokens']} tokens, "
            f"{row['context']} columns, {row['logits']}, {row['cache']}: vllm_generic, vllm_k512",
            f"{row['baseline_us']:.2f}, {row['candidate_us']:.2f}",
        )
        for row in rows.to_dict("records")
    ]
    figures = results.load_published("sglang_36004_figures")
    figures = figures[figures["quantity"] == "kernel_time"]
    told += [
        (f"{row['condition']}: sglang_block512", f"{row['value']:.1f}")
        for row in figures.to_dict("records")
    ]
    sources = "".join(f"- {results.provenance(table)}\n" for table in (rows, figures))
    return {
        "expected": f"{_markdown(('call', 'us'), told)}\n{sources}",
        "support": support.markdown(),
    }


def picture() -> bytes:
    """Draw how vllm_k512 finds the k-th key of a row with fewer unmasked logits than k.

    Returns
    -------
    bytes
        A PNG file.
    """
    from topk_lab import figures, reference, workloads

    row = workloads.make("masked_prefix", 1, 16_384, finite=300)[0]
    trace = reference.trace(row, 512, variant="vllm_k512")
    drawn = figures.trace_histograms(figures.trace_bins(trace))[0].figure
    picture = io.BytesIO()
    drawn.savefig(picture, format="png", dpi=110, metadata={"Software": None})
    return picture.getvalue()


def _marked(text: str, blocks: Mapping[str, str]) -> dict[str, re.Match[str]]:
    found = {match.group("name"): match for match in MARKED.finditer(text)}
    for name in blocks:
        if text.count(f"<!-- topk-lab:{name} -->") != 1 or name not in found:
            raise ValueError(
                f"text must hold one pair of markers <!-- topk-lab:{name} --> and "
                f"<!-- /topk-lab:{name} -->, each on its own line"
            )
    return found


def update_markers(text: str, blocks: Mapping[str, str]) -> str:
    r"""Put generated blocks between their markers.

    Parameters
    ----------
    text : str
        README.
    blocks : mapping
        Marker name -> text, as `blocks` returns it.

    Returns
    -------
    str
        The text with each block replaced, all else untouched.

    Raises
    ------
    ValueError
        A block without its pair of markers, or with two.

    Examples
    --------
    >>> from topk_lab import readme
    >>> text = "<!-- topk-lab:claims -->\nold\n<!-- /topk-lab:claims -->"
    >>> readme.update_markers(text, {"claims": "new\n"}).splitlines()[1]
    'new'
    """
    _marked(text, blocks)
    return MARKED.sub(
        lambda match: match["open"] + blocks.get(match["name"], match["body"]) + match["close"],
        text,
    )


def check_markers(text: str, blocks: Mapping[str, str]) -> list[str]:
    """Names of the blocks whose text in README differs from the generated one.

    Parameters
    ----------
    text, blocks
        As for `update_markers`.

    Returns
    -------
    list of str
        Empty if README is up to date.

    Raises
    ------
    ValueError
        A block without its pair of markers, or with two.
    """
    found = _marked(text, blocks)
    return [name for name, block in blocks.items() if found[name]["body"] != block]
