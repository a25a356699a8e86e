"""The simulator compared with a real H100 on scripts/random-scenarios: launches of all, bits of some."""

import subprocess
from pathlib import Path

import pytest

from fattn_probe.cases.scenario.cases import cases_of
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.record import in_words
from fattn_probe.machine.run.capture import Capture
from fattn_probe.machine.run.prepare import dry_runs, op_digest, prepare
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.measure.metrics import digest_of
from maintain.agreement import hashes_of, read_hashes
from tests.made import H200, ROOT

H100 = read_hashes(Path(__file__).parent / "data/h100-random.csv.gz")
"""Hashes of 300 cases on an H100 (2026-11-25, llama.cpp b11549, nvcc 13.0)."""
SCRIPT = ROOT / "scripts/random-scenarios"
# Head sizes 80 and 96, whose blocks on an SM, and so their bits, follow from ptxas's figures; 64 with q8_0; 72, and the
# one that rescales VKQ by the multiply-add of a step's first row.
SOME = ("random-078", "random-048", "random-049", "random-212", "random-287", "random-242")

pytestmark = [pytest.mark.build, pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    subprocess.run([SCRIPT, folder, "--count", str(len(H100))], check=True)
    return {case.name: case for case in cases_of(sorted(folder.glob("*.yaml")))}


def test_every_scenario_is_the_recorded_one(cases):
    assert {name: case.digest for name, case in cases.items()} == {name: there.digest for name, there in H100.items()}


def words_of_launches(tree):
    """A reader of dry runs."""
    return lambda done: (in_words(done.result.launches),)


def test_every_scenario_has_the_h100_s_launches(cases, tree):
    """By the host code alone, so that no kernel is compiled."""
    of_op = {op_digest(case.op): case for case in cases.values()}
    planned = dry_runs(Session(RunOptions(tree)), of_op, H200, words_of_launches)
    here = {name: hashes_of("", planned[op_digest(case.op)][0], "").launches for name, case in cases.items()}
    assert here == {name: there.launches for name, there in H100.items()}


@pytest.mark.night  # a kernel is compiled for each
@pytest.mark.parametrize("name", SOME)
def test_some_scenarios_have_the_h100_s_bits(name, cases, session):
    case = cases[name]
    prepare(session, [(case, [H200])])
    here = session.capture(case, make_inputs(case), H200)
    assert isinstance(here, Capture), here
    assert hashes_of(case.digest, in_words(here.launches), digest_of(here.dst)) == H100[name]
