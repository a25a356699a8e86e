"""Whole programs on simulated GPUs, as a user runs them."""

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from fattn_probe.base.cache import cache_dir
from tests.as_user import fattn_probe

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
FASTEST = ("vector_add", "reduction", "warp_primitives", "softmax", "wmma_gemm", "device_query")
IN_CI = ("mma_gemm", "hip_ballot")
"""CI has halves, atomics and streams in tests/native and in calls.cu."""
pytestmark = pytest.mark.build


def program(*words, code=0, **options):
    return fattn_probe("program", *words, code=code, **options)


def marked(path):
    """A program, which takes seconds to compile, with the mark of the run that has it."""
    mark = pytest.mark.slow if path.stem in IN_CI else pytest.mark.night
    return pytest.param(path, id=path.stem, marks=() if path.stem in FASTEST else mark)


@pytest.mark.slow
def test_a_truncated_program_is_linked_again_with_one_line(tmp_path):
    """On a GPU of its own: another test that extends the folder meanwhile would be told of the damage."""
    path = tmp_path / f"own{time.time_ns()}.cu"
    path.write_text((PROGRAMS / "vector_add.cu").read_text())
    program(path, "--on", "sim:b200")
    (made,) = (cache_dir() / "builds").glob(f"programs-sim-sm100-release-*/bin/{path.stem}-*")
    os.truncate(made, 1000)
    assert f"the folder of programs is damaged (bin/{made.name})" in program(path, "--on", "sim:b200").stderr
    assert "damaged" not in program(path, "--on", "sim:b200").stderr


def test_a_compiled_program_needs_no_compiler(tmp_path, monkeypatch):
    words = (PROGRAMS / "vector_add.cu", "--on", "sim:h200")
    program(*words)
    monkeypatch.setenv("PATH", str(tmp_path))
    program(*words)
    assert "g++ is not installed" in program(*words, "-D", f"NEW{time.time_ns()}", code=3).stderr


def test_copies_return_the_errors_of_a_gpu():
    """copies.txt was recorded on an H200 (CUDA 13.0, 2026-11-28)."""
    said = program(HERE / "copies.cu", "--on", "sim:h200").stdout
    assert said.partition("──")[0] == (HERE / "copies.txt").read_text()


def test_every_call_takes_the_arguments_that_cuda_takes():
    """calls.txt was recorded on an H100; where CUDA itself crashes there, the simulator refuses the argument."""
    said = program(HERE / "calls.cu", "--on", "sim:h200").stdout.partition("──")[0]
    expected = (HERE / "calls.txt").read_text()
    assert expected.count(": SIGSEGV") == 3
    assert without_comments(said) == without_comments(expected.replace(": SIGSEGV", ": cudaErrorInvalidValue"))
    assert len(without_comments(expected)) > 180


def test_the_names_of_hip_take_null_pointers_too():
    said = program(HERE / "nulls.hip", "--on", "sim:mi300x").stdout
    assert [line.rpartition(": ")[2] for line in said.partition("──")[0].splitlines()] == [
        "hipErrorInvalidValue",
        "hipSuccess",
        "hipErrorInvalidValue",
        "hipErrorInvalidValue",
        "hipErrorInvalidResourceHandle",
        "hipErrorInvalidResourceHandle",
    ]


def without_comments(text):
    return [line for line in text.splitlines() if not line.startswith("#")]


MACROS = ("-DN=4", "-D", "D=3", "-DK=2", "-DV", "-DB=7", "-DM=5")


@pytest.mark.parametrize("check", [(), ("--check",)])
def test_launches_of_any_form_and_macros_of_short_names(check):
    """The sum is 32 * (8 + 2 + 0): the last 8 of the second copy's bytes are 0."""
    said = program(HERE / "forms.cu", "--on", "sim:h200", *MACROS, *check).stdout
    assert said.partition("──")[0] == (HERE / "forms.txt").read_text()


EVERY = [marked(path) for path in sorted(PROGRAMS.glob("*.cu"))]


@pytest.mark.parametrize("path", EVERY)
def test_it_passes(path):
    said = program(path, "--on", "sim:h200").stdout
    assert "PASS\n" in said
    assert "exit status 0 after" in said


HIP = [marked(path) for path in sorted(PROGRAMS.glob("*.hip"))]


@pytest.mark.parametrize("path", HIP)
def test_a_hip_program_passes_on_wavefronts_of_64_and_32_and_on_nvidia(path):
    said = program(path, "--on", "sim:mi300x,sim:rx7900xtx,sim:h200").stdout
    assert said.count("PASS\n") == said.count("exit status 0 after") == 3


@pytest.mark.night
@pytest.mark.parametrize("path", EVERY + HIP)
def test_the_checker_finds_nothing(path):
    on = "sim:mi300x" if path.suffix == ".hip" else "sim:rtx4090"
    assert "the checker found nothing" in program(path, "--on", on, "--check", "--schedule", "1").stdout


def test_the_page_lists_every_program():
    page = (Path(__file__).parents[3] / "docs/measurements/programs.md").read_text()
    assert {f"| `{path.stem}` |" for path in PROGRAMS.iterdir()} <= {
        line[: line.find("|", 2) + 1] for line in page.splitlines()
    }


def test_a_wavefront_has_64_lanes_or_32():
    path = HERE / "wavefront.hip"
    said = program(path, "--on", "sim:mi300x,sim:rx7900xtx,sim:mi50").stdout
    assert "gfx942 aaaaaaaaaaaaaaaa 32 64" in said
    assert "gfx1100 aaaaaaaa 16 32" in said
    # HIP's runtime counts 8 waves on each of a GCN compute unit's four SIMDs, which have room for 10.
    assert all(f"{gfx}: 8, 3\n" in said for gfx in ("gfx906", "gfx942", "gfx1100"))
    assert said.count("hipErrorOutOfMemory hipErrorInvalidValue\n") == 3
    assert said.count("6 of half a wave\n") == 3


@pytest.mark.parametrize("schedule", [0, 3])
def test_lanes_of_a_branch_vote_before_those_behind_it(schedule):
    said = program(HERE / "branch.hip", "--on", "sim:mi300x", "--schedule", schedule).stdout
    assert said.startswith("6400 166400 6462\n")


@pytest.mark.parametrize("schedule", [0, 1])
def test_pairs_that_change_exchange_their_own_values(schedule):
    """As many masks in turn as there are lanes, each twice: a lane may still have to read what its last pair gave."""
    assert "0 wrong\n" in program(HERE / "masks.cu", "--on", "sim:h200", "--schedule", schedule).stdout


def test_amd_gpus_are_for_hip_programs_whose_faults_have_hips_words():
    ended = program(HERE / "prints.cu", "--on", "sim:h200,sim:mi300x", code=2)
    assert "is a CUDA program: AMD GPUs run HIP programs" in ended.stderr and not ended.stdout
    said = program(HERE / "stopped.hip", "--on", "sim:mi300x,sim:rx7900xtx", code=5).stdout
    assert said.count("trap: __trap() in") == 2
    said = program(HERE / "stopped.hip", "--on", "sim:mi50", "--", "large", code=5).stdout
    words = "local memory (at least 70000) exceeds limit (65536): clang refuses to compile the kernel"
    assert words in " ".join(said.split())


def test_a_kernel_that_launches_another_is_named():
    said = program(HERE / "dynamic.cu", "--on", "sim:h200", code=5).stdout
    assert "unsupported: a kernel launches a kernel" in said
    assert "dynamic.cu:3" in said


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / "own.cu").write_text(text)
        return tmp_path / "own.cu"

    return write


def test_an_early_return_that_leaves_a_tile_half_loaded_is_found():
    """96 values in blocks of 64: the last block has one warp left, which adds what the other has not loaded."""
    path = HERE / "half_loaded.cu"
    (run,) = json.loads(program(path, "--on", "sim:h200", "--check", "--json", code=5).stdout)["runs"]
    found = run["finding"]
    assert found["kind"] == "uninitialized-shared"
    assert (Path(found["file"]).name, found["line"]) == ("half_loaded.cu", 12)
    assert (found["block"], found["thread"]) == ([1, 0, 0], [0, 0, 0])
    assert run["exit_code"] == 86
    said = program(path, "--on", "sim:h200", "--check", code=5).stdout
    assert f"sumat{path}:12" in "".join(said.split())  # a long path breaks the line


def test_a_kernel_may_access_what_kernels_allocate_on_the_device_heap():
    said = program(HERE / "heap.cu", "--on", "sim:h200", "--check").stdout
    assert said.startswith("6\n")
    assert "the checker found nothing" in said
    path = HERE / "heap_faults.cu"
    for number, message in enumerate(SAID_OF_HEAP):
        assert message in " ".join(
            program(path, "--on", "sim:h200", "--check", "--", str(number), code=5).stdout.split()
        )
    said = program(path, "--on", "sim:h200", "--check", "--", "7").stdout
    assert said.startswith("18\n")
    assert "the checker found nothing" in said


SAID_OF_HEAP = [
    "out-of-bounds: global memory is accessed at byte 40 of a block of the device heap, which has 40 bytes",
    "out-of-bounds: global memory is accessed at byte -4 of a block of the device heap, which has 40 bytes",
    "use-after-free: global memory is accessed at byte 4 of a block of the device heap, which was freed",
    "use-after-free: global memory is accessed at byte 8 of a block of the device heap, which was freed",
    "use-after-free: a block of the device heap is freed twice",
    "out-of-bounds: the freed pointer is not a block of the device heap",
    "use-after-free: global memory is accessed at byte 8 of a block of the device heap, which was freed",
]


def test_prints_come_in_order_the_exit_code_is_the_programs_and_an_assertion_is_a_finding():
    said = program(HERE / "prints.cu", "--on", "sim:h200", code=7).stdout
    assert said.startswith("host\nfirst 0.0\nfirst 0.1\nfirst 0.2\nsecond 0\ndone\n")
    path = HERE / "prints.cu"
    said = program(path, "--on", "sim:h200", "--", "a", "b", code=5).stdout
    assert f'assertion: assert(blockIdx.x < 2 && "two blocks") in {path}:8 failed' in " ".join(said.split())
    assert "second 1" in said


def test_an_exit_code_of_130_is_the_programs_own(written):
    done = program(written("int main() { return 130; }\n"), "--on", "sim:h200", code=130)
    assert "interrupted" not in done.stderr


def test_an_asynchronous_copy_arrives_when_its_thread_waits():
    """An H200 failed for faults/13430-cp-async-wait, which passed where the simulator copied at once."""
    assert program(HERE / "early_copy.cu", "--on", "sim:h200").stdout.startswith("1, then 0\n")


def test_macros_folders_and_architectures():
    words = (HERE / "options.cu", "-I", HERE / "include", "-D", "FACTOR=7")
    assert "0.10204082 sm_70" in program(*words, "-DWHERE=70", "--on", "sim:v100").stdout
    # With -use_fast_math a quotient is a product with the approximated reciprocal, one bit off for this divisor.
    assert "sm_90" in program(*words, "-D", "WHERE=90", "--use_fast_math", "--on", "sim:h200", code=1).stdout


def test_exact_functions_are_within_the_error_that_cuda_documents():
    """CUDA's guide: two ulp for expf, one for logf. With -use_fast_math, expf is far off for large arguments."""
    path = HERE / "exact.cu"
    exp_error, log_error = map(float, program(path, "--on", "sim:h200").stdout.splitlines()[0].split())
    assert 0.5 < exp_error < 2
    assert 0.5 < log_error < 1.1
    fast, _ = map(float, program(path, "--on", "sim:h200", "--use_fast_math").stdout.splitlines()[0].split())
    assert fast > 10


@pytest.mark.gdb
@pytest.mark.skipif(shutil.which("gdb") is None, reason="there is no gdb")
def test_gdb_stops_at_a_kernels_first_statement():
    path = HERE / "half_loaded.cu"
    typed = "print n\nprint blockIdx.x\nshow environment HOME\nkill\nquit\n"
    said = program(path, "--on", "sim:h200", "--gdb", input=typed).stdout
    assert re.search(r"sum \(\.\.\.\) at \S+half_loaded\.cu:3\n", said)
    assert "$1 = 96" in said
    assert f"HOME = {os.environ['HOME']}" in said


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("int main() {\n    undeclared();\n}\n", ":2:5: error:", 3),
        ("__global__ void k(float *o) { *o = missing; }\nint main() {}\n", ":1: error:", 3),  # rewritten: no column
        ("#include <thrust/sort.h>\nint main() {}\n", ":1: <thrust/sort.h>: a library", 2),
        ("__global__ void k() {}\n", " has no main()", 2),
    ],
)
def test_what_is_wrong_with_a_program_is_said_of_the_users_line(written, text, said, code):
    path = written(text)
    assert f"{path}{said}" in program(path, "--on", "sim:h200", code=code).stderr


def test_two_gpus_and_their_json():
    made = json.loads(program(HERE / "prints.cu", "--on", "sim:h200,sim:v100", "--json", code=7).stdout)
    assert [run["on"] for run in made["runs"]] == ["sim:h200", "sim:v100"]
    assert all(run["stdout"].startswith("host\nfirst 0.0") for run in made["runs"])
    assert made["runs"][0]["launches"][0]["kernel"] == "hello"


def test_a_kernel_that_gets_a_host_pointer_is_named():
    path = HERE / "host_pointers.cu"
    for words in ((), ("--", "a"), ("--", "a", "b")):
        said = program(path, "--on", "sim:h200", *words, code=5).stdout
        assert "host-memory: argument 1 of writes points into host memory" in said
        assert "in writes\n" in said
        assert f"launchat{path}:6mainat{path}:10stopped" in "".join(said.split())
    assert "in writes\n" in program(path, "--on", "sim:h200", "--check", code=5).stdout


def test_a_refused_launch_is_shown_though_the_program_does_not_look_and_what_is_not_known_is_null():
    path = HERE / "refused.cu"
    said = "".join(program(path, "--on", "sim:h200", "--check").stdout.split())
    assert "0launches,launchesrefusedat3places" in said
    assert "launch-refused:ablockof2048threads,wheretheGPUallows1024(cudaErrorInvalidValue)infillmainat" in said
    assert "agridof1x70000x1blocks,wheretheGPUallows1x1x1to2147483647x65535x65535" in said
    assert "50000bytesofdynamicsharedmemory,whereakernelwithoutcudaFuncSetAttributemayhave49152" in said
    assert "foundnothing" not in said
    (run,) = json.loads(program(path, "--on", "sim:h200", "--check", "--json").stdout)["runs"]
    assert [(Path(one["file"]).name, one["line"]) for one in run["refused"]] == [
        ("refused.cu", n) for n in (14, 15, 16)
    ]
    (run,) = json.loads(program(path, "--on", "sim:h200", "--check", "--json", "--", "a").stdout)["runs"]
    (launch,) = run["launches"]
    assert (launch["regs"], launch["static_shared"], launch["origin"]) == (None, 128, "unknown")


def test_a_program_that_takes_too_long_is_named_with_its_launch_and_its_output_stays():
    words = (HERE / "refused.cu", "--on", "sim:h200", "--check", "--timeout", "2")
    done = program(*words, "--", "a", "b", code=4)
    assert done.stdout == "begun\n"
    assert (
        "refused.cu timed out after 2 s; its last launch was number 1, fill, grid 1x1x1 of 32x1x1, 0 B" in done.stderr
    )
    assert "begun" in json.loads(program(*words, "--json", "--", "a", "b", code=4).stdout)["error"]["message"]


def test_a_kernel_for_compare_may_be_a_program(tmp_path):
    fattn_probe("kernel", "new", tmp_path / "my.cu")
    path = tmp_path / "my.cu"
    path.write_text(path.read_text() + "int main() { return my_attention<__half>({}) == nullptr ? 0 : 1; }\n")
    assert "0 launches, launches refused at 1 place" in program(path, "--on", "sim:h200").stdout


BESIDE_SYMBOLS = [
    (0, 4, "byte 16 of g, which has 16 bytes"),
    (0, -1, "byte -4 of g, which has 16 bytes"),
    (1, 900, "byte 3600 of c, which has 16 bytes"),
    (2, 8, "byte 64 of wide, which has 64 bytes"),
    (3, 16, "byte 128 of more, which has 128 bytes"),
]


def test_an_access_beside_a_device_variable_is_found():
    path = HERE / "symbols.cu"
    for what, index, said in BESIDE_SYMBOLS:
        done = program(path, "--on", "sim:h200", "--check", "--", what, index, code=5)
        assert f"out-of-bounds: global memory is accessed at {said} in touch, block" in " ".join(done.stdout.split())
    for what, index in ((0, 3), (2, 7), (4, 56)):
        assert "the checker found nothing" in program(path, "--on", "sim:h200", "--check", "--", what, index).stdout


OTHER_WORDS = {"device_query", "streams"}
"""Programs that print figures of the GPU, or times."""


@pytest.mark.gpu
@pytest.mark.parametrize("path", EVERY)
def test_a_gpu_runs_it_as_the_simulator_does(path):
    gpu, sim = json.loads(program(path, "--on", "gpu,sim:h200", "--json").stdout)["runs"]
    assert gpu["exit_code"] == sim["exit_code"] == 0
    for run in (gpu, sim):
        run["launches"] = [(one["kernel"], one["grid"], one["block"], one["shared"]) for one in run["launches"]]
    assert gpu["launches"] == sim["launches"]
    if path.stem not in OTHER_WORDS:
        assert gpu["stdout"] == sim["stdout"]
