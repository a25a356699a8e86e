"""The command line of `coverage`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe import flags, setup
from fattn_probe.activity import Activity
from fattn_probe.console import NOTES, show
from fattn_probe.detect import unreachable
from fattn_probe.detect.measure import by_suite, headers_of, measure, on_simulated
from fattn_probe.detect.show import document, read, render
from fattn_probe.files import write_text
from fattn_probe.regress.entries import Given
from fattn_probe.run.simulator import Simulation
from fattn_probe.source import DEFAULT_SOURCE


def coverage(
    suites: Annotated[
        list[Path],
        typer.Argument(
            help="Shipped suites by name, or files; a .json of an earlier run with --json adds what that executed.",
            metavar="SUITE...",
            parser=flags.suite_path,
            autocompletion=flags.complete_suite,
        ),
    ],
    on: flags.On = "",
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    html: Annotated[
        Path | None, typer.Option("--html", dir_okay=False, help="Write the annotated source to this page.")
    ] = None,
    timeout: flags.Timeout = 600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Count the lines and branches of the attention kernels and their dispatch that suites execute."""
    given = Given(on, devices=devices)
    earlier = [found for path in suites if path.suffix == ".json" for found in read(path)]
    suites = [path for path in suites if path.suffix != ".json"]
    pairs = {suite: on_simulated("coverage", suite, given) for suite in suites}
    chosen = setup.BuildFlags(source, patch)
    options = replace(chosen.run_options(NOTES, Simulation(), timeout=timeout), flavour="coverage")
    with Activity(NOTES, words="finding the cases and their kernels") as activity:
        session = setup.session_of(options, activity)
        found = [
            measure(
                suite, session, pairs[suite], lambda result, done, total: activity.count(result.status, done, total)
            )
            for suite in suites
        ]
    found = by_suite([*earlier, *found])
    tree = chosen.tree(NOTES)
    argued, headers = unreachable.places(tree, unreachable.read()), headers_of(tree)
    for item in found:
        item.coverage.unreachable, item.coverage.headers = argued, headers
    if html is not None:
        from fattn_probe.detect.page import page  # only for a page

        write_text(html, page(found, tree))
    show(document(found), lambda: render(found), as_json)
