"""Support and kernels of every AMD GPU: what the built backend says, and what its source says when it is read."""

import random
import re
from pathlib import Path

import pytest

from fattn_probe.base.process import run
from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario.cases import cases_of as cases_in
from fattn_probe.cases.shipped import files
from fattn_probe.daily.ops.rounds import cases_of
from fattn_probe.llama.build import TEST_BACKEND_OPS
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.families import BY_CASE
from fattn_probe.machine.run.prepare import dry_runs
from fattn_probe.verdict.judge.support import BETWEEN, shipped, shipped_choices
from tests.llama.launch.read_choice import Choice

AMD = [device for device in load_devices().values() if device.gfx]
LISTED = re.compile(r"(FLASH_ATTN_EXT\([^()]*\)): (?:\x1b\[[0-9;]*m)?(NOT )?SUPPORTED")
SEED, SAMPLE = 2026, 30


def case_of(kernel):
    """The kernel case that has a kernel: `mma 64,64,8,8` of `mma 64,64,8,8,false`."""
    family, _, values = kernel.partition(" ")
    return f"{family} {','.join(BY_CASE[family].case_arguments(tuple(values.split(','))))}" if kernel else ""


def compared(kernel):
    """A kernel; only the kernel case of mma, which the host function of the case chooses from."""
    return case_of(kernel) if kernel.startswith("mma ") else kernel


@pytest.mark.network
@pytest.mark.parametrize("device", AMD, ids=lambda device: device.gfx)
def test_the_shipped_tables_say_what_the_source_says(device, tree):
    """A sample of the ops of scenarios; the tables are what `scripts/support` got from the built backend."""
    choice = Choice(tree.root, arch_number(device.gfx))
    cases = {case.op.digest: case for case in cases_in(list(files("scenario")))}
    supported, launched = shipped(), shipped_choices()
    for op in random.Random(f"{SEED} {device.gfx}").sample(sorted(cases), SAMPLE):
        assert choice.supports(cases[op].op) == (device.gfx in supported[op].on[11549]), cases[op].name
        assert case_of(choice.kernel(cases[op].op)) in launched[op][device.gfx].split(BETWEEN), cases[op].name


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
@pytest.mark.parametrize("device", AMD, ids=lambda device: device.gfx)
def test_the_backend_supports_and_launches_what_the_source_says(device, tree, session):
    """All of upstream's list: `supports_op` of the built backend, and its launches in dry runs."""
    target = parse_target(f"sim:{device.id}", load_devices())
    program = session.build_for(target, TEST_BACKEND_OPS).test_backend_ops
    words: list[str | Path] = [program, "support", "-b", target.backend, "-o", "FLASH_ATTN_EXT"]
    listed = dict(LISTED.findall(run(words, env=session.env(target, TEST_BACKEND_OPS)).stdout))
    assert len(listed) > 5_000
    cases = {case.name: case for case in cases_of(listed, tree.root)}
    assert len(cases) > 0.99 * len(listed)
    choice = Choice(tree.root, arch_number(device.gfx))
    assert {name: choice.supports(case.op) for name, case in cases.items()} == {
        name: not listed[name] for name in cases
    }
    launched = dry_runs(session, cases, target)
    launched |= dry_runs(session, {name: cases[name] for name in cases.keys() - launched.keys()}, target)  # lost runs
    assert {name: compared(choice.kernel(case.op)) for name, case in cases.items()} == {
        name: compared(next(iter(launched.get(name, ())), "")) for name in cases
    }
