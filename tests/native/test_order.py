"""With the checker: what orders kernels, copies and streams; lanes that execute an instruction at two places."""

from pathlib import Path

import pytest

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
    ("1:writes 2:reads", "reads", "writes", "while writes on another stream may still run, whose block (0,0,0)"),
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
