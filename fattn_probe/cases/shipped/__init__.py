"""The scenarios, suites, patches and faults shipped with fattn-probe, found by name; a path takes precedence.

The files are in `scenarios/`, `suites/` and `patches/` at the top of the repository. Links in this folder make them
package data; a wheel has copies instead.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from fattn_probe.base.errors import InputError

Kind = Literal["scenario", "suite", "patch", "fault"]
FOLDERS: dict[Kind, str] = {"scenario": "scenarios", "suite": "suites", "patch": "patches", "fault": "patches"}
PATTERNS: dict[Kind, str] = {"scenario": "**/*.yaml", "suite": "*.yaml", "patch": "*.patch", "fault": "faults/*.patch"}
MOST_NAMED = 12


def folder(kind: Kind) -> Path:
    """The folder with the shipped files of a kind."""
    return (Path(__file__).parent / FOLDERS[kind]).resolve()


def files(kind: Kind) -> list[Path]:
    """The shipped files of a kind; those in subfolders come last."""
    return sorted(folder(kind).glob(PATTERNS[kind]), key=lambda path: (len(path.parts), path))


def name_of(kind: Kind, path: Path) -> str:
    """The name of a shipped file: its path below the folder of its kind, without the suffix."""
    return path.relative_to(folder(kind)).with_suffix("").as_posix()


def names(kind: Kind) -> list[str]:
    """The names of the shipped files of a kind, such as `gqa` and `known-faults/k-stride`."""
    return [name_of(kind, path) for path in files(kind)]


def find(kind: Kind, word: str | Path, others: Callable[[Path], Mapping[str, Path]] = lambda path: {}) -> Path:
    """The file or folder at the path `word`, or the shipped file or folder of that name, or one of `others`.

    InputError with the nearest names if nothing is found. A word with a suffix other than .yaml is a path.
    """
    if word == "":  # perhaps an unset variable; Path would read it as the current folder
        raise InputError(f"the name is empty: give the name of a shipped {kind}, or a path")
    path, root = Path(word), folder(kind)
    try:
        if path.exists():
            return path
    except OSError as error:  # for example, the name is too long
        raise InputError(f"{path}: {error.strerror}") from None
    if not path.suffix and not path.is_absolute() and ".." not in path.parts:
        for shipped in (root / f"{word}.yaml", root / word):
            if shipped.exists():
                return shipped
    more = others(path)
    if str(word) in more or path.suffix not in ("", ".yaml", ".yml"):
        return more.get(str(word), path)
    raise unknown(kind, str(word), path.stem, [*names(kind), *more])


def page(name: str) -> Path:
    """A page of the documentation, such as `guide/tour.md`: relative to the current folder if the page is inside."""
    path = (Path(__file__).parent / "docs" / name).resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def unknown(kind: Kind, word: str, name: str, known: Sequence[str]) -> InputError:
    """The error for an unknown name: shows the most similar `known` name, all names, or the command that lists them."""
    last = {shipped.rpartition("/")[2]: shipped for shipped in known}
    near = last.get(name) or next(iter(difflib.get_close_matches(name, [*known, *last], n=1)), "")
    every = f"available: {', '.join(known)}" if len(known) <= MOST_NAMED else f"`fattn-probe {kind} list` lists them"
    hint = f"did you mean {last.get(near, near)}?" if near else every
    return InputError(f"{word}: no such file, and no shipped {kind} of that name; {hint}")
