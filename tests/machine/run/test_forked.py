"""A runner that forks, simulated by a shell script; and a real one, whose children end in many ways."""

from dataclasses import replace

import pytest

from fattn_probe.base.errors import LostError
from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.llama.build import RUNNER
from fattn_probe.machine.run.inputs import make_case_file
from fattn_probe.machine.run.outcome import Failed, Lost, Ran
from fattn_probe.machine.run.runner import SIGPROF, forked_runner
from fattn_probe.machine.run.simulator import Simulation
from tests.made import executable


@pytest.fixture
def fake(tmp_path):
    def start(script):
        path = executable(tmp_path / "runner", f"#!/bin/sh\necho 'fattn-runner: ready'\n{script}\n")
        return forked_runner(path, (), env={}, folder=tmp_path, timeout=60)

    return start


def test_a_line_has_the_case_the_mutant_and_its_limit(fake, tmp_path):
    script = f"read -r line; echo \"$line\" > {tmp_path}/said; echo 'fattn-runner: ended -11 0.25'"
    with fake(script) as runner:
        child = runner.run(tmp_path / "case", mutant=7, limit=1.5)
    assert (child.code, child.seconds, child.output) == (-11, 0.25, (b"", ""))
    assert (tmp_path / "said").read_text() == f"{tmp_path}/case\t{tmp_path}/out.gguf\t\t7\t1.500\n"


def test_what_a_child_inherits_is_not_searched_for_leaks(fake, tmp_path):
    script = f"read -r line; echo $LSAN_OPTIONS > {tmp_path}/said; echo 'fattn-runner: ended 0 0.25'"
    with fake(script) as runner:
        runner.run(tmp_path / "case")
    assert (tmp_path / "said").read_text() == "detect_leaks=0\n"


@pytest.mark.parametrize("ending", ["exit 1", "echo 'fattn-runner: done'; sleep 60"])
def test_a_runner_that_ends_or_says_something_else_is_lost(fake, tmp_path, ending):
    with fake(f"read -r line; {ending}") as runner, pytest.raises(LostError):
        runner.run(tmp_path / "case")


@pytest.mark.build
@pytest.mark.network
def test_children_end_and_the_runner_goes_on(tmp_path, session):
    scenario = "version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_kv: 256\nn_q: 8\nmatrix: {n_kv: [256, 65536]}\n"
    target = parse_target("sim:h200", load_devices())
    for name, case in zip(("case", "long"), expand(loads(scenario)), strict=True):
        session.run(case, make_case_file(case, tmp_path / f"{name}.gguf"), target)  # compiles what it needs
    reached = replace(session, options=replace(session.options, simulation=Simulation(threads=1)))
    build, env = session.build_for(target), reached.env(target)
    (tmp_path / "bad").write_text("no case")
    with forked_runner(build.program(RUNNER), (), env=env, folder=tmp_path, timeout=60) as runner:
        first = runner.run(tmp_path / "case.gguf").output
        assert len(first[0]) == 4 * 2 * 8 * 64
        assert "flash_attn" in first[1]
        bad = runner.run(tmp_path / "bad")
        assert (bad.code, bad.output) == (1, (b"", ""))
        assert isinstance(bad.outcome(None, None), Failed | Lost)
        slow = runner.run(tmp_path / "long.gguf", limit=0.001)  # ends late: a timer notices after 4 to 10 ms
        assert slow.code == SIGPROF
        hung = slow.outcome(None, None)
        assert isinstance(hung, Lost)
        assert "processor time" in hung.message
        again = runner.run(tmp_path / "case.gguf")
        assert again.output == first
        assert isinstance(again.outcome(None, None), Ran)
