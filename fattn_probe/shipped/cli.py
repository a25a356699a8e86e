"""`fattn-probe suite list` and `fattn-probe patch list`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.text import Text

from fattn_probe import flags
from fattn_probe.console import show
from fattn_probe.regress.suite import load_suite
from fattn_probe.shipped import files, name_of, names
from fattn_probe.source import patches
from fattn_probe.source.faults import FAMILIES, HistoricFault
from fattn_probe.source.faults import corpus as read_corpus
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
def patch_list(
    faults: Annotated[bool, typer.Option("--faults", help="The corpus of historic faults instead.")] = False,
    as_json: flags.Json = False,
) -> None:
    """List the shipped patches; a patch with one file per era of llama.cpp has one line per file."""
    if faults:
        corpus = sorted(read_corpus(), key=lambda fault: (FAMILIES.index(fault.family), fault.number))
        show([fault_item(fault) for fault in corpus], lambda: fault_table(corpus), as_json)
        return
    listing = [Shipped(patch.name, str(patch.path), patch.purpose) for patch in patches.shipped()]
    more = Shipped(flags.FAULTS, "", f"{len(names('fault'))} historic faults of llama.cpp; patch list --faults")
    show([asdict(item) for item in listing], lambda: table("patch", [*listing, more]), as_json)


def fault_item(fault: HistoricFault) -> dict[str, str]:
    """A fault in JSON."""
    fields = {key: fault.patch.value(key) for key in patches.HEADER_KEYS["fault"]}
    return {"name": fault.name, "path": str(fault.patch.path), "about": fault.patch.about, **fields}


def fault_table(corpus: Sequence[HistoricFault]) -> Table:
    """Faults by family, with what must catch them and what is wrong in the code."""
    rows = ((Text(fault.name, "bold"), fault.family, fault.catch, fault.wrong) for fault in corpus)
    return Table(("fault", "family", "catch", "what is wrong"), tuple(rows), prose=frozenset({"what is wrong"}))


def table(title: str, listing: Sequence[Shipped]) -> Table:
    """Names and purposes."""
    rows = ((Text(item.name, "bold"), item.about) for item in listing)
    return Table((title, "for"), tuple(rows), prose=frozenset({"for"}))
