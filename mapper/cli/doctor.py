"""Owns `mapper doctor`: says what this machine offers."""

import click

from mapper.cli.main import Invocation
from mapper.cli.output import emit, emit_rendered, set_up_logging, stdout_reserved
from mapper.cli.params import cache_dir
from mapper.report.jsonfile import record_bytes
from mapper.report.machine import render_doctor

EPILOG = """
\b
Example:
  mapper doctor
"""


@click.command("doctor", epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON on stdout.")
@click.pass_obj
def command(invocation: Invocation, as_json: bool) -> int:
    """Say what this machine offers (target, threads, counters, meters, GPU), what is missing, and why."""
    from mapper.flows.doctor import doctor  # noqa: PLC0415 - so that --help does not load numpy and onnx

    set_up_logging(invocation.debug)
    with stdout_reserved():
        lines = doctor(cache_dir())
    if as_json:
        emit(record_bytes(lines).decode())
    else:
        emit_rendered(lambda console: render_doctor(lines, console))
    return 0
