"""The command line of `reproduce`."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, show
from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import load_devices, parse_target, parse_targets
from fattn_probe.cases.scenario.cases import one_case
from fattn_probe.cli import flags, setup
from fattn_probe.cli.commands import offered
from fattn_probe.cli.history import open_existing
from fattn_probe.cli.regress import DEFAULT_HISTORY, HistoryFile
from fattn_probe.cli.setup import SIMULATED, BuildFlags, Simulate, Where
from fattn_probe.daily.reproduce.command import ReproduceRequest, check_folder, document, render
from fattn_probe.daily.reproduce.command import reproduce as write_reproduction
from fattn_probe.daily.reproduce.found import PastResult, is_uid, past_result
from fattn_probe.daily.reproduce.ways import Wanted

MOST_NAME = 100
"""Limit on the length of a folder's name."""


def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="A scenario or a case by name, a file, or a capture; or the beginning of a run's name in the history.",
            metavar="SCENARIO|CAPTURE|RUN",
            autocompletion=flags.complete_scenario,
        ),
    ],
    *,
    where: Annotated[Where, offered("devices", "timeout")],
    build: Annotated[BuildFlags, offered("source", "patch")],
    simulate: Annotated[Simulate, offered("threads")],
    out: Annotated[
        Path | None, typer.Option("--out", help="A new folder; default: reproduce-CASE.", metavar="DIR")
    ] = None,
    case: flags.CaseName = "",
    on: Annotated[
        str, typer.Option("--on", help="Run it on this target first: sim:ID, gpu, gpu:N, cpu.", metavar="TARGET")
    ] = "",
    wanted: Annotated[
        Wanted,
        typer.Option("--as", help="line for upstream's test, patch to its list, or C++ file; auto: first to fail."),
    ] = "auto",
    history_file: HistoryFile = DEFAULT_HISTORY,
    as_json: flags.Json = False,
) -> None:
    """Write a reproduction without fattn-probe: a line for upstream's test, a patch to it, or a C++ file."""
    subject = subject_of(what, case, history_file)
    known = load_devices(where.devices)
    folder = out or Path(f"reproduce-{file_name(subject.case.name)}")
    check_folder(folder)
    source = build.source or subject.source or setup.source_in(Path.cwd())
    ran = "" if build.source else subject.tree
    build = replace(build, source=source, patch=[*subject.patches, *build.patch])
    words = on or subject.on
    target, *more = parse_targets(words, known) if words else (None,)
    if more:
        raise InputError("reproduce runs on one target at a time")
    request = ReproduceRequest(
        case=subject.case,
        out=folder,
        target=target,
        listed_on=target if target and target.engine != "cpu" else parse_target(SIMULATED, known),
        wanted=wanted,
        told=(subject.file, *setup.same_again(source, build, where)),
        timeout=where.timeout,
    )
    options = setup.run_options(build, where, simulate)
    if ran and options.tree and options.tree.digest != ran:
        raise InputError(
            f"the files in {source} have changed since run {what}, so the run cannot be repeated; restore them, or "
            f"name the case instead of the run: fattn-probe reproduce {subject.file or 'FILE'}"
        )
    with Activity(NOTES) as activity:
        work = [(subject.case, [target])] if target is not None else []
        session = setup.prepared_session(options, work, activity) if work else setup.session_of(options, activity)
        made = write_reproduction(session, request, activity.step)
    show(document(request, made), lambda: render(request, made), as_json)


def subject_of(what: str, case: str, history_file: Path) -> PastResult:
    """The case to reproduce: from a file, which takes precedence, or from a run in the history."""
    try:
        path = flags.scenario_path(what)
    except InputError:
        if not is_uid(what):
            raise
        with open_existing(history_file) as history:
            return past_result(history, what, case)
    word = f"{what}/{case}" if case and Path(what).is_file() else case or what
    return PastResult(one_case(path, case), word, "", "", ())


def file_name(name: str) -> str:
    """A case's name, made valid as a folder's name."""
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-")[:MOST_NAME]
