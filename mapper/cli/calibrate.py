"""Owns `mapper calibrate`: measures the machine's peaks anew and shows them."""

import click

from mapper.cli.main import Invocation
from mapper.cli.output import emit, emit_rendered, set_up_logging, stdout_reserved
from mapper.cli.params import cache_dir
from mapper.cli.progress import make_progress
from mapper.report.jsonfile import record_bytes
from mapper.report.machine import render_machine

EPILOG = """
\b
Examples:
  mapper calibrate
  mapper calibrate --threads 1 --json
"""


@click.command("calibrate", epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print the machine as JSON on stdout.")
@click.option("--threads", type=click.IntRange(1, 4096), help="Threads to calibrate for. [what this process may use]")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.pass_obj
def command(invocation: Invocation, as_json: bool, threads: int | None, quiet: bool) -> int:
    """Measure the peak FLOP rates and bandwidths of this machine anew, keep them for later runs, and show them."""
    from mapper.flows.calibrate import calibrate  # noqa: PLC0415 - so that --help does not load numpy and onnx

    set_up_logging(invocation.debug)
    progress = make_progress(quiet)
    with stdout_reserved():
        try:
            machine = calibrate(threads, cache_dir(), progress)
        finally:
            progress.done()
    if as_json:
        emit(record_bytes(machine).decode())
    else:
        emit_rendered(lambda console: render_machine(machine, console))
    return 0
