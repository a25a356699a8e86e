"""A thousand random cases of correct kernels, over six GPUs and all families: none is called wrong or suspicious."""

import runpy
from collections import Counter
from pathlib import Path

import pytest

from fattn_probe.compare.judge.cases import judge_cases
from fattn_probe.compare.judge.checks import Checks
from fattn_probe.compare.judge.verdict import FEW_BITS, Status
from fattn_probe.device import load_devices, parse_target
from fattn_probe.run.prepare import prepare
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.source import DEFAULT_SOURCE, resolve

pytestmark = [pytest.mark.build, pytest.mark.night, pytest.mark.network]

RANDOM_CASES = runpy.run_path(str(Path(__file__).parents[2] / "truth/error_model/random_cases.py"))["random_cases"]
AT_ONCE = 125


@pytest.mark.parametrize("seed", range(100, 108))
def test_no_correct_kernel_is_called_wrong(seed):
    devices = load_devices()
    work = [(case, [parse_target(target, devices)]) for case, target in RANDOM_CASES(seed, AT_ONCE)]
    session = Session(RunOptions(resolve(DEFAULT_SOURCE)))
    prepare(session, work)
    rows = list(judge_cases(session, work, Checks(model="always")))
    assert [f"{row.case} on {row.on}: {row.reason}" for row in rows if row.status is not Status.PASS] == []
    assert [row.case for row in rows if FEW_BITS in row.warning] == []
    assert Counter(row.verdict.design is not None for row in rows) == {True: AT_ONCE}
    assert sum(row.verdict.design.equal_bits is not None for row in rows) > 0.9 * AT_ONCE
