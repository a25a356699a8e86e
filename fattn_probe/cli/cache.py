"""`fattn-probe cache show` and `fattn-probe cache prune`."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.console import show
from fattn_probe.base.tables import Table, labelled
from fattn_probe.cli import flags
from fattn_probe.llama.build.storage import CacheEntry, Storage, prune, read_storage

MEGABYTE = 1e6
cache_app = typer.Typer(help="The cache of sources, builds and compiled objects.", no_args_is_help=True)


@cache_app.command("show")
def cache_show(as_json: flags.Json = False) -> None:
    """Show the contents of the cache folder and their sizes."""
    storage = read_storage()
    show({**asdict(storage), "size": storage.size}, lambda: render(storage), as_json)


@cache_app.command("prune")
def cache_prune(
    days: Annotated[
        float,
        typer.Option(min=0, help="Remove builds not used for this many days; unfinished builds are always removed."),
    ] = 30.0,
    as_json: flags.Json = False,
) -> None:
    """Remove builds and compiled objects that have not been used recently; later runs recreate them."""
    gone = prune(days)
    said = Group(builds_table(gone), f"removed {len(gone)} builds, {megabytes(total(gone))}")
    show([asdict(entry) for entry in gone], lambda: said if gone else "nothing to remove", as_json)


def render(storage: Storage) -> RenderableType:
    """The parts of the cache as a list, then a table of its builds."""
    shared = storage.ccache
    tried = shared.hits + shared.misses if shared else 0
    words = {
        "folder": storage.folder,
        "builds": f"{len(storage.builds)}, {megabytes(total(storage.builds))}",
        "sources": f"{len(storage.sources)}, {megabytes(total(storage.sources))}",
        "ccache": f"{megabytes(shared.size)} of {megabytes(shared.max_size)}; {shared.hits} of {tried} objects reused"
        if shared
        else "not installed: builds share no objects",
        "other": megabytes(storage.other),
        "all": megabytes(storage.size),
    }
    lines = labelled({name: Text(word, overflow="fold") for name, word in words.items()})
    return Group(lines, "", builds_table(storage.builds)) if storage.builds else lines


def builds_table(builds: Iterable[CacheEntry]) -> Table:
    """A table of builds with size and age."""
    rows = ((entry.name, megabytes(entry.size), age(entry.days)) for entry in builds)
    return Table(("build", "size", "last used"), tuple(rows))


def total(entries: Iterable[CacheEntry]) -> int:
    """The total size of the entries in bytes."""
    return sum(entry.size for entry in entries)


def megabytes(size: int) -> str:
    """A size in MB: `1,234 MB`."""
    return f"{size / MEGABYTE:,.0f} MB"


def age(days: float | None) -> str:
    """An age as text: `today`, or `12 days ago`."""
    if days is None:
        return "never finished"
    return "today" if days < 1 else f"{days:.0f} day{'s' if days >= 1.5 else ''} ago"
