"""What does ``topk-lab`` do for the owner of a device, beside the commands of `topk_lab.cli`?"""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["data", "firstlight", "firstlight_worker", "isa_sheet"]

FAILED = 1  # as topk_lab.cli has it

_TARGET = click.option(
    "--target", type=click.Choice(["hip", "cuda"]), required=True, help="The device's platform."
)


@click.command()
@_TARGET
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the page and the record.  [default: firstlight-TARGET]",
)
@click.option("--minutes", type=float, default=10.0, show_default=True, help="At most, about.")
@click.option("--quick", is_flag=True, help="Run little of each list.")
@click.option("--only", multiple=True, help="A check, or check/variant, again; repeatable.")
@click.option("--fresh", is_flag=True, help="Go on with no record of before.")
def firstlight(
    target: str,
    out: Path | None,
    minutes: float,
    quick: bool,
    only: tuple[str, ...],
    fresh: bool,
) -> None:
    """Try all that the package claims of this machine's device, in ten minutes.

    Leaves a page to read and a record to send back. An interrupted run goes on where it ended; what
    failed, or found no time, is run again.
    """
    from topk_lab import firstlight as running

    folder = out or Path(f"firstlight-{target}")
    outcome = running.run(
        target, folder, minutes=minutes, quick=quick, only=only, fresh=fresh, say=click.echo
    )
    failures = outcome.failures
    click.echo(
        f"{len(outcome.reports)} parts, {len(failures)} failed, {outcome.seconds:.0f} s; "
        f"page: {outcome.page}; record: {outcome.record}"
    )
    for unit, report in failures.items():
        click.echo(f"FAILED {unit}: {report.reason}", err=True)
        if report.cause:
            click.echo(f"       likely cause: {report.cause}", err=True)
        click.echo(f"       again: {running.repeat(unit, target)[0]}", err=True)
    if failures:
        raise click.exceptions.Exit(FAILED)


@click.command(hidden=True)
@_TARGET
@click.option("--record", type=click.Path(path_type=Path), required=True)
@click.option("--quick", is_flag=True)
def firstlight_worker(target: str, record: Path, quick: bool) -> None:
    """Run the parts of a first run that standard input names, for `firstlight`."""
    from topk_lab.firstlight.supervisor import COMMAND
    from topk_lab.firstlight.worker import work

    work(target, record, quick, COMMAND)


@click.group()
def data() -> None:
    """Records: take one in that somebody else sends."""


@data.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--root", type=click.Path(path_type=Path), help="Folder of records.  [default: data]")
def add(file: Path, root: Path | None) -> None:
    """Check FILE, the record of a first run, and file it under measured/<device>.

    The claims table and the notebooks take its cells up from there.
    """
    from topk_lab import claims, contributions, results

    filed = contributions.add(file, root)
    for place, count in filed.items():
        click.echo(f"{count:5} cells: {place.parent.name}/{place.name}")
    kinds = ("measured", "emulated")
    base = root or results.data_root()
    records = results.load([base / kind for kind in kinds if (base / kind).is_dir()])
    click.echo(claims.summary_line(claims.evaluate(records)))
    click.echo("now: topk-lab report, then make notebooks; commit what they change")


@click.command("isa-sheet")
@click.option("--check", is_flag=True, help="Only say what differs from the committed sheet.")
def isa_sheet(check: bool) -> None:
    """Write the sheet of registers, LDS and instructions of every compiled AMD kernel."""
    from topk_lab import isa_sheet as writing

    made = writing.make()
    if check:
        differences = writing.differences(writing.load(), made)
        for difference in differences:
            click.echo(difference, err=True)
        if differences:
            click.echo(f"the sheet differs; {writing.COMMAND} writes it anew", err=True)
            raise click.exceptions.Exit(FAILED)
        click.echo("the sheet agrees with the compiled kernels")
        return
    for path in writing.write(made):
        click.echo(f"wrote {path.name}")
