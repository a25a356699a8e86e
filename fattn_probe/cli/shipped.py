"""`fattn-probe suite list` and `fattn-probe patch list`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fattn_probe.base.console import show
from fattn_probe.base.tables import Table
from fattn_probe.cases.shipped import files, name_of, names
from fattn_probe.cli import flags
from fattn_probe.daily.regress.suite import load_suite
from fattn_probe.llama.source import patches
from fattn_probe.llama.source.faults import FAMILIES
from fattn_probe.llama.source.faults import corpus as read_corpus

suite_app = typer.Typer(help="Suites of scenarios, for regress.", no_args_is_help=True)
patch_app = typer.Typer(help="Patches, for --patch.", no_args_is_help=True)


@suite_app.command("list")
def suite_list(as_json: flags.Json = False) -> None:
    """List the shipped suites."""
    listing = [item(name_of("suite", path), path, load_suite(path).about) for path in files("suite")]
    show(listing, lambda: table("suite", listing), as_json)


@patch_app.command("list")
def patch_list(
    faults: Annotated[bool, typer.Option("--faults", help="List the corpus of historic faults instead.")] = False,
    as_json: flags.Json = False,
) -> None:
    """List the shipped patches; a patch with one file per era of llama.cpp has one line per file."""
    if faults:
        corpus = sorted(read_corpus(), key=lambda fault: (FAMILIES.index(fault.family), fault.number))
        keys = patches.FAULT_KEYS
        listing = [
            item(fault.name, fault.patch.path, fault.patch.about) | {key: fault.patch.value(key) for key in keys}
            for fault in corpus
        ]
        rows = tuple((Text(fault.name, "bold"), fault.family, fault.catch, fault.wrong) for fault in corpus)
        columns = ("fault", "family", "catch", "what is wrong")
        show(listing, lambda: Table(columns, rows, prose=frozenset({"what is wrong"})), as_json)
        return
    listing = [item(patch.name, patch.path, patch.purpose) for patch in patches.shipped()]
    more = item(flags.FAULTS, "", f"{len(names('fault'))} historic faults of llama.cpp; patch list --faults")
    show(listing, lambda: table("patch", [*listing, more]), as_json)


def item(name: str, path: Path | str, about: str) -> dict[str, str]:
    """The name, path and purpose of a shipped file."""
    return {"name": name, "path": str(path), "about": about}


def table(title: str, listing: Sequence[Mapping[str, str]]) -> Table:
    """A table of names and purposes."""
    rows = ((Text(item["name"], "bold"), item["about"]) for item in listing)
    return Table((title, "for"), tuple(rows), prose=frozenset({"for"}))
