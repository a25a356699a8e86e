"""Classes of faults that `quick` once missed: a planted fault of each, and the case of a suite that shows it."""

from pathlib import Path

import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.shipped import find
from fattn_probe.daily.regress.entries import own_cases
from fattn_probe.daily.regress.suite import load_suite
from fattn_probe.llama.source.patches import find as find_patch
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.judge.cases import judge_case
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.measure.verdict import Status

PATCHES = Path(__file__).parents[2] / "data/classes"
LATENT = "latent-type_K=q8_0-n_kv=256-n_seq=2-pad=64-K=view+rows320+offset32"
FAULTS = {
    "ada-configuration": ("ada", "sim:rtx4090", "mqa"),
    "ungrouped-chunks": ("", "sim:h200", "ungrouped-hsk=80-n_q=5"),
    "mask-alignment": ("", "sim:h200", "alignment-n_q=5-mask=columns258+offset1"),
    "first-of-two-queries": ("", "sim:h200", "boundaries-past=31"),
    "rows-to-convert": ("", "sim:h200", "long-rows-type_K=bf16"),
    "latent-strides": ("pascal", "sim:gtx1060", LATENT),
}
CHECKS = Checks(roundings=True)
IN_CI = "first-of-two-queries"
"""The others take the same path, each with kernels of its own to compile twice."""


def entry_of(suite, name):
    path = find("suite", suite)
    (entry,) = [entry for entry in load_suite(path).parts if entry.name == name]
    return entry, path.parent


def case_of(suite, name, case):
    entry, folder = entry_of(suite, name)
    return next(found for found in own_cases(entry, folder) if found.name == case)


@pytest.mark.parametrize(("entry", "on", "case"), FAULTS.values(), ids=FAULTS)
def test_quick_has_a_case_of_each_class(entry, on, case):
    assert on in entry_of("quick", entry)[0].on
    assert case_of("quick", entry, case)


@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=pytest.mark.slow if name == IN_CI else pytest.mark.night) for name in FAULTS]
)
def test_the_case_shows_a_fault_of_its_class(tree, fault):
    entry, on, name = FAULTS[fault]
    case, target = case_of("quick", entry, name), parse_target(on, load_devices())
    patched = Session(RunOptions(tree, patches=(find_patch(str(PATCHES / f"{fault}.patch"), tree),)))
    assert judge_case(Session(RunOptions(tree)), case, target, CHECKS).status is Status.PASS
    found = judge_case(patched, case, target, CHECKS)
    assert found.status is Status.FAIL, found.reason
    assert not found.known
