"""How many blocks fit on an SM: the simulator's answers, from ptxas's figures and the device's limits.

`fits` repeats NVIDIA's occupancy calculation from its documentation. What a real driver answered is compared in
tests/test_agreement_h200.py.
"""

import pytest

from fattn_probe.cases.device import figures_of, load_devices, parse_target
from fattn_probe.cases.scenario.cases import cases_of
from fattn_probe.llama.launch.record import parse_launches
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.machine.run.prepare import dry_runs, op_digest
from fattn_probe.machine.run.session import RunOptions, Session
from tests.made import SCENARIOS

CASES = cases_of([SCENARIOS])
SLOW, NIGHT = pytest.mark.slow, pytest.mark.night
IN_CI = ("h200",)
"""Each architecture needs a build of the host code, which takes a core 17 s; other tests have that of the H200."""


def up(number, unit):
    return -(-number // unit) * unit


def fits(device, resources, launch):
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    warps = up(threads, 32) // 32
    by_warps = device.maxThreadsPerMultiProcessor // 32 // warps
    quarter = device.regsPerMultiprocessor // 4  # a warp's registers are in one of an SM's four parts
    by_registers = quarter // up(32 * resources.registers, 256) * 4 // warps
    unit = 128 if device.major >= 8 else 256
    shared = up(resources.shared + launch.shared + device.reservedSharedMemPerBlock, unit)
    by_shared = device.sharedMemPerMultiprocessor // shared if shared else by_warps
    return min(by_warps, by_registers, by_shared, device.maxBlocksPerMultiProcessor)


def recorded_launches(tree):
    """A reader of dry runs: every launch, with all that the simulator says of it."""
    return lambda done: tuple(launch.to_json() for launch in done.result.launches)


def attention_launches(device):
    """By the host code alone: what fits on an SM follows from figures, so no kernel is compiled."""
    session = Session(RunOptions(resolve(DEFAULT_SOURCE)))
    cases = {op_digest(case.op): case for case in CASES}
    planned = dry_runs(session, cases, parse_target(f"sim:{device}", load_devices()), recorded_launches)
    assert planned.keys() == cases.keys() and len(cases) == 36
    for lines in planned.values():
        yield from (launch for launch in parse_launches("\n".join(lines)) if launch.kernel.startswith("flash_attn_"))


@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize(
    "device",
    [pytest.param(name, marks=SLOW if name in IN_CI else NIGHT) for name, it in load_devices().items() if not it.gfx],
)
def test_planned_blocks_per_sm_are_the_occupancy_calculators(device):
    gpu = load_devices()[device]
    figures = figures_of(gpu.arch, resolve(DEFAULT_SOURCE).build_number)
    launches = list(attention_launches(device))
    assert launches
    for launch in launches:
        resources = figures[launch.spelling].resources
        assert (launch.regs, launch.static_shared) == (resources.registers, resources.shared), launch
        assert launch.max_blocks_per_sm == fits(gpu, resources, launch), launch
