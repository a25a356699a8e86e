"""The shipped cases, each with the mark of the run that inspects it: a debug build of its kernel takes seconds."""

from pathlib import Path

import pytest

from fattn_probe.scenario import expand, load

SCENARIOS = Path(__file__).parents[2] / "scenarios"
CASES = {case.name: case for path in sorted(SCENARIOS.glob("*.yaml")) for case in expand(load(path))}
MARKS = {
    "gqa": (),
    "streamk-fractional": (pytest.mark.slow,),
    "sequences-n_seq=4-n_q=8-n_kv=256-mask=causal": (pytest.mark.slow,),
    "sparse-hsk=256": (pytest.mark.slow,),
}


def every_shipped_case():
    """Parametrizes a test by all cases: one for `scripts/test`, four kinds of launch for CI, the rest at night."""
    marked = [pytest.param(case, id=name, marks=MARKS.get(name, pytest.mark.night)) for name, case in CASES.items()]
    return pytest.mark.parametrize("case", marked)
