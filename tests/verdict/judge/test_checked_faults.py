"""Each fault planted in an attention kernel is found: by the checker, or when the kernel is launched."""

import re

import pytest

from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.source import DEFAULT_SOURCE, patches, resolve
from fattn_probe.machine.run.outcome import Failed, Finding
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation
from tests.as_user import fattn_probe
from tests.made import H200, case_of, shape

pytestmark = [pytest.mark.build, pytest.mark.slow, pytest.mark.network]

FAULTS = {
    2: ("barrier-divergence", "planted: two barriers"),
    3: ("misaligned", "planted: misaligned pair"),
    4: ("uninitialized-global", "planted: never written"),
    5: ("race", "planted: two blocks write"),
    6: ("race", "planted: a block reads"),
    7: ("overflow", "planted: product"),
    8: ("overflow", "planted: lost bits"),
    9: ("race", "planted: no wait"),
    10: ("shared-memory", "planted: static shared memory"),
    13: ("lanes-missing", "planted: lanes missing"),
    14: ("shared-memory", "planted: static and dynamic shared memory"),
    15: ("misaligned", "planted: misaligned int"),
    16: ("misaligned", "planted: misaligned int4"),
    17: ("uninitialized-shared", "planted: unwritten shared"),
    21: ("barrier-divergence", "planted: barrier not reached"),
}


def scenario_of(fault):
    """It chooses a fault of fault-many.patch."""
    return shape(64, 4, 4, 1, 256, f"scale: {fault}")


@pytest.fixture(scope="module")
def session(tree):
    patch = patches.find("fault-many", tree)
    return Session(RunOptions(tree, flavour="check", patches=(patch,), simulation=Simulation(threads=1)))


def line_of(marker):
    """The number of the line of the patched fattn-vec.cuh that ends in a comment."""
    patch = patches.find("fault-many", resolve(DEFAULT_SOURCE)).text
    (hunk,) = (hunk for hunk in re.split(r"^(?=@@)", patch, flags=re.MULTILINE) if f"// {marker}\n" in hunk)
    start = int(re.match(r"@@ \S+ \+(\d+),", hunk)[1])
    before = hunk[: hunk.index(f"// {marker}\n")].splitlines()[1:]
    return start + sum(not line.startswith("-") for line in before) - 1


def outcome_of(session, fault):
    case = case_of(scenario_of(fault))
    return session.run(case, make_inputs(case), H200)


def finding_of(session, fault):
    outcome = outcome_of(session, fault)
    assert isinstance(outcome, Finding), outcome
    return outcome


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_where_it_is(session, fault):
    kind, marker = FAULTS[fault]
    outcome = finding_of(session, fault)
    assert outcome.kind == kind, outcome.message
    assert f"fattn-vec.cuh:{line_of(marker)}" in outcome.frames[0]


def test_compare_shows_a_race_with_its_line(tmp_path):
    path, (kind, marker) = tmp_path / "race.yaml", FAULTS[5]
    path.write_text(scenario_of(5))
    done = fattn_probe("compare", path, "--on", "sim:h200", "--check", "--patch", "fault-many", code=5)
    assert f"{kind}: " in done.stdout and f"fattn-vec.cuh:{line_of(marker)}" in "".join(done.stdout.split())


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (11, "invalid argument"),
        (18, "invalid argument"),
        (19, "invalid argument"),
        (20, "too many resources requested for launch"),
    ],
)
def test_a_launch_that_a_driver_refuses_fails(session, fault, error):
    outcome = outcome_of(session, fault)
    assert isinstance(outcome, Failed), outcome
    assert f"CUDA error: {error}" in outcome.message


def test_an_argument_in_host_memory_or_that_loses_bits_is_found(session):
    outcome = finding_of(session, 12)
    assert outcome.kind == "host-memory"
    assert "argument 6 of flash_attn_ext_vec" in outcome.message
    outcome = finding_of(session, 22)
    assert outcome.kind == "overflow"
    assert "4294967424 is stored in 32 bits" in outcome.message  # nb11 of 64 halves
    assert "launch_fattn" in " ".join(outcome.frames)
