"""The shipped cases, each with the mark of the run that inspects it: a debug build of its kernel takes seconds."""

import pytest

from fattn_probe.cases.scenario import expand, load
from fattn_probe.daily.inspect.inspector import InspectOptions, Inspector
from fattn_probe.llama.source import DEFAULT_SOURCE, patches, resolve
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation
from tests.made import SCENARIOS

CASES = {case.name: case for path in sorted(SCENARIOS.glob("*.yaml")) for case in expand(load(path))}
IN_CI = ("streamk-fractional", "sequences-n_seq=4-n_q=8-n_kv=256-mask=causal")


def every_shipped_case():
    """Parametrizes a test by all cases: one for `scripts/test`, other kinds of launch for CI, the rest at night."""
    marks = {name: pytest.mark.night for name in CASES} | dict.fromkeys(IN_CI, pytest.mark.slow) | {"gqa": ()}
    return pytest.mark.parametrize("case", [pytest.param(CASES[name], id=name, marks=marks[name]) for name in CASES])


def inspector_of(source=DEFAULT_SOURCE, patch=None, **options):
    """Inspects a debug build of a source, with a patch if one is named."""
    tree = resolve(source)
    found = (patches.find(str(patch), tree),) if patch else ()
    run = RunOptions(tree, "debug", simulation=Simulation(threads=1), patches=found)
    return Inspector(Session(run), InspectOptions(**options))
