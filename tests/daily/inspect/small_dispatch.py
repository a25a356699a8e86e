"""A small program whose dispatch has every form that upstream's has had, in any era."""

from pathlib import Path

FILES = {path.name: path.read_text() for path in sorted(Path(__file__).with_suffix("").iterdir())}
COMMON, HEADER, SOURCE = (FILES[name] for name in ("common.cuh", "fattn-tile.cuh", "fattn.cu"))


def line_of(text: str, beginning: str) -> int:
    """The number of the first line of a file that begins so, blanks aside."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.strip().startswith(beginning))
