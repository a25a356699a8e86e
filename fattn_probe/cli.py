"""The command line: the program's own options, and the exit code of every ending."""

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Annotated, NoReturn

import typer

from fattn_probe.commands import Commands
from fattn_probe.console import NOTES, OUT, STDOUT, show_error
from fattn_probe.errors import FattnProbeError, InputError, MachineError, machine_error
from fattn_probe.files import writing

HELP = "Build, run, inspect and check llama.cpp's CUDA flash-attention kernels, on a GPU or on a simulated one."
INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 and the signal's number."""
app = typer.Typer(cls=Commands, help=HELP, no_args_is_help=True, pretty_exceptions_enable=False)


def show_version(wanted: bool) -> None:
    """Print the version, and end."""
    if wanted:
        from fattn_probe.run.provenance import version  # reads the metadata of packages, for this option only

        print(f"fattn-probe {version('fattn-probe')}")
        raise typer.Exit


def show_programs(wanted: bool) -> None:
    """Print each program that is run, on stderr."""
    if wanted:
        from rich.logging import RichHandler  # for this option only

        handler = RichHandler(console=NOTES, show_time=False, show_path=False, show_level=False)
        logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])


@app.callback()
def everything(
    _version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    _verbose: Annotated[
        bool, typer.Option("-v", "--verbose", callback=show_programs, help="Print each program that is run.")
    ] = False,
) -> None:
    """The options before the command."""


@contextlib.contextmanager
def exit_codes(as_json: bool = False) -> Iterator[None]:
    """Turn exceptions into exit codes, only here; with `as_json`, stdout gets the error as a document."""
    OUT.answered = False
    try:
        yield
        with writing(STDOUT):
            sys.stdout.flush()  # a full disk must show here, before the exit code is chosen
    except (KeyboardInterrupt, typer.Abort):
        NOTES.print("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        drop_stdout()
        sys.exit(141)
    except Exception as error:  # noqa: BLE001 - the process boundary
        end_with(error, as_json)


def end_with(error: Exception, as_json: bool) -> NoReturn:
    """Report the error and exit with its code; an unexpected exception is a bug and gets a traceback."""
    problem = problem_of(error)
    if problem is None:
        traceback.print_exception(error)
        problem = FattnProbeError("This is a bug in fattn-probe, not in your input.")
    try:
        show_error(problem, as_json)
        sys.stdout.flush()
    except (OSError, MachineError):  # stdout itself failed, and stderr has the error
        drop_stdout()
    sys.exit(problem.exit_code)


def problem_of(error: Exception) -> FattnProbeError | None:
    """The error to report to the user; None for a bug."""
    if isinstance(error, FattnProbeError):
        return error
    if isinstance(error, OSError | MemoryError):
        return machine_error(error)
    if hasattr(error, "format_message") and hasattr(error, "ctx"):  # of click, which typer brings or imports
        command = error.ctx.command_path if error.ctx else "fattn-probe"
        said = error.format_message() or "a command is missing"
        return InputError(f"{command}: {said} (see `{command} --help`)")
    return None


def drop_stdout() -> None:
    """Discard stdout's buffer: Python would write it again at exit, and fail again."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream without a file has no such problem
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line."""
    as_json = "--json" in sys.argv
    with exit_codes(as_json):
        code = app(standalone_mode=False)
        if code == INTERRUPTED:  # as typer reports an interrupt of a command
            raise KeyboardInterrupt
    sys.exit(code)
