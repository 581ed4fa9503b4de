"""Owns the entry point: finds the command, imports it, and turns whatever happens into one line and an exit code."""

import contextlib
import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import click

from mapper import __version__
from mapper.cli.pipe import flush_stdout
from mapper.errors import MapperError

EXIT_OK = 0
EXIT_BAD_REQUEST = 2
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130

# A command's module is imported when the command is called; its short help stands here, so that `--help` is instant.
COMMANDS = {
    "explore": "Find, measure and rank ways to run an ONNX model; write a mapping sheet.",
    "show": "Print a mapping sheet again.",
    "calibrate": "Measure this machine's peaks anew and show them.",
    "doctor": "Say what this machine offers, what is missing and why.",
}
EPILOG = """
\b
Example:
  mapper explore squeezenet.onnx --budget 120s
  mapper show mapping/squeezenet

\b
Shell completion (bash; zsh and fish likewise):
  eval "$(_MAPPER_COMPLETE=bash_source mapper)"

\b
Exit codes: 0 pass, 1 regressed or nothing verified, 2 bad request or input,
3 inconclusive, 4 not comparable, 70 internal error, 130 interrupted.
"""


@dataclass(slots=True)
class Invocation:
    """What the user typed, for the sheet and for hints, and whether tracebacks are wanted."""

    arguments: tuple[str, ...]
    debug: bool = False

    @property
    def command(self) -> str:
        """The whole command line, quoted for a shell."""
        return shlex.join(("mapper", *self.arguments))


class Commands(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"mapper.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=Commands, epilog=EPILOG, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="mapper", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Log everything and print tracebacks.")
@click.pass_obj
def cli(invocation: Invocation, debug: bool) -> None:
    """Explore how an ONNX model should run on this machine, and what keeps it from running faster."""
    invocation.debug = debug


def main() -> NoReturn:
    """Run the command line that the process was started with, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every failure is one line on stderr."""
    invocation = Invocation(tuple(arguments))
    try:
        result = cli.main(list(arguments), prog_name="mapper", standalone_mode=False, obj=invocation)
        code = result if isinstance(result, int) else EXIT_OK
    except click.ClickException as error:
        code = _fail(_usage(error), EXIT_BAD_REQUEST)
    except MapperError as error:
        code = _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        code = _fail(f"interrupted{_how_to_go_on(invocation)}", EXIT_INTERRUPTED)
    except SystemExit as error:  # click's own: shell completion, or a pipe whose reader has gone
        code = EXIT_OK if isinstance(error.__context__, OSError) else int(error.code or 0)
    except Exception as error:
        code = _fail(_internal(error, invocation), EXIT_INTERNAL)
    flush_stdout()
    return code


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    with contextlib.suppress(OSError):
        click.echo(f"mapper: error: {_printable(line)}", err=True)
    return code


def _usage(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else "mapper"
    return f"{error.format_message().rstrip('.')}: see {path} --help"


def _how_to_go_on(invocation: Invocation) -> str:
    if "explore" not in invocation.arguments:
        return ""
    arguments = invocation.arguments if "--resume" in invocation.arguments else (*invocation.arguments, "--resume")
    return f": what was measured is kept; go on with: {shlex.join(('mapper', *arguments))}"


def _internal(error: Exception, invocation: Invocation) -> str:
    text = "".join(traceback.format_exception(error))
    kind = f"internal error: {type(error).__name__}: {error}"
    if invocation.debug:
        click.echo(text, err=True)
        return kind
    try:
        from mapper.cli.params import cache_dir  # noqa: PLC0415 - only a crash needs it
        from mapper.report.jsonfile import write_atomic  # noqa: PLC0415 - as above

        log = cache_dir(os.environ) / "last-error.log"
        write_atomic(log, f"{invocation.command}\n{text}".encode("utf-8", "backslashreplace"))
    except MapperError:
        return f"{kind} (run mapper --debug ... again for the traceback)"
    return f"{kind} (traceback in {log}, or run mapper --debug ...)"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
