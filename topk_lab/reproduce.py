"""Do the sources' own tests, run anew here, bear out what they and this package claim?

`reproduce` runs the case lists on the Numba twins and on the compiled AMD code, evaluates every
claim from what was recorded, executes the notebooks and writes one page about it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from topk_lab import schedules, targets, verify

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TARGETS", "Reproduction", "keep", "planned_checks", "reproduce"]

TARGETS = ("numba", *reversed(targets.AMD_TARGETS))

# What each experiment is run for, and with which seed of the emulator's order of waves and blocks;
# an experiment that asks nothing of a target has no checks there.
PROGRAMME = (
    ("boundaries", "vllm_k512", None),
    ("masked_replay", "vllm_k512", None),
    ("mixed_replay", "vllm_k512", None),
    ("one_d_lengths", "vllm_k512", None),
    ("neg_inf_rule", "vllm_k512", None),
    ("neg_inf_atomics", "vllm_k512", None),
    ("lds_atomics", "vllm_k512", None),
    *(
        (experiment, variant, seed)
        for variant in ("vllm_k512", "vllm_k512_uncrowded", "vllm_generic")
        for experiment, seed in (("workloads", None), ("workloads", 1), ("pass_by_pass", None))
    ),
    *(
        (experiment, variant, seed)
        for variant in ("sglang_block512", "sglang_block1024")
        for experiment, seed in (
            ("sglang", None),
            ("workloads", None),
            ("workloads", 1),
            ("pass_by_pass", None),
            ("page_tables", None),
        )
    ),
    *(
        (experiment, "aiter_one_block", seed)
        for experiment, seed in (
            ("workloads", None),
            ("workloads", 1),
            ("stable_answers", None),
            ("stable_answers", 1),
            ("pass_by_pass", None),
            ("page_tables", None),
        )
    ),
    *(
        (experiment, variant, seed)
        for variant in ("shared_histogram", "delegate")
        for experiment, seed in (
            ("workloads", None),
            ("workloads", 1),
            ("pass_by_pass", None),
            ("page_tables", None),
        )
    ),
    ("stable_answers", "delegate", None),
    ("page_tables", "vllm_k512", None),
    ("page_tables", "vllm_generic", None),
    *(("graph_replays", variant, None) for variant in schedules.POLICIES),
    ("exactness_under_overflow", "sglang_block1024", None),
    ("sglang_index_sets", "sglang_block1024", None),
)


@dataclass(frozen=True)
class Reproduction:
    """What came out.

    Attributes
    ----------
    claims : pandas.DataFrame
        As `topk_lab.claims.evaluate` returns it.
    failures : tuple of str
        One line a check that did not find what was due, and a claim that records contradict.
    stages : tuple of (str, float)
        What was done, and how long it took (s).
    page : Path
        The report.
    """

    claims: pd.DataFrame
    failures: tuple[str, ...]
    stages: tuple[tuple[str, float], ...]
    page: Path


def planned_checks(target: str) -> list[verify.Check]:
    """Every check of the programme on a target.

    Parameters
    ----------
    target : str
        One of `TARGETS`.

    Returns
    -------
    list of topk_lab.verify.Check
    """
    return [
        check
        for experiment, variant, seed in PROGRAMME
        if seed is None or target in targets.AMD_TARGETS
        for check in verify.checks(experiment, variant, target, seed)
    ]


def reproduce(
    out_dir: Path,
    *,
    chosen: Sequence[str] = TARGETS,
    with_notebooks: bool = True,
    track: Callable[[Sequence[verify.Check], str], Iterable[verify.Check]] | None = None,
    say: Callable[[str], None] = print,
) -> Reproduction:
    """Run everything and write ``index.html``.

    Parameters
    ----------
    out_dir : Path
        Folder of the report and of the records behind it (``records``, laid out as ``data``; those
        of an earlier run are replaced).
    chosen : sequence of str
        Targets.
    with_notebooks : bool, default True
        Execute the notebooks too.
    track : callable, optional
        Wraps a list of checks, to show progress.
    say : callable, default print
        Takes a line about what is being done.

    Returns
    -------
    Reproduction

    Raises
    ------
    topk_lab.code_objects.CodeObjectError
        A code object is missing or stale.
    ValueError
        A target that can't be used here.
    """
    from topk_lab import claims, figures, report, results

    for target in chosen:
        state = targets.status(target)
        if not state.usable:
            raise ValueError(f"target {target} is not usable: {state.reason}; fix: {state.fix}")
    records_dir = out_dir / "records"
    for earlier in records_dir.rglob("*.jsonl"):
        earlier.unlink()
    recorder = verify.recorder(records_dir, chosen)
    stages: list[tuple[str, float]] = []
    failures: list[str] = []

    def finish(name: str, begin: float) -> None:
        stages.append((name, time.perf_counter() - begin))
        say(f"{name}: {stages[-1][1]:.1f} s")

    for target in chosen:
        begin = time.perf_counter()
        planned = planned_checks(target)
        for check in planned if track is None else track(planned, target):
            finding = verify.run(check)
            verify.record(recorder, check, finding)
            if not check.holds(finding):
                failures.append(verify.line(check, finding))
                say(failures[-1])
        finish(f"{len(planned)} checks on {target}", begin)

    begin = time.perf_counter()
    records = results.load(records_dir)
    frame = claims.evaluate(records)
    failures += [f"claim {name} is not reproduced" for name in claims.not_reproduced(frame)]
    finish(f"{len(frame)} claims", begin)

    pages = {}
    if with_notebooks:
        begin = time.perf_counter()
        from topk_lab import notebooks

        for name in notebooks.names():
            executed = notebooks.execute(name, out_dir / "notebooks")
            pages[name] = report.notebook_html(executed)
        finish(f"{len(pages)} notebooks", begin)

    page = report.build(
        records,
        frame,
        pages,
        out_dir,
        runs=results.load_runs(records_dir),
        stages=stages,
        traces=_traces(figures.trace_bins),
    )
    return Reproduction(frame, tuple(failures), tuple(stages), page)


def keep(records_dir: Path) -> list[Path]:
    """Replace the committed records of the same experiments and targets.

    Parameters
    ----------
    records_dir : Path
        ``records`` of a reproduction.

    Returns
    -------
    list of Path
        The files in ``data``.
    """
    from topk_lab import results

    kept = []
    for source in sorted(records_dir.rglob("*.jsonl")):
        place = results.data_root() / source.relative_to(records_dir)
        place.parent.mkdir(parents=True, exist_ok=True)
        kept.append(shutil.copy(source, place))
    return kept


def _traces(trace_bins: Callable[..., pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """How vllm_k512 finds the k-th key in a normal row and in one cut off by its mask."""
    from topk_lab import reference, workloads

    rows = {
        "a normal row": workloads.make("normal", 1, 16_384)[0],
        "a row with fewer unmasked logits than k": workloads.make(
            "masked_prefix", 1, 16_384, finite=300
        )[0],
    }
    return {
        title: trace_bins(reference.trace(row, 512, variant="vllm_k512"))
        for title, row in rows.items()
    }
