"""Write the kept cases as scenario files, one for each target."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import yaml

from fattn_probe.files import make_folder, write_text
from fattn_probe.fuzz.run import Judged
from fattn_probe.scenario.matrix import MAX_CASES

REQUIRED = ("hsk", "n_head", "n_q", "n_kv")


def write_cases(cases: Sequence[Judged], folder: Path) -> Iterator[Path]:
    """Write `fuzz-TARGET.yaml` for each target to a folder; yields the paths. The order is that of the numbers."""
    make_folder(folder, "--keep")
    ordered = sorted(cases, key=lambda judged: (judged.on, judged.drawn.number))
    for on, group in groupby(ordered, key=lambda judged: judged.on):
        path = folder / f"fuzz-{on.removeprefix('sim:')}.yaml"
        write_text(path, text_of(list(group)[:MAX_CASES], on))
        yield path


def text_of(cases: Sequence[Judged], on: str) -> str:
    """A scenario file with a case on each line."""
    settings = cases[0].drawn.settings
    base = {
        "version": 1,
        "about": "random cases with a new pair of features",
        **{key: settings[key] for key in REQUIRED},
    }
    head = yaml.safe_dump(base | {"device": on}, sort_keys=False)
    lines = [f"  - {flow({'name': named(judged)} | judged.drawn.settings)}\n" for judged in cases]
    return f"{head}matrix:\n  include:\n{''.join(lines)}"


def named(judged: Judged) -> str:
    """`SEED-NUMBER`."""
    return judged.drawn.case.name.removeprefix("fuzz-")


def flow(value: object) -> str:
    """A value on one line."""
    return yaml.safe_dump(value, sort_keys=False, default_flow_style=True, width=10**6).strip()
