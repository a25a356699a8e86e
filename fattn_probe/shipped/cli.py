"""`fattn-probe suite list` and `fattn-probe patch list`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import typer
from rich.text import Text

from fattn_probe import flags
from fattn_probe.console import show
from fattn_probe.regress.suite import load_suite
from fattn_probe.shipped import files, name_of
from fattn_probe.source import patches
from fattn_probe.tables import Table

suite_app = typer.Typer(help="Suites of scenarios, for regress.", no_args_is_help=True)
patch_app = typer.Typer(help="Patches, for --patch.", no_args_is_help=True)


@dataclass(frozen=True)
class Shipped:
    """A shipped file and what it is for."""

    name: str
    path: str
    about: str


@suite_app.command("list")
def suite_list(as_json: flags.Json = False) -> None:
    """List the shipped suites."""
    listing = [Shipped(name_of("suite", path), str(path), load_suite(path).about) for path in files("suite")]
    show([asdict(item) for item in listing], lambda: table("suite", listing), as_json)


@patch_app.command("list")
def patch_list(as_json: flags.Json = False) -> None:
    """List the shipped patches; a patch with one file per era of llama.cpp has one line per file."""
    listing = [Shipped(patch.name, str(patch.path), patch.purpose) for patch in patches.shipped()]
    show([asdict(item) for item in listing], lambda: table("patch", listing), as_json)


def table(title: str, listing: Sequence[Shipped]) -> Table:
    """Names and purposes."""
    rows = ((Text(item.name, "bold"), item.about) for item in listing)
    return Table((title, "for"), tuple(rows), prose=frozenset({"for"}))
