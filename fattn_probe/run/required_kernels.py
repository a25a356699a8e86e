"""The kernels that cases launch on an architecture, found by a dry run on the simulator; needs no GPU."""

from collections.abc import Sequence

from fattn_probe.build import BuildRequest
from fattn_probe.build.ninja import Report
from fattn_probe.device import Device, Target, load_devices
from fattn_probe.errors import InputError
from fattn_probe.launch.architecture import arch_number
from fattn_probe.launch.families import BY_KERNEL
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.run.command import plan_cases
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario import Case
from fattn_probe.source import KernelCase, kernel_cases


def required_kernels(request: BuildRequest, cases: Sequence[Case], progress: Report) -> list[KernelCase]:
    """The kernel cases that a build for `request.arch` runs these cases with, on the catalogue's GPU of that arch."""
    target = Target("sim", device_of(request.arch))
    options = RunOptions(request.tree, patches=request.patches, quants=request.quants, simulation=Simulation(dry=True))
    known = {(case.family, case.args): case for case in kernel_cases(request.tree)}
    done = plan_cases(Session(options, progress), [(case, [target]) for case in cases])
    wanted = [known.get(kernel_key(launch)) for item in done for launch in item.launches]
    return list({case.name: case for case in wanted if case is not None}.values())


def device_of(arch: str) -> Device:
    """The first GPU of the catalogue with an architecture."""
    for device in load_devices().values():
        if arch_number(device.arch) == arch_number(arch):
            return device
    raise InputError(
        f"no GPU of the catalogue has arch {arch}, so it is not known which kernels these scenarios need there; "
        "name them with --kernel, or build without scenarios: a run compiles what it misses"
    )


def kernel_key(launch: LaunchRecord) -> tuple[str, tuple[str, ...]]:
    """Family and arguments of the kernel case that a launch is of; ("", ()) for a kernel that comes with others."""
    family = BY_KERNEL.get(launch.kernel)
    arguments = family.case_arguments(launch.values) if family else ()
    return (family.case, arguments) if family and arguments else ("", ())
