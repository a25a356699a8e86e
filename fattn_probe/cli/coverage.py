"""The command line of `coverage`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, show
from fattn_probe.base.files import write_text
from fattn_probe.cases.device import load_devices
from fattn_probe.cli import flags, setup
from fattn_probe.cli.commands import offered
from fattn_probe.cli.setup import BuildFlags, Where
from fattn_probe.daily.regress.entries import Given
from fattn_probe.lab.detect.counts import places, unreachable
from fattn_probe.lab.detect.measure import by_suite, measure, on_simulated
from fattn_probe.lab.detect.show import document, read, render
from fattn_probe.llama.source import kernel_cases


def coverage(
    suites: Annotated[
        list[Path],
        typer.Argument(
            help="Shipped suites by name, or files; a .json from an earlier run with --json adds its counts.",
            metavar="SUITE...",
            parser=flags.suite_path,
            autocompletion=flags.complete_suite,
        ),
    ],
    where: Where,
    build: Annotated[BuildFlags, offered("source", "patch")],
    html: Annotated[
        Path | None, typer.Option("--html", dir_okay=False, help="Write the annotated source to this page.")
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Count the lines and branches that suites execute in the attention kernels and their dispatch."""
    given = Given(where.on, devices=where.devices, note=setup.note)
    earlier = [found for path in suites if path.suffix == ".json" for found in read(path)]
    suites = [path for path in suites if path.suffix != ".json"]
    pairs = {suite: on_simulated("coverage", suite, given) for suite in suites}
    options = replace(setup.run_options(build, where), flavour="coverage")
    with Activity(NOTES, words="finding the cases and their kernels") as activity:
        session = setup.session_of(options, activity)
        found = [
            measure(
                suite, session, pairs[suite], lambda result, done, total: activity.count(result.status, done, total)
            )
            for suite in suites
        ]
    found = by_suite([*earlier, *found])
    tree = setup.tree_of(build)
    amd = {str(target) for suite in suites for _, target in pairs[suite] if target.device and target.device.gfx}
    amd |= {f"sim:{device.id}" for device in load_devices(where.devices).values() if device.gfx}  # from earlier runs
    for item in found:
        item.coverage.unreachable = places(tree, unreachable(amd=not amd.isdisjoint(item.targets)))
        item.coverage.headers = frozenset({case.header for case in kernel_cases(tree)})
    if html is not None:
        from fattn_probe.lab.detect.show import page  # imports for the page only

        write_text(html, page(found, tree))
    show(document(found), lambda: render(found), as_json)
