"""The command line of `view`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES
from fattn_probe.base.errors import InputError, LostError
from fattn_probe.base.files import check_place, write_text
from fattn_probe.cases.scenario.cases import one_case
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cli import flags, setup
from fattn_probe.cli.commands import offered
from fattn_probe.cli.inspect import COMPILED, At, placed
from fattn_probe.cli.setup import BuildFlags, Simulate, Where
from fattn_probe.daily.inspect import command as inspecting
from fattn_probe.daily.inspect.examine import Examined, Examiner, Extras
from fattn_probe.daily.inspect.inspector import InspectOptions, Inspector
from fattn_probe.daily.inspect.replay.make import replay_of
from fattn_probe.daily.inspect.replay.page import replay_page
from fattn_probe.daily.inspect.replay.replay import Replay
from fattn_probe.machine.run.base import base_of


def view(
    path: flags.OneScenario,
    *,
    where: Annotated[Where, offered("on", "devices", "timeout")],
    build: Annotated[BuildFlags, offered(*COMPILED)],
    out: Annotated[Path, typer.Option("-o", "--out", dir_okay=False, help="The page to write.", metavar="FILE.html")],
    case_name: flags.CaseName = "",
    at: At = "",
    against: Annotated[
        str,
        typer.Option(
            help="A second llama.cpp to show, as in --source; default for a patched or changed source: its base.",
            metavar="SOURCE",
        ),
    ] = "",
) -> None:
    """Write a page that steps through a run: blocks, tiles, mask, source lines, and a row's values."""
    case = placed(one_case(path, case_name), at)
    (_, (target, *more)) = setup.work_of([case], where)[0]
    if more or target.engine == "cpu":
        raise InputError("view shows one run on a GPU, real or simulated: give one target")
    check_place(out)
    inputs, replays, done = make_inputs(case), list[Replay](), list[Examined]()
    wanted = [setup.run_options(replace(build, debug=True), where, simulate=Simulate(threads=1))]
    if against:
        other = replace(build, debug=True, source=against, patch=[])
        wanted.append(setup.run_options(other, where, simulate=Simulate(threads=1)))
    elif (base := base_of(wanted[0])) is not None and not base.missing:
        wanted.append(replace(base.options, flavour="debug"))
    with Activity(NOTES, len(wanted)) as activity:
        for options in wanted:
            session = setup.prepared_session(options, [(case, [target])], activity)
            inspector = Inspector(session, InspectOptions(deadline=where.timeout))
            examiner = Examiner(inspector, Extras(traced=frozenset([case.name])), activity.step)
            found = examiner.examine(case, inputs, target)
            if found.facts is None and replays and not against:  # the change may be what supports the op
                activity.note("the base launches no attention kernel for this op: the page shows one run")
                break
            if found.facts is None or found.output is None:
                inspecting.raise_if_wrong([found])
                raise LostError(f"{found.label}: no attention kernel was launched, so there is nothing to view")
            activity.step(f"{found.label}: computing the values of rows")
            beside = replays[0] if replays else None
            done.append(found)
            replays.append(
                replay_of(
                    case, inputs, target, session, found.output, facts=found.facts, trace=found.trace, beside=beside
                )
            )
    write_text(out, replay_page(replays[::-1], f"{case.name} on {target}"))
    NOTES.print(f"wrote {out}")
    inspecting.raise_if_wrong(done[:1])
