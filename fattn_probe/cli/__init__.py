"""The command line: the program's own options, and the exit codes."""

import contextlib
import locale
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from fattn_probe.base import signals
from fattn_probe.base.console import NOTES, OUT, STDOUT, open_streams, show_error
from fattn_probe.base.errors import FattnProbeError, InputError, MachineError, machine_error
from fattn_probe.base.host import check_start
from fattn_probe.cli.commands import Commands, wants_json

HELP = "Build, run, inspect and check llama.cpp's CUDA flash-attention kernels, on a GPU or on a simulated one."
INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 and the signal's number."""
app = typer.Typer(cls=Commands, help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def show_version(wanted: bool) -> None:
    """Print the version, and exit."""
    if wanted:
        from fattn_probe.machine.run.provenance import version  # reads package metadata, for this option only

        OUT.print(f"fattn-probe {version('fattn-probe')}")
        raise typer.Exit


def show_programs(wanted: bool) -> None:
    """Print each program that fattn-probe runs, on stderr."""
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
        bool, typer.Option("-v", "--verbose", callback=show_programs, help="Print each program that fattn-probe runs.")
    ] = False,
) -> None:
    """Options that precede the command."""


@contextlib.contextmanager
def exit_codes(as_json: bool = False) -> Iterator[None]:
    """The only place that turns exceptions into exit codes; with `as_json`, the error goes to stdout as a document."""
    OUT.answered = False
    try:
        yield
        STDOUT.flush()  # a full disk must raise its error here, before the exit code is chosen
    except (KeyboardInterrupt, typer.Abort):
        NOTES.print(signals.NAMES[signals.terminated() or signal.SIGINT])
        sys.exit(code_after_signal() or INTERRUPTED)
    except BrokenPipeError:
        STDOUT.discard()
        sys.exit(128 + signal.SIGPIPE)
    except Exception as error:  # noqa: BLE001 - the process boundary
        problem = problem_of(error)
        if problem is None:
            NOTES.print("".join(traceback.format_exception(error)), end="", soft_wrap=True)
            problem = FattnProbeError("This is a bug in fattn-probe, not in your input.")
        try:
            show_error(problem, as_json)
            STDOUT.flush()
        except (OSError, MachineError):  # stdout itself has failed, and stderr has shown the error
            STDOUT.discard()
        sys.exit(code_after_signal() or problem.exit_code)


def code_after_signal() -> int:
    """The exit code if SIGTERM or SIGHUP has stopped this command, regardless of its result; otherwise 0."""
    number = signals.terminated()
    return 0 if number is None else 128 + number


def problem_of(error: Exception) -> FattnProbeError | None:
    """The error to report to the user; None for a bug."""
    if isinstance(error, FattnProbeError):
        return error
    if isinstance(error, OSError | MemoryError):
        return machine_error(error)
    if hasattr(error, "format_message") and hasattr(error, "ctx"):  # from click, which typer includes or imports
        command = error.ctx.command_path if error.ctx else "fattn-probe"
        said = error.format_message().replace(": Value error, ", ": ")  # drop pydantic's prefix
        if said.startswith("Usage: "):  # from a group without a command
            return InputError(f"{command}: a command is missing\n\n{said}")
        return InputError(f"{command}: {said} (see `{command} --help`)")
    return None


def run_command(words: Sequence[str]) -> int:
    """Run a command of this program; returns its exit code."""
    code = app(list(words), standalone_mode=False)
    if code == INTERRUPTED or signals.terminated():  # typer returns INTERRUPTED for an interrupt
        raise KeyboardInterrupt
    return int(code or 0)


def main() -> None:
    """Run the command line."""
    open_streams()
    if locale.getpreferredencoding(do_setlocale=False).lower() not in ("utf-8", "utf8"):
        # Read and write text files as UTF-8 in every locale, in this process and its workers, as Python 3.15 does.
        os.environ["PYTHONUTF8"] = "1"
        with contextlib.suppress(locale.Error):  # the C library may lack this locale
            locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    signals.heed()
    words = sys.argv[1:]
    with exit_codes(wants_json(words)):
        check_start()
        code = run_command(words)
    sys.exit(code)
