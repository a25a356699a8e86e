"""The command line of `reproduce`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe import flags, setup, shipped
from fattn_probe.activity import Activity
from fattn_probe.console import NOTES, show
from fattn_probe.device import Device, Target, load_devices, parse_target, parse_targets
from fattn_probe.errors import InputError
from fattn_probe.regress.cli import DEFAULT_HISTORY, HistoryFile
from fattn_probe.regress.history_cli import open_existing
from fattn_probe.reproduce.command import Request, check_folder, document, render
from fattn_probe.reproduce.command import reproduce as write_reproduction
from fattn_probe.reproduce.past_result import PastResult, is_uid, past_result
from fattn_probe.reproduce.ways import Wanted
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario.files import one_case
from fattn_probe.source import DEFAULT_SOURCE

MOST_NAME = 100
"""Characters of a folder's name."""


def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="A scenario by name, a file, or a capture; or the beginning of a run's name in the history.",
            metavar="SCENARIO|CAPTURE|RUN",
            autocompletion=flags.complete_scenario,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="A new folder; default: reproduce-CASE.", metavar="DIR")
    ] = None,
    case: Annotated[str, typer.Option("--case", help="The case, if there are several.", metavar="NAME")] = "",
    on: Annotated[str, typer.Option("--on", help="Run it here first: sim:ID, gpu, gpu:N, cpu.", metavar="TARGET")] = "",
    wanted: Annotated[
        Wanted,
        typer.Option("--as", help="line of upstream's test, patch to its list, or file; auto: the first that fails."),
    ] = "auto",
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    threads: flags.Threads = None,
    timeout: flags.Timeout = 600.0,
    devices: flags.Devices = None,
    history_file: HistoryFile = DEFAULT_HISTORY,
    as_json: flags.Json = False,
) -> None:
    """Write what shows a failure without fattn-probe: a line for upstream's test, a patch to it, or one C++ file."""
    subject, known = subject_of(what, case, history_file), load_devices(devices)
    folder = out or Path(f"reproduce-{file_name(subject.case.name)}")
    check_folder(folder)
    tree, patches = subject.source if source == DEFAULT_SOURCE else source, [*subject.patches, *patch]
    target = target_of(on or subject.on, known)
    request = Request(
        case=subject.case,
        out=folder,
        target=target,
        listed_on=target if target and target.engine != "cpu" else parse_target(setup.SIMULATED, known),
        wanted=wanted,
        told=(subject.file, *(word for name in patches for word in ("--patch", name)), *source_words(tree)),
        timeout=timeout,
    )
    options = setup.BuildFlags(tree, patches).run_options(NOTES, Simulation(threads=threads), timeout=timeout)
    with Activity(NOTES) as activity:
        work = [(subject.case, [target])] if target is not None else []
        session = setup.prepared_session(options, work, activity) if work else setup.session_of(options, activity)
        made = write_reproduction(session, request, activity.step)
    show(document(made), lambda: render(made), as_json)


def subject_of(what: str, case: str, history_file: Path) -> PastResult:
    """The case to reproduce: of a file, which wins, or of a run in the history."""
    try:
        path = flags.scenario_path(what)
    except InputError:
        if not is_uid(what):
            raise
        with open_existing(history_file) as history:
            return past_result(history, what, case)
    return PastResult(one_case(path, case), spelled(path), "", DEFAULT_SOURCE, ())


def target_of(words: str, known: Mapping[str, Device]) -> Target | None:
    """The target to run on first; None for an empty text, InputError for several."""
    if not words:
        return None
    target, *more = parse_targets(words, known)
    if more:
        raise InputError("reproduce runs on one target at a time")
    return target


def spelled(path: Path) -> str:
    """How a command line names a scenario: by its name if it is a shipped one."""
    return shipped.name_of("scenario", path) if path.is_relative_to(shipped.folder("scenario")) else str(path)


def file_name(name: str) -> str:
    """A case's name as that of a folder."""
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-")[:MOST_NAME]


def source_words(source: str) -> tuple[str, ...]:
    """The flag for a source, unless it is the default."""
    return () if source == DEFAULT_SOURCE else ("--source", source)
