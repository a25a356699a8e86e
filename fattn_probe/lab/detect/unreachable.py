"""Lines of the attention sources, or outcomes in them, that no op on an NVIDIA GPU reaches: unreachable.yaml."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from pydantic import Field

from fattn_probe.cases.scenario.spec import Spec
from fattn_probe.lab.detect.counts import LineCoverage, Place
from fattn_probe.lab.detect.equivalents import matches
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA

LIST = Path(__file__).parent / "unreachable.yaml"


class Unreachable(Spec):
    """Lines with something that is never executed, and the reason. Texts in slashes are regular expressions."""

    because: str = Field(min_length=20)
    """The argument."""
    file: str
    """The file of ggml-cuda/."""
    lines: list[str] = Field(min_length=1)
    """The lines, as in the source except for indentation."""
    after: str = ""
    """Only after the first line equal to this."""
    until: str = ""
    """Only before the next line equal to this."""


def read(path: Path = LIST) -> tuple[Unreachable, ...]:
    """The list in a file."""
    return tuple(map(Unreachable.model_validate, yaml.safe_load(path.read_text())))


def places(tree: Tree, known: Sequence[Unreachable]) -> dict[Place, str]:
    """The reasons why lines of a release are not reached; none for files that it lacks."""
    found: dict[Place, str] = {}
    for item in known:
        path = tree.root / CUDA / item.file
        text = path.read_text(errors="replace") if path.is_file() else ""
        lines = [line.strip() for line in text.splitlines()]
        found |= {(item.file, number): item.because for number in numbers(item, lines)}
    return found


def numbers(item: Unreachable, texts: Sequence[str]) -> Iterator[int]:
    """The lines of a file that an entry matches."""
    first = place(item.after, texts, 0) + 1 if item.after else 0
    last = place(item.until, texts, first) if item.until else len(texts)
    for number, text in enumerate(texts[first:last], first + 1):
        if any(matches(line, text) for line in item.lines):
            yield number


def place(wanted: str, texts: Sequence[str], first: int) -> int:
    """The index of the next line that matches; past the end if there is none."""
    return next((at for at in range(first, len(texts)) if matches(wanted, texts[at])), len(texts))


def refuted(coverage: LineCoverage) -> list[Place]:
    """The lines that are listed as unreachable but were executed with all outcomes."""
    lines = {(file, number): coverage.files.get(file, {}).get(number) for file, number in coverage.unreachable}
    return sorted(place for place, line in lines.items() if line and line.count and line.taken == len(line.branches))
