"""The command line of `scenario`."""

from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.console import DOCUMENTS, NOTES, OUT, show
from fattn_probe.base.errors import InputError
from fattn_probe.base.figures import number_of
from fattn_probe.cases.scenario import command as scenarios
from fattn_probe.cases.scenario.cases import read_cases
from fattn_probe.cli import flags

scenario_app = typer.Typer(help="List, show, check and create scenario files.", no_args_is_help=True)


@scenario_app.command("list")
def scenario_list(
    folder: Annotated[
        Path | None, flags.scenario_argument("A folder; default: the shipped scenarios.", "FOLDER")
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """List the shipped scenarios, or those in a folder."""
    found = scenarios.list_scenarios(folder)
    show(found, lambda: scenarios.render_list(found), as_json)


@scenario_app.command("show")
def scenario_show(path: flags.OneScenario, as_json: flags.Json = False) -> None:
    """Show a scenario's cases, with ne and nb of every tensor."""
    cases = read_cases(path)
    show([scenarios.case_json(case) for case in cases], lambda: scenarios.render_show(cases), as_json)


@scenario_app.command("check")
def scenario_check(paths: flags.Scenarios, as_json: flags.Json = False) -> None:
    """Check scenario files, and report every mistake with its line."""
    checks = scenarios.check(paths)
    show(checks, lambda: scenarios.render_check(checks), as_json)
    if wrong := [len(check["problems"]) for check in checks if check["problems"]]:
        raise InputError(f"{number_of(sum(wrong), 'mistake')} in {len(wrong)} of {number_of(len(checks), 'file')}")


@scenario_app.command("new")
def scenario_new(path: Path) -> None:
    """Write a scenario with comments, as a starting point."""
    OUT.print(f"wrote {scenarios.new(path)}")


@scenario_app.command("from-ops")
def scenario_from_ops(
    text: Annotated[
        str, typer.Argument(help="'FLASH_ATTN_EXT(hsk=64,...)', as any version of test-backend-ops prints it.")
    ],
) -> None:
    """Print the scenario of one of upstream's test cases."""
    DOCUMENTS.write(scenarios.from_ops_yaml(text))


@scenario_app.command("from-capture")
def scenario_from_capture(
    paths: Annotated[list[Path], typer.Argument(help="Captures, or case files.", metavar="FILE.gguf...")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the scenarios to this folder, not to stdout.", metavar="DIR")
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Create small scenarios from recorded ops: same shape, layout and mask; random data with similar statistics."""
    from fattn_probe.cases.scenario import from_capture  # imports NumPy, for this command only

    found = [from_capture.of_file(path) for path in paths]
    if out is not None:
        for path in scenarios.write([one.scenario for one in found], out):
            NOTES.print(f"wrote {path}")
        show([from_capture.to_json(one) for one in found], lambda: from_capture.render(found), as_json)
        return
    if as_json:
        show([from_capture.to_json(one) for one in found], str, as_json)
        return
    NOTES.print(from_capture.render(found))
    DOCUMENTS.write("---\n".join(scenarios.to_yaml(one.scenario) for one in found))
