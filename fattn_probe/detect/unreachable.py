"""Lines of the attention sources, or outcomes in them, that no op on an NVIDIA GPU reaches: unreachable.yaml."""

from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import Field

from fattn_probe.detect.counts import Coverage, Place
from fattn_probe.detect.equivalents import matches
from fattn_probe.detect.measure import CUDA
from fattn_probe.scenario.spec import Spec
from fattn_probe.source import Tree

LIST = Path(__file__).parent / "unreachable.yaml"


class Unreachable(Spec):
    """Lines of which something is never executed, and why. Texts between slashes are regular expressions."""

    because: str = Field(min_length=20)
    """The argument."""
    file: str
    """The file of ggml-cuda/."""
    lines: list[str] = Field(min_length=1)
    """The lines, as in the source but for indentation."""
    within: list[int] = Field(default=[], min_length=2, max_length=2)
    """The first and last line, in the default release, if the same text elsewhere is reached."""


def read(path: Path = LIST) -> tuple[Unreachable, ...]:
    """The list in a file."""
    return tuple(map(Unreachable.model_validate, yaml.safe_load(path.read_text())))


def places(tree: Tree, known: Sequence[Unreachable]) -> dict[Place, str]:
    """Why lines of a release are not reached; none of a file that it lacks."""
    found = {}
    for file in {item.file for item in known}:
        path = tree.root / CUDA / file
        texts = path.read_text(errors="replace").splitlines() if path.is_file() else []
        for number, text in enumerate(texts, 1):
            for item in known:
                within = not item.within or item.within[0] <= number <= item.within[1]
                if item.file == file and within and any(matches(line, text.strip()) for line in item.lines):
                    found[file, number] = item.because
    return found


def refuted(coverage: Coverage) -> list[Place]:
    """The lines that are said not to be reached, but were executed with all outcomes."""
    lines = {(file, number): coverage.files.get(file, {}).get(number) for file, number in coverage.unreachable}
    return sorted(place for place, line in lines.items() if line and line.count and line.taken == len(line.branches))
