"""The command line of `glossary`; `glossary.csv` is also the source of docs/glossary.md."""

import csv
import difflib
import functools
import re
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Annotated

import typer
from rich.text import Text

from fattn_probe.base.console import show
from fattn_probe.base.errors import InputError
from fattn_probe.base.tables import Table
from fattn_probe.cases.shipped import page
from fattn_probe.cli import flags


@dataclass(frozen=True)
class Entry:
    """A word, its meaning in Markdown, a command that shows it, and the step of the tour that explains it, or empty."""

    word: str
    meaning: str
    command: str
    step: str

    @property
    def names(self) -> list[str]:
        """The word, and the llama.cpp names (`code`) and other terms (*emphasis*) that its meaning explains."""
        return [self.word, *re.findall(r"[`*](\w[\w ]*)[`*]", self.meaning)]


@functools.cache
def entries() -> tuple[Entry, ...]:
    """All entries, in the order of the page."""
    lines = (files("fattn_probe.cli") / "glossary.csv").read_text(encoding="utf-8").splitlines()
    return tuple(Entry(**row) for row in csv.DictReader(lines))


def folded(name: str) -> str:
    """A name normalised for look-up: lower case, without hyphens, blanks or a plural s."""
    return re.sub(r"[-_\s]|(?<=.)s$", "", name.lower())


def entry_of(term: str) -> Entry:
    """The entry for a word, or else the entry whose meaning contains it; if none, InputError with the nearest words."""
    every = [(name, entry) for entry in entries() for name in entry.names]
    found = {folded(name): entry for name, entry in [*reversed(every), *((one.word, one) for one in entries())]}
    if entry := found.get(folded(term)):
        return entry
    near = difflib.get_close_matches(term, [name for name, _ in every], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`fattn-probe glossary` lists all terms"
    raise InputError(f"{term}: not in the glossary; {hint}")


def glossary(
    term: Annotated[
        list[str] | None, typer.Argument(help="A term, or a name from llama.cpp such as kbc.", metavar="TERM")
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Explain a term of fattn-probe or flash attention, with a command that shows it; without TERM, list all terms."""
    if not term:
        rows = tuple((Text(entry.word, "bold"), Text(entry.meaning)) for entry in entries())
        table = Table(("word", "meaning"), rows, prose=frozenset({"meaning"}))
        show([asdict(entry) for entry in entries()], lambda: table, as_json)
        return
    entry = entry_of(" ".join(term))
    guide, command = page("guide"), entry.command.replace("docs/guide", str(page("guide")))
    tour = f"\nexplained in {guide}/tour.md, step {entry.step}" if entry.step else ""
    text = Text.assemble((entry.word, "bold"), f": {entry.meaning}\nshown by: {command}{tour}")
    show(asdict(entry), lambda: text, as_json)
