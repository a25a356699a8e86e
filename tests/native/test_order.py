"""What orders kernels, copies and streams, with the checker; what a GPU refuses, the simulator refuses too."""

from pathlib import Path

import pytest

from fattn_probe.llama.launch.record import parse_launches
from tests.native.cuda_program import Program, compile_programs, place

pytestmark = pytest.mark.build


@pytest.fixture(scope="session")
def order(programs):
    return programs["order", "check"]


@pytest.fixture(scope="session")
def pascal():
    text = Path(__file__).with_name("order.cu").read_text()
    (path,) = compile_programs({"order.cu": text}, "check", arch="61")
    return Program(path, text)


ORDERED = [
    "1:writes 1:reads",
    "1:writes 1!  2? 2:reads",
    "1:writes 1= 2:reads",
    "1:writes 1! != 2:reads",
    "1:writes *= 2:reads",
    "1:writes 1! 2? 2:writes 2! 3? 3:reads",  # from stream to stream
    "5:writes 0:reads",  # the default stream waits for blocking ones,
    "0:writes 5:reads",  # and they for it
    "9:writes 0:reads",
    "0:writes 9:reads",
    "5:writes 0:never_waits 6:reads",
    "1:writes 1<",
    "1:writes 1! 2? 2<",
    "1> 1:reads",
    "1> 1= 2:reads",
    "1~ 1! 2? 2:reads",
    "1:writes 2:never_waits",  # other bytes
    "1:adds 2:adds",  # atomics
    # programmatic dependent launch
    "1:writes 1+reads_after_wait",
    "1:writes 1+reads_after_another_waits",
    "1:writes 1+reads_after_ptx",
    "1:writes 1:reads_before_wait",  # not launched so
    "1:writes 1! 1+reads_before_wait",  # an event is between: measured on an H100
    "1:writes 1:never_waits 1+reads_before_wait",  # a whole kernel is between
    "1:writes 1+waits_then_triggers 1+reads_before_wait",
    "1:writes 1+triggers_then_waits 1+reads_after_wait",
    "1:writes 1+never_waits 1+reads_after_wait",  # measured on an H100
    "1:writes 1+never_waits 1:reads",
    "1:writes 1= 1+reads_before_wait",
    # what earlier ops of a graph write
    "1^ 1:reads",
    "1^ 1+reads_after_wait 1+reads_after_wait",
    "1^ 1! 2? 2:reads 1:never_waits",
    "1^ 1:never_waits 1+reads_before_wait",
    "1^ 1+waits_then_triggers 1+reads_before_wait",
    "1^ 1:reads 1= 1^ 1:reads 2:never_waits",
]
UNORDERED = [
    ("1:writes 2:reads", "reads", "writes", "while writes on another stream may still run; its block (0,0,0)"),
    ("1:writes 1! 2:reads", "reads", "writes", "no event"),
    ("1! 1:writes 2? 2:reads", "reads", "writes", "no event"),  # recorded before
    ("1:writes 2= 2:reads", "reads", "writes", "no event"),
    ("1:writes 0:reads", "reads", "writes", "no event"),  # a stream that does not wait for the default one
    ("5:writes 6:reads", "reads", "writes", "no event"),
    ("1:writes 2:writes", "writes", "writes", "is written"),
    ("1:writes 2<", "copy", "writes", "is read"),
    ("1:writes 2>", "copy in", "writes", "is written"),
    ("1:writes 2@", "copy on", "writes", "is read"),
    ("1> 2:reads", "reads", "copy in", "while cudaMemcpyAsync on another stream, which writes it, may still run"),
    ("1:adds 2:reads", "reads", None, "no event"),
    (
        "1:writes 1+reads_before_wait",
        "reads_before_wait",
        "writes",
        "before cudaGridDependencySynchronize(), while writes",
    ),
    ("1:writes 1+reads", "reads", "writes", "before cudaGridDependencySynchronize(), while writes"),
    ("1:writes 1+overwrites_before_wait", "overwrites_before_wait", "writes", "is written before"),
    ("1:writes 1+triggers_then_waits 1+reads_before_wait", "reads_before_wait", "writes", "thread (5,0,0)"),
    ("1:writes 1+never_waits 1+reads_before_wait", "reads_before_wait", "writes", "before cudaGrid"),
    ("1^ 1+reads_before_wait", "reads_before_wait", None, "while an earlier kernel of the graph, which writes it, may"),
    ("1^ 1+never_waits 1+reads_before_wait", "reads_before_wait", None, "an earlier kernel of the graph, which"),
    ("1^ 1:reads 2:reads", "reads", None, "an earlier kernel of the graph on another stream, which"),
    ("1^ 1:reads 1= 1^ 1+reads_before_wait", "reads_before_wait", None, "an earlier kernel of the graph"),
    ("1:writes 2+reads_after_wait", None, "writes", "on another stream"),
]


@pytest.mark.parametrize("steps", ORDERED)
def test_what_is_ordered_is_not_reported(order, steps):
    done = order.run(*steps.split())
    assert (done.code, done.stdout) == (0, b"done\n"), done.stderr


@pytest.mark.parametrize(("steps", "later", "earlier", "said"), UNORDERED, ids=str)
def test_a_race_between_kernels_is_found_with_both_places(order, steps, later, earlier, said):
    found = order.fault(*steps.split())
    assert found.kind == "race-between-kernels"
    assert said in found.message
    assert later is None or place(found.frames[0])[1] == order.line(later)
    assert earlier is None or found.message.endswith(f"order.cu:{order.line(earlier)}")
    assert found.earlier or "earlier kernel of the graph" in said


@pytest.mark.night  # the checker is compiled for another generation
@pytest.mark.parametrize("steps", ["1:writes 1+reads_before_wait", "1:shuffles_between_branches"])
def test_a_gpu_without_programmatic_launch_waits_and_a_line_that_the_compiler_doubles_is_one_place(pascal, steps):
    done = pascal.run(*steps.split(), device="gtx1060")
    assert done.code == 0, done.stderr


def test_lanes_at_two_matrix_instructions_are_found(order):
    found = order.fault("1:matrix_in_branches")
    assert found.kind == "warp-divergence"
    lines = {place(found.frames[1])[1], place(found.earlier[1])[1]}
    assert lines == {order.line("matrix: one"), order.line("matrix: other")}


IN_BRANCHES = ["shuffles_in_branches", "votes_in_branches", "syncwarps_in_branches"]


@pytest.mark.parametrize("kernel", ["matrix_in_a_loop", *IN_BRANCHES, "shuffles_between_branches"])
def test_warp_functions_that_volta_allows_are_not_reported(order, kernel):
    done = order.run(f"1:{kernel}")
    assert done.code == 0, done.stderr


@pytest.mark.night  # the checker is compiled for another generation
@pytest.mark.parametrize("kernel", IN_BRANCHES)
def test_lanes_of_an_older_gpu_must_be_at_one_instruction(pascal, kernel):
    found = pascal.fault(f"1:{kernel}", device="gtx1060")
    assert found.kind == "warp-divergence"
    if kernel == "shuffles_in_branches":
        lines = {found.line, int(found.message.rpartition(":")[2])}
        assert lines == {pascal.line("shuffle: one"), pascal.line("shuffle: other")}


STATIC = {
    "static_80k": "too much shared data (at least 0x14000 bytes, 0xc000 max): ptxas refuses to compile it",
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


@pytest.mark.parametrize("name", ["geometry", "dynamic_shared"])
def test_launches_are_refused_with_the_errors_of_a_gpu(limits, resources, name):
    done = limits.run(name, FATTN_PROBE_RESOURCES=str(resources))
    assert done.code == 0, done.stderr
    assert done.stdout.decode() == Path(__file__).with_name(f"limits_{name}.txt").read_text()
    excess = "fattn-probe: refused: 232449 bytes of dynamic shared memory, where the GPU allows 232448\n"
    assert (excess in done.stderr) == (name == "dynamic_shared")


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
