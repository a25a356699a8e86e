"""The shipped cases, each with the mark of the run that inspects it: a debug build of its kernel takes seconds."""

from pathlib import Path

import pytest

from fattn_probe.cases.scenario import expand, load
from fattn_probe.daily.inspect.inspector import InspectOptions, Inspector
from fattn_probe.llama.source import DEFAULT_SOURCE, patches, resolve
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation

SCENARIOS = Path(__file__).parents[3] / "scenarios"
CASES = {case.name: case for path in sorted(SCENARIOS.glob("*.yaml")) for case in expand(load(path))}
MARKS = {
    "gqa": (),
    "streamk-fractional": (pytest.mark.slow,),
    "sequences-n_seq=4-n_q=8-n_kv=256-mask=causal": (pytest.mark.slow,),
}


def every_shipped_case():
    """Parametrizes a test by all cases: one for `scripts/test`, three kinds of launch for CI, the rest at night."""
    marked = [pytest.param(case, id=name, marks=MARKS.get(name, pytest.mark.night)) for name, case in CASES.items()]
    return pytest.mark.parametrize("case", marked)


def inspector_of(source=DEFAULT_SOURCE, patch=None, **options):
    """Inspects a debug build of a source, with a patch if one is named."""
    tree = resolve(source)
    found = (patches.find(str(patch), tree),) if patch else ()
    run = RunOptions(tree, "debug", simulation=Simulation(threads=1), patches=found)
    return Inspector(Session(run), InspectOptions(**options))
