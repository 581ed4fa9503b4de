"""Owns `mapper show`: prints a sheet that was written earlier."""

from pathlib import Path

import click

from mapper.cli.output import emit, emit_rendered
from mapper.report.sheet import read_sheet, sheet_bytes
from mapper.report.terminal import render_sheet

EPILOG = """
\b
Examples:
  mapper show mapping/squeezenet
  mapper show mapping/squeezenet/sheet.json --json
"""


@click.command("show", epilog=EPILOG)
@click.argument("path", metavar="DIR|SHEET.JSON", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the sheet as JSON on stdout.")
@click.option("--top", type=click.IntRange(min=0), default=12, show_default=True, help="How many kernels to list.")
def command(path: Path, as_json: bool, top: int) -> int:
    """Print a mapping sheet again, from the folder or file that `mapper explore` wrote."""
    sheet = read_sheet(path)
    if as_json:
        emit(sheet_bytes(sheet).decode())
        return 0
    emit_rendered(lambda console: render_sheet(sheet, console, top))
    return 0
