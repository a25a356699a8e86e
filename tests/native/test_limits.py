"""What a GPU's toolchain and driver refuse, the simulator refuses too.

The errors were recorded on an H100 (CUDA 13.0, driver 580.159.04, 2026-11-22).
"""

from pathlib import Path

import pytest

from fattn_probe.llama.launch.record import parse_launches
from tests.native.cuda_program import Program, compile_programs

pytestmark = pytest.mark.build

GEOMETRY = """
1024 threads: cudaSuccess
1025 threads: cudaErrorInvalidValue
32 * 33 threads: cudaErrorInvalidValue
65 threads in z: cudaErrorInvalidValue
no threads: cudaErrorInvalidValue
no blocks: cudaErrorInvalidValue
65536 blocks in y: cudaErrorInvalidValue
65536 blocks in z: cudaErrorInvalidValue
2^31 blocks in x: cudaErrorInvalidValue
as many threads as the launch bounds: cudaSuccess
more threads than the launch bounds: cudaErrorInvalidValue
as many registers as there are: cudaSuccess
more registers than there are: cudaErrorLaunchOutOfResources
"""
DYNAMIC_SHARED = """
49152 bytes: cudaSuccess
49153 bytes: cudaErrorInvalidValue
attribute: 100000: cudaSuccess
100000 bytes: cudaSuccess
100001 bytes: cudaErrorInvalidValue
100000 bytes of another kernel: cudaErrorInvalidValue
occupancy: 2 0
attribute: 1000: cudaSuccess
2000 bytes: cudaErrorInvalidValue
attribute: 232448: cudaSuccess
attribute: 232449: cudaErrorInvalidValue
attribute: -1: cudaErrorInvalidValue
"""
STATIC = {
    "static_80k": "too much shared data (0x14000 bytes, 0xc000 max): ptxas refuses to compile it",
    "static_and_dynamic": "40960 bytes of static and 8193 of dynamic shared memory are more than the 49152",
    "static_and_attribute": "40960 bytes of static shared memory and the 232448 dynamic ones",
}


@pytest.fixture
def limits(programs, flavour):
    return programs["limits", flavour]


@pytest.fixture
def resources(tmp_path):
    """A file of kernels' resources: 128 registers a thread, as many as 512 threads can have."""
    path = tmp_path / "resources"
    path.write_text("128 0 0 uses_many_registers\n")
    return path


@pytest.mark.parametrize(("name", "said"), [("geometry", GEOMETRY), ("dynamic_shared", DYNAMIC_SHARED)])
def test_launches_are_refused_with_the_errors_of_a_gpu(limits, resources, name, said):
    done = limits.run(name, FATTN_PROBE_RESOURCES=str(resources))
    assert done.code == 0, done.stderr
    assert done.stdout.decode() == said.lstrip()


@pytest.mark.parametrize(("origin", "said"), [("0 0 0 # measured b7551\n", "measured b7551"), ("", "unknown")])
def test_a_launch_is_recorded_with_the_origin_of_its_figures(limits, tmp_path, origin, said):
    """A line of another origin comes before; launch bounds, and kernels without them, are assumed."""
    figures, launches = tmp_path / "figures", tmp_path / "launches"
    figures.write_text(f"{origin}128 0 0 uses_many_registers\n0 0 0 # estimated\n64 0 0 another_kernel\n")
    done = limits.run("geometry", FATTN_PROBE_RESOURCES=str(figures), FATTN_PROBE_LAUNCHES=str(launches))
    assert done.code == 0, done.stderr
    found = {launch.kernel: str(launch.origin) for launch in parse_launches(launches.read_text())}
    assert found.pop("uses_many_registers") == said
    assert set(found.values()) == {"assumed"}


@pytest.mark.parametrize("name", STATIC)
def test_too_much_static_shared_memory_is_a_finding(limits, name):
    found = limits.fault(name)
    assert found.kind == "shared-memory"
    assert STATIC[name] in found.message
    assert found.line == limits.line(f"fault: {'static_80k' if name == 'static_80k' else 'static_40k'}")


@pytest.mark.parametrize("name", ["static_within", "pinned"])
def test_what_a_gpu_accepts_is_accepted(limits, name):
    done = limits.run(name)
    assert done.code == 0, done.stderr


def test_an_access_to_host_memory_is_found_by_the_checker(programs):
    found = programs["limits", "check"].fault("host_pointer")
    assert (found.kind, found.line) == ("host-memory", programs["limits", "check"].line("fault: reads_from"))


def test_a_pointer_into_host_memory_is_found_at_the_launch(limits):
    found = limits.fault("host_argument")
    assert found.kind == "host-memory"
    assert "argument 2 of reads points into host memory" in found.message


def test_a_finding_on_an_amd_gpu_has_hip_s_names():
    text = Path(__file__).with_name("limits.cu").read_text()
    (path,) = compile_programs({"limits.cu": text}, "release", "gfx942")
    found = Program(path, text).fault("host_argument", device="mi300x")
    assert "points into host memory, which this GPU cannot access (hipErrorIllegalAddress)" in found.message
