"""Owns `mapper explore`: flags in, request to the flow, sheet out."""

from pathlib import Path
from typing import get_args

import click

from mapper.cli.main import Invocation
from mapper.cli.output import emit, emit_rendered, set_up_logging, stdout_reserved
from mapper.cli.params import as_mapping, cache_dir
from mapper.cli.params import budget as budget_type
from mapper.cli.params import dim as dim_type
from mapper.cli.params import shape as shape_type
from mapper.cli.progress import make_progress
from mapper.config import STRATEGIES, Budget, ExploreRequest
from mapper.records import Objective
from mapper.report.sheet import sheet_bytes
from mapper.report.terminal import render_sheet

EPILOG = """
\b
Examples:
  mapper explore squeezenet.onnx
  mapper explore zoo:ppocr-det --budget 120s --threads 2
  mapper explore detector.onnx --dim batch=1 --shape image=1,3,320,320
  mapper explore squeezenet.onnx --schedules edited.json --budget 0
"""
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("explore", epilog=EPILOG)
@click.argument("model")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the sheet. [mapping/MODEL]")
@click.option(
    "--dim",
    "dims",
    type=dim_type,
    metavar="NAME=VALUE",
    multiple=True,
    help="Bind a named dynamic dimension; repeatable.",
)
@click.option(
    "--shape", "shapes", type=shape_type, metavar="INPUT=SHAPE", multiple=True, help="Bind a whole input; repeatable."
)
@click.option("--inputs", type=_FILE, metavar="FILE.npz", help="Your own input tensors, by input name.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="For made-up inputs.")
@click.option(
    "--budget", type=budget_type, metavar="TRIALS|TIME", help="Candidates to measure (200) or time (120s, 2m)."
)
@click.option("--threads", type=click.IntRange(1, 4096), help="Threads to map for. [what this process may use]")
@click.option("--target", metavar="T", help="Compilation target, as TVM writes it. [this machine]")
@click.option("--schedules", type=_FILE, metavar="FILE", help="Start from this schedule file.")
@click.option(
    "--strategy", type=click.Choice(STRATEGIES), default=STRATEGIES[0], show_default=True, help="How to search tiles."
)
@click.option(
    "--objective",
    type=click.Choice(get_args(Objective)),
    default="latency",
    show_default=True,
    help="What to rank by; energy and edp (energy times delay) need a meter.",
)
@click.option("--resume", is_flag=True, help="Go on with an interrupted search: the budget counts its trials.")
@click.option("--fresh", is_flag=True, help="Measure everything anew, whatever earlier runs have measured.")
@click.option("--only", multiple=True, metavar="NODE|KERNEL", help="Search this node or kernel only; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the sheet as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.pass_obj
def command(  # noqa: PLR0913 - one parameter a flag, as click has it
    invocation: Invocation,
    model: str,
    *,
    out: Path | None,
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    inputs: Path | None,
    seed: int,
    budget: Budget | None,
    threads: int | None,
    target: str | None,
    schedules: Path | None,
    strategy: str,
    objective: Objective,
    resume: bool,
    fresh: bool,
    only: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> int:
    """Find, measure and rank ways to run MODEL on this machine, and write a mapping sheet.

    MODEL is an ONNX file, or zoo:NAME for one of the models that mapper can make itself. Ends with 0 when at least
    one mapping is verified, else with 1.
    """
    request = ExploreRequest(
        model=model,
        out_dir=out,
        dims=as_mapping("--dim", dims),
        shapes=as_mapping("--shape", shapes),
        inputs_npz=inputs,
        seed=seed,
        budget=budget or Budget(),
        threads=threads,
        target=target,
        schedules=schedules,
        strategy=strategy,
        objective=objective,
        resume=resume,
        fresh=fresh,
        only=only,
        cache_dir=cache_dir(),
        command=invocation.command,
    )
    return _explore(request, invocation, as_json=as_json, quiet=quiet)


def _explore(request: ExploreRequest, invocation: Invocation, *, as_json: bool, quiet: bool) -> int:
    from mapper.flows.explore import explore  # noqa: PLC0415 - so that --help does not load numpy and onnx

    set_up_logging(invocation.debug)
    progress = make_progress(quiet)
    with stdout_reserved():
        try:
            sheet = explore(request, progress)
        finally:
            progress.done()
    if as_json:
        emit(sheet_bytes(sheet).decode())
    else:
        emit_rendered(lambda console: render_sheet(sheet, console))
    return 0 if any(mapping.verified.passed for mapping in sheet.mappings) else 1
