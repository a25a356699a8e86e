"""How many blocks fit on an SM: the simulator's answers, from ptxas's figures and the device's limits.

`fits` repeats NVIDIA's occupancy calculation from its documentation. What a real driver answered is compared in
tests/test_agreement_h200.py.
"""

from pathlib import Path

import pytest

from fattn_probe.cases.device import figures_of, load_devices, parse_target
from fattn_probe.cases.scenario.files import cases_of
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.machine.run.command import plan_cases
from fattn_probe.machine.run.outcome import Ran
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation

CASES = cases_of([Path(__file__).parents[3] / "scenarios"])
SLOW, NIGHT = pytest.mark.slow, pytest.mark.night
IN_CI = ("h200",)
"""Each architecture needs its own kernels, which take a core five minutes; other tests have those of the H200."""


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


def attention_launches(device):
    tree = resolve(DEFAULT_SOURCE)
    session = Session(RunOptions(tree, simulation=Simulation(dry=True, skip_kernels=True)))
    work = [(case, [parse_target(f"sim:{device}", load_devices())]) for case in CASES]
    prepare(session, work)
    planned = list(plan_cases(session, work))
    assert len(planned) == 41
    for item in planned:
        assert isinstance(item.result, Ran), item
        yield from (launch for launch in item.result.launches if launch.kernel.startswith("flash_attn_"))


@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize(
    "device", [pytest.param(name, marks=SLOW if name in IN_CI else NIGHT) for name in load_devices()]
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
