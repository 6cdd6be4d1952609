"""What does ``topk-lab`` do? Each command is a thin layer over one function of the package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from topk_lab import __version__, device_cli

__all__ = ["main"]

# Refused input and missing parts exit with USAGE, failed checks with FAILED.
FAILED = 1
USAGE = 2


def _refusals() -> tuple[type[Exception], ...]:
    from topk_lab.code_objects import CodeObjectError
    from topk_lab.driver import DriverError
    from topk_lab.emulator import EmulationError
    from topk_lab.notebooks import NotebookError
    from topk_lab.toolchain import ToolchainError

    return (
        *(ValueError, TypeError, OSError, MemoryError),
        *(CodeObjectError, DriverError, EmulationError, NotebookError, ToolchainError),
    )


class _OneLineErrors(click.Group):
    """Turns a refusal into one line on standard error and exit code 2."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except click.exceptions.Exit:
            raise
        except click.ClickException:
            raise
        except Exception as error:
            if os.environ.get("TOPK_LAB_TRACEBACK") or not isinstance(error, _refusals()):
                raise
            click.echo(f"topk-lab: {' '.join(str(error).split())}", err=True)
            context.exit(USAGE)


@click.group(cls=_OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="topk-lab")
def main() -> None:
    """Exact per-row top-k selection: run it, check it, reproduce its experiments."""


def _targets(text: str) -> list[str]:
    from topk_lab.targets import TARGETS

    chosen = list(dict.fromkeys(text.split(",")))
    for target in chosen:
        if target not in TARGETS:
            raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    return chosen


def _require_usable(target: str) -> None:
    from topk_lab.targets import status

    state = status(target)
    if not state.usable:
        raise ValueError(f"target {target} is not usable: {state.reason}; fix: {state.fix}")


def _progress(items: Sequence[Any], label: str) -> Any:
    """Iterate with a progress bar on a terminal, silently elsewhere."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(items, label, console=console, disable=not console.is_terminal, transient=True)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--peers", is_flag=True, help="Import other packages' selections and list them too.")
@click.option(
    "--support", "whole", is_flag=True, help="Print the whole table of what is supported."
)
def doctor(as_json: bool, peers: bool, whole: bool) -> None:
    """Say for each target whether it is usable, and if not, why and what to do.

    With --peers, also which selections of other packages the bench can run here, and why not. With
    --support, which devices, versions, containers and partition modes are known, who ran them, and
    what is refused.
    """
    import dataclasses
    import json

    from topk_lab import code_objects, emulator, support, targets

    states = [targets.status(name) for name in targets.TARGETS]
    try:
        objects = code_objects.manifest()
    except code_objects.CodeObjectError:
        objects = []
    tools = emulator.toolchain_report()
    standings = []
    if peers:
        from topk_lab.bench import current_gpu, survey

        standings = survey(current_gpu())
    if as_json:
        report = {
            "targets": [dataclasses.asdict(state) for state in states],
            "code_objects": [
                {
                    "name": found.path.name,
                    "sha256": found.sha256,
                    "toolchain": found.toolchain,
                    "compiler": found.compiler,
                }
                for found in objects
            ],
            "emulator": tools,
        }
        report["support"] = [dataclasses.asdict(row) for row in support.rows()]
        if peers:
            report["peers"] = [standing._asdict() for standing in standings]
        click.echo(json.dumps(report, indent=1))
        return
    for state in states:
        said = state.detail if state.usable else f"{state.reason}; fix: {state.fix}"
        click.echo(f"{state.target:8} {'usable' if state.usable else 'no':7} {said}")
    for said in support.here():
        click.echo(f"support  {said}")
    click.echo("")
    for name, tool in tools.items():
        click.echo(f"emulator {name}: {tool or 'not found'}")
    for found in objects:
        click.echo(f"code     {found.path.name} {found.sha256[:16]} by {found.toolchain}")
    if whole:
        click.echo("")
        click.echo(support.markdown(), nl=False)
    if standings:
        click.echo("")
    for peer in standings:
        said = peer.reason or f"{peer.package} {peer.version or '?'}: {peer.entry_point}"
        click.echo(f"{peer.variant:33} {'no' if peer.reason else 'usable':7} {said}")


def _load_array(path: Path, name: str) -> Any:
    """A tensor file as an array: .npy without pickles, .pt with weights only."""
    import numpy as np

    if not path.is_file():
        raise FileNotFoundError(f"{name} must be a .npy or .pt file, found no file {path}")
    if path.suffix == ".npy":
        try:
            array = np.load(path, allow_pickle=False)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # a foreign file fails in as many ways as there are bytes
            raise ValueError(f"{name} must hold one array, got {path.name}: {error}") from error
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} must hold one array, got an archive named {path.name}")
        return array
    if path.suffix != ".pt":
        raise ValueError(f"{name} must be a .npy or .pt file, got {path.name}")
    import warnings

    import torch

    try:
        with warnings.catch_warnings():
            # What torch has to say about a foreign pickle is said by the refusal below.
            warnings.simplefilter("ignore")
            tensor = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{name} must hold one tensor, got {path.name}: {reason}") from error
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name} must hold one tensor, got {type(tensor).__name__}")
    if tensor.dtype not in (torch.float32, torch.int32):
        raise TypeError(f"{name} must be float32 or int32, got {tensor.dtype}")
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_neg():
        raise TypeError(f"{name} must be a plain dense tensor, got another kind in {path.name}")
    return tensor.detach().numpy()


@main.command()
@click.argument("logits", type=click.Path(path_type=Path))
@click.option("--k", type=int, required=True, help="Indices a row.")
@click.option("--row-ends", type=click.Path(path_type=Path), help="File of (num_rows,) int32.")
@click.option("--variant", default="auto", show_default=True)
@click.option("--target", default="numba", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help=".npy to write.")
@click.option("--seed", type=int, help="Emulated targets: order of waves and blocks.")
def select(
    logits: Path,
    k: int,
    row_ends: Path | None,
    variant: str,
    target: str,
    out: Path,
    seed: int | None,
) -> None:
    """Select the k greatest of each row of LOGITS, a float32 .npy or .pt file."""
    import numpy as np
    import torch

    from topk_lab import contract, registry, targets

    if out.suffix != ".npy":
        raise ValueError(f"--out must be a .npy file, got {out.name}")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"--out must lie in a folder that is there, got {out}")
    for name, source in (("logits", logits), ("row_ends", row_ends)):
        if source is not None and source.exists() and out.exists() and out.samefile(source):
            raise ValueError(f"--out must not be the file of the {name}, got {out.name} for both")
    _targets(target)
    rows = _load_array(logits, "logits")
    ends = None if row_ends is None else _load_array(row_ends, "row_ends")
    for name, array, dtype in (("logits", rows, np.float32), ("row_ends", ends, np.int32)):
        if array is not None and array.dtype != dtype:
            raise TypeError(f"{name} must be {np.dtype(dtype)}, got {array.dtype}")
    contract.check_call(
        torch.from_numpy(rows), k, row_ends=None if ends is None else torch.from_numpy(ends)
    )
    if variant == "auto":
        on_cpu = {"numba": registry.auto("cpu", *rows.shape, k).variant, "torch": "torch"}
        variant = on_cpu.get(target) or registry.gated(*rows.shape, k)
    _require_usable(target)
    outcome = targets.run(target, variant, rows, k, row_ends=ends, seed=seed)
    violations = contract.find_violations(rows, outcome.indices, row_ends=ends)
    if violations:
        click.echo(f"topk-lab: {outcome.variant} on {target} is wrong: {violations[0]}", err=True)
        raise click.exceptions.Exit(FAILED)
    part = out.with_name(f".{out.name}.part")
    try:
        with part.open("wb") as file:
            np.save(file, outcome.indices)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    click.echo(
        f"{outcome.variant} on {target}: {rows.shape[0]} rows of {rows.shape[1]}, k {k}, exact; "
        f"wrote {out.name} {outcome.indices.shape} int32"
    )


@main.command()
@click.option("--rows", type=int, help="Query rows.")
@click.option("--cols", type=int, help="Width of the logits (columns).")
@click.option("--k", type=int, default=512, show_default=True, help="Indices a row.")
@click.option("--compress-ratio", type=int, default=4, show_default=True, help="Tokens a column.")
@click.option("--arch", default="gfx950", show_default=True)
@click.option("--phase", default="decode", show_default=True, help="prefill or decode.")
@click.option("--max-model-len", type=int, help="Tokens. Default: what fills the width.")
@click.option("--max-seq-len", type=int, help="Tokens. Default: what fills the width.")
@click.option("--full-graph", is_flag=True, help="The call is captured in a FULL graph.")
@click.option("--no-aiter", is_flag=True, help="AITER can't be imported.")
@click.option("--policy", default="merged", show_default=True, help="merged or live_length.")
@click.option("--table", is_flag=True, help="Print the rules of --policy and its truth table.")
def dispatch(
    rows: int | None,
    cols: int | None,
    k: int,
    no_aiter: bool,
    policy: str,
    table: bool,
    **asked: Any,
) -> None:
    """Say which kernel vLLM on ROCm chooses for a call, and which variant here stands for it."""
    from topk_lab import gate

    if table:
        if rows is not None or cols is not None:
            raise ValueError("--table must stand without --rows and --cols: it asks of no call")
        truth = gate.truth_table(policy, collapse=True)
        for rule in gate.POLICIES[policy]:
            phases = " and ".join(rule.phases)
            click.echo(f"{rule.number}  {phases:18}  {rule.condition}: {rule.kernel}")
        click.echo("")
        click.echo(truth.drop(columns="policy").to_string(index=False))
        return
    if rows is None or cols is None:
        raise ValueError("--rows and --cols must be given, or --table")
    click.echo(str(gate.dispatch(rows, cols, k, aiter=not no_aiter, policy=policy, **asked)))


@main.command()
@click.option("--variant", default="vllm_k512", show_default=True)
@click.option("--target", default="numba", show_default=True, help="Comma-separated.")
@click.option("--cases", "names", default="all", show_default=True, help="Comma-separated lists.")
@click.option("--seed", type=int, help="Emulated targets: order of waves and blocks.")
@click.option("--record", type=click.Path(path_type=Path), help="Folder to append records to.")
def verify(variant: str, target: str, names: str, seed: int | None, record: Path | None) -> None:
    """Run case lists on targets and hold every answer against the oracle."""
    from topk_lab import verify as verifying

    wanted = list(verifying.EXPERIMENTS) if names == "all" else names.split(",")
    planned = [
        check
        for one_target in _targets(target)
        for name in wanted
        for check in verifying.checks(name, variant, one_target, seed)
    ]
    if not planned:
        raise ValueError(f"cases must ask something of {variant} on {target}, {names} asks nothing")
    for one_target in {check.target for check in planned}:
        _require_usable(one_target)
    recorder = None if record is None else verifying.recorder(record, _targets(target))
    failures = 0
    for check in _progress(planned, "verify"):
        finding = verifying.run(check)
        failures += not check.holds(finding)
        if recorder is not None:
            verifying.record(recorder, check, finding)
        click.echo(verifying.line(check, finding))
    click.echo(f"{len(planned) - failures} of {len(planned)} checks as due")
    if failures:
        raise click.exceptions.Exit(FAILED)


@main.command()
@click.option("--variant", default="vllm_k512", show_default=True)
@click.option("--target", default="gfx950", show_default=True, help="An emulated target.")
@click.option("--rows", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--cols", type=click.IntRange(min=1), required=True, help="Logits a row.")
@click.option("--k", type=int, default=512, show_default=True, help="Indices a row.")
@click.option("--workload", default="normal", show_default=True, help="Comma-separated, or all.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the workload.")
@click.option("--record", type=click.Path(path_type=Path), help="Folder to append records to.")
def profile(
    variant: str,
    target: str,
    rows: int,
    cols: int,
    k: int,
    workload: str,
    seed: int,
    record: Path | None,
) -> None:
    """Count what the compiled code does, beside the rocprofv3 counters that must agree."""
    from topk_lab import profile as profiling
    from topk_lab import verify as verifying
    from topk_lab import workloads

    if target in profiling.HARDWARE_COUNTERS:
        _require_usable(target)
    names = workloads.names() if workload == "all" else workload.split(",")
    for name in names:  # refused before anything is said
        workloads.describe(name)
    recorder = None if record is None else verifying.recorder(record, [target])
    wrong = []
    for name in names:
        found = profiling.profile(variant, target, rows, cols, workload=name, k=k, seed=seed)
        click.echo(f"{found.variant} on {target}: {rows} rows of {cols}, k {k}, {name}; emulated")
        for line in profiling.lines(found):
            click.echo(line)
        if recorder is not None:
            profiling.record(recorder, found)
        if found.reason:
            wrong.append(f"{found.variant} on {target} is wrong: {name}: {found.reason}")
    for reason in wrong:
        click.echo(f"topk-lab: {reason}", err=True)
    if wrong:
        raise click.exceptions.Exit(FAILED)


@main.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("report"),
    show_default=True,
    help="Folder of index.html and the records behind it.",
)
@click.option("--target", default="numba,gfx950,gfx942,gfx90a", show_default=True)
@click.option("--keep", is_flag=True, help="Make this run's records the committed ones in data.")
def reproduce(out: Path, target: str, keep: bool) -> None:
    """Re-run the sources' own test lists, evaluate every claim, write a report."""
    from topk_lab import reproduce as reproducing

    outcome = reproducing.reproduce(out, chosen=_targets(target), track=_progress, say=click.echo)
    _print_claims(outcome.claims)
    for name, seconds in outcome.stages:
        click.echo(f"{seconds:7.1f} s  {name}")
    click.echo(f"report: {outcome.page}")
    if outcome.failures:
        for failure in outcome.failures:
            click.echo(f"FAILED {failure}", err=True)
        raise click.exceptions.Exit(FAILED)
    if keep:
        kept = reproducing.keep(out / "records")
        click.echo(f"{len(kept)} record files are now those of data")


@main.command()
@click.argument("experiment")
@click.option("--axis", "axes", multiple=True, help="name=value,value; repeatable.")
@click.option("--shard", default="1/1", show_default=True, help="i/n: every n-th cell.")
@click.option("--resume", is_flag=True, help="Leave out cells that the files already hold.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Folder of record files, or one .jsonl file.",
)
def bench(experiment: str, axes: tuple[str, ...], shard: str, resume: bool, out: Path) -> None:
    """Time EXPERIMENT on this machine's GPU: exactness first, then interleaved samples.

    EXPERIMENT is reference_shapes, neg_inf_contention, latency_vs_batch, peer_shapes, vllm_matrix,
    profiled_pairs, graph_calls, graph_replay, split_policy, delegate_matrix, delegate_shapes,
    delegate_rows, delegate_large_k, delegate_growth, delegate_members, or host_overhead, which
    takes no axes; or cpu_selection, which is timed on the CPU.
    """
    from topk_lab import bench as benching
    from topk_lab import verify as verifying

    chosen = {}
    for axis in axes:
        name, equals, values = axis.partition("=")
        if not equals or not values:
            raise ValueError(f"--axis must read name=value,value, got {axis!r}")
        chosen[name] = values.split(",")
    part, slash, parts = shard.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal()):
        raise ValueError(f"--shard must read i/n, got {shard!r}")
    alone = experiment.replace("-", "_") == "host_overhead"
    if alone and (axes or resume or shard != "1/1"):
        raise ValueError("host_overhead must be run whole, got --axis, --shard or --resume")
    make_device = benching.TorchDevice
    if not alone:
        make_device = benching.planned(experiment, chosen, (int(part), int(parts)))[0].device
    device = make_device()
    recorder = verifying.recorder(out, [device.target])
    if alone:
        benching.host_overhead(recorder, say=click.echo)
        return
    recorded = benching.run(
        experiment,
        recorder,
        device=device,
        axes=chosen,
        shard=(int(part), int(parts)),
        resume=resume,
        track=_progress,
        say=click.echo,
    )
    failures = [cell for cell in recorded if cell["status"] in ("wrong", "error")]
    skipped = sum(cell["status"] == "skipped" for cell in recorded)
    click.echo(f"{len(recorded)} cells, {len(failures)} failed, {skipped} skipped")
    if failures:
        raise click.exceptions.Exit(FAILED)


@main.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path), required=False)
@click.option("--baseline", help="With --candidate: A's cells of this variant.")
@click.option("--candidate", help="Against these of B, or of A where B is left out.")
@click.option("--across", multiple=True, help="device or policy may differ; repeatable.")
@click.option("--threshold", type=float, default=0.02, show_default=True, help="Of the medians.")
@click.option("--min-samples", type=int, default=10, show_default=True, help="Of either side.")
@click.option(
    "--fail-on",
    multiple=True,
    help="Verdict that exits with 1; slower includes broken; repeatable.",
)
@click.option("--all", "show_all", is_flag=True, help="Print unchanged cells too.")
def compare(
    a: Path,
    b: Path | None,
    baseline: str | None,
    candidate: str | None,
    across: tuple[str, ...],
    threshold: float,
    min_samples: int,
    fail_on: tuple[str, ...],
    show_all: bool,
) -> None:
    """Judge the times of B against those of A: record files, or folders of them.

    Of a cell that was run more than once the last run counts. With --baseline and --candidate a
    variant is judged against another.
    """
    from topk_lab import results
    from topk_lab.bench import compare as comparing
    from topk_lab.contract.words import check_word

    for word in fail_on:
        check_word("--fail-on", word, comparing.VERDICTS)
    frame_a = results.load(a)
    same_file = b is not None and b.exists() and a.samefile(b)
    frame_b = None if b is None else frame_a if same_file else results.load(b)
    lines = comparing.compare(
        *(frame_a, frame_b),
        baseline=baseline,
        candidate=candidate,
        across=across,
        threshold=threshold,
        min_samples=min_samples,
    )
    for name, frame in (("A", frame_a), ("B", frame_a if frame_b is None else frame_b)):
        click.echo(f"{name}: {results.provenance(results.latest(frame))}")
    # Two variants seldom have all cells in common.
    unchanged = (*comparing.UNCHANGED, *(("missing", "new") if baseline else ()))
    shown = lines if show_all else lines[~lines["verdict"].isin(unchanged)]
    if len(shown):
        _print_comparison(shown)
    found = lines["verdict"].value_counts()
    click.echo(", ".join(f"{found[word]} {word}" for word in comparing.VERDICTS if word in found))
    for mean in comparing.summary(lines).itertuples():
        click.echo(
            f"{mean.variant}: B takes {mean.geomean:.3f} [{mean.low:.3f}, {mean.high:.3f}] of A's "
            f"time (geomean; cells {mean.cells}, from {mean.least:.3f} to {mean.greatest:.3f})"
        )
    failing = {verdict for word in fail_on for verdict in comparing.fails_with(word)}
    if failing & set(lines["verdict"]):
        raise click.exceptions.Exit(FAILED)


def _print_comparison(lines: Any) -> None:
    """One line a cell, however long: thousands of them are searched, not looked at."""
    from topk_lab.bench import compare as comparing

    several = lines["variant"].nunique() > 1
    ordered = lines.assign(
        place=lines["verdict"].map(comparing.VERDICTS.index), far=-lines["ratio"].sub(1).abs()
    ).sort_values(["place", "far"], kind="stable")
    rows = [("verdict", "B / A", "A, us", "B, us", "cell", "why")]
    headings = {}
    for (experiment, variant), group in ordered.groupby(["experiment", "variant"], sort=False):
        headings[len(rows)] = f"{experiment}, {variant}" if several else experiment
        for line in group.to_dict("records"):
            times = [
                f"{line[f'median_us_{side}']:.2f} "
                f"[{line[f'low_us_{side}']:.2f}, {line[f'high_us_{side}']:.2f}]"
                if line[f"n_{side}"] > 0
                else ""
                for side in "ab"
            ]
            ratio = f"{line['ratio']:.3f}" if line["ratio"] > 0 else ""
            # The numbers beside these say why.
            why = "" if line["verdict"] in ("faster", "slower", "same") else line["reason"]
            cell = comparing.describe(line)
            rows.append((line["verdict"], ratio, *times, cell, " ".join(why.split())))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for place, row in enumerate(rows):
        if place in headings:
            click.echo(f"\n{headings[place]}")
        click.echo("  ".join(map(str.ljust, row, widths)).rstrip())
    click.echo("")


def _print_claims(frame: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("claim", "published", "found", "verdict")
    for source, group in frame.groupby("source", sort=False):
        table.add_section()
        table.add_row(f"[bold]{source}[/bold]", "", "", "")
        for claim in group.to_dict("records"):
            table.add_row(claim["statement"], claim["published"], claim["found"], claim["verdict"])
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    console.print(table)


def _committed() -> tuple[Any, Any]:
    """The records in data, and the claims as they decide them."""
    from topk_lab import claims, results

    records = results.load_committed()
    return records, claims.evaluate(records)


@main.command()
def claims() -> None:
    """Print the claims table of the committed records."""
    _print_claims(_committed()[1])


@main.command()
@click.option("--check", is_flag=True, help="Only say whether README agrees with the records.")
def report(check: bool) -> None:
    """Bring README's generated blocks and picture up to date with the committed records."""
    from topk_lab import readme as generating
    from topk_lab import results

    readme = results.data_root().parent / "README.md"
    if not readme.is_file():
        raise FileNotFoundError("topk-lab report works in a checkout, found no README.md")
    records, frame = _committed()
    blocks = generating.blocks(frame, records)
    pages = {readme: blocks, generating.node_page(): generating.node_blocks()}
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    if check:
        stale = {page: generating.check_markers(texts[page], pages[page]) for page in pages}
        for page, names in stale.items():
            if names:
                click.echo(f"{page.name} differs from the records: {', '.join(names)}", err=True)
        if any(stale.values()):
            raise click.exceptions.Exit(FAILED)
        click.echo("README.md agrees with the records")
        return
    for page, text in texts.items():
        page.write_text(generating.update_markers(text, pages[page]), encoding="utf-8")
    picture = readme.parent / "notebooks" / "radix_steps.png"
    picture.write_bytes(generating.picture())
    click.echo(f"README.md: {', '.join(blocks)}, {picture.name}")


@main.command()
@click.option("--check", is_flag=True, help="Only say which notebooks are out of date.")
def notebooks(check: bool) -> None:
    """Execute the notebook sources and write the .ipynb beside them."""
    from topk_lab import notebooks as building

    if check:
        stale = building.stale()
        if stale:
            click.echo(f"out of date: {', '.join(stale)}", err=True)
            raise click.exceptions.Exit(FAILED)
        click.echo("notebooks agree with their sources")
        return
    for name in building.names():
        building.build([name])
        click.echo(f"built {name}")


for command in (
    *(device_cli.firstlight, device_cli.firstlight_worker),
    *(device_cli.data, device_cli.isa_sheet),
):
    main.add_command(command)
