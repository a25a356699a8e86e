"""The command line of `triage`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, show
from fattn_probe.base.files import scratch
from fattn_probe.cases.scenario.cases import RECORDED
from fattn_probe.cli import flags, setup
from fattn_probe.cli.capture import Model
from fattn_probe.cli.commands import offered
from fattn_probe.cli.setup import BuildFlags, Simulate, Where
from fattn_probe.daily.triage.command import Triage
from fattn_probe.daily.triage.show import advice_of, check_folder, document_of, render, report, write_folder
from fattn_probe.daily.triage.verdict import raise_if_wrong
from fattn_probe.daily.triage.words import sentence
from fattn_probe.machine.run.provenance import driver, versions


def triage(
    *,
    model: Model,
    where: Where,
    build: Annotated[BuildFlags, offered("source", "patch")],
    simulate: Annotated[Simulate, offered("threads")],
    out: Annotated[
        Path | None, typer.Option("--out", file_okay=False, help="The folder for the results; default: triage-MODEL.")
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Run a prompt through a model, and name the first wrong op: an attention op, a different op, or none."""
    folder = out or Path(f"triage-{model.model.stem}")
    check_folder(folder)
    request = model.request(every=True)
    targets = setup.targets_of(where)
    with Activity(NOTES) as activity, scratch() as recorded:
        options = setup.run_options(build, where, simulate, models=True)
        result = Triage(setup.session_of(options, activity), request, targets, recorded, activity).run()
        advice = advice_of(result, folder, setup.same_again(str(options.tree and options.tree.spec), build, where))
        run = result.run
        found = {"command": shlex.join(["fattn-probe", *sys.argv[1:]])}
        found |= {"model": f"{run['model']['file']} ({run['model'].get('description', '?')})"}
        revision = options.tree.revision if options.tree else ""
        found |= {"source": f"{run['source']} ({revision or 'b' + run['build_number']})", "driver": driver() or "none"}
        provenance = found | versions()
        document = document_of(result, advice, provenance)
        files = [recorded / f"{case}{RECORDED}" for case in result.cases]
        write_folder(folder, document, report(result, advice, provenance), files)
    show(document | {"folder": str(folder)}, lambda: render(result, advice, str(folder)), as_json)
    raise_if_wrong(result.answer, sentence(result))
