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

PROGRAMS = Path(__file__).parent / "programs"
FASTEST = ("vector_add", "reduction", "warp_primitives", "softmax", "wmma_gemm", "device_query")
pytestmark = pytest.mark.build


def program(*words, code=0, **options):
    return fattn_probe("program", *words, code=code, **options)


def marked(path):
    return pytest.param(path, id=path.stem, marks=() if path.stem in FASTEST else pytest.mark.slow)


@pytest.mark.slow
def test_a_truncated_program_is_linked_again_with_one_line(tmp_path):
    path = tmp_path / f"own{time.time_ns()}.cu"
    path.write_text((PROGRAMS / "vector_add.cu").read_text())
    program(path, "--on", "sim:h200")
    (made,) = (cache_dir() / "builds").glob(f"programs-sim-sm90-release-*/bin/{path.stem}-*")
    os.truncate(made, 1000)
    assert f"the folder of programs is damaged (bin/{made.name})" in program(path, "--on", "sim:h200").stderr
    assert "damaged" not in program(path, "--on", "sim:h200").stderr


def test_a_compiled_program_needs_no_compiler(tmp_path, monkeypatch):
    words = (PROGRAMS / "vector_add.cu", "--on", "sim:h200")
    program(*words)
    monkeypatch.setenv("PATH", str(tmp_path))
    program(*words)
    assert "g++ is not on this machine" in program(*words, "-D", f"NEW{time.time_ns()}", code=3).stderr


H200_REFUSES = """
cudaMemcpy(h, d, 16, to_gpu): 1
cudaMemcpy(d, h, 16, to_host): 1
cudaMemcpy(d, e, 16, to_gpu): 0
cudaMemcpy(d, e, 16, to_host): 0
cudaMemcpy(d, e, 16, on_host): 0
cudaMemcpy(h, d, 16, on_host): 0
cudaMemcpy(h, d, 16, any): 0
cudaMemcpy(h, h + 9, 16, on_host): 0
cudaMemcpy(h, h + 9, 16, on_gpu): 1
cudaMemcpy(h, h + 9, 16, any): 0
cudaMemcpy(h, h + 9, 16, to_gpu): 1
cudaMemcpy(h, h + 9, 16, to_host): 1
cudaMemcpy(pinned, h, 16, to_gpu): 0
cudaMemcpy(pinned, d, 16, to_gpu): 0
cudaMemcpy(pinned, d, 16, on_gpu): 0
cudaMemcpy(d, pinned, 16, on_gpu): 0
cudaMemcpy(d, pinned, 16, to_host): 0
cudaMemcpy(managed, h, 16, to_gpu): 0
cudaMemcpy(managed, h, 16, to_host): 1
cudaMemcpy(h, managed, 16, to_gpu): 1
cudaMemcpy(h, managed, 16, to_host): 0
cudaMemcpy(d, h, 1024, to_gpu): 0
cudaMemcpy(d, h, 1025, to_gpu): 1
cudaMemcpy(d, h, 1025, any): 1
cudaMemcpy(h, d, 1028, to_host): 1
cudaMemcpy(d, e, 1028, on_gpu): 1
cudaMemcpy(h, pinned, 1028, on_host): 1
cudaMemcpy(pinned, d, 1028, to_host): 1
cudaMemcpy(d + 256, h, 0, to_gpu): 0
cudaMemcpy(nullptr, h, 4, to_gpu): 1
cudaMemcpy(nullptr, h, 0, to_gpu): 0
cudaMemcpy(h, d, 0, to_gpu): 0
cudaMemcpy(d, h, 16, static_cast<cudaMemcpyKind>(7)): 21
cudaMemcpyAsync(d, h, 1028, to_gpu): 1
cudaMemcpyAsync(h, d, 16, to_gpu): 1
cudaMemset(d, 0, 1028): 1
cudaMemset(managed, 0, 1028): 1
cudaMemset(h, 0, 16): 1
cudaMemset(pinned, 0, 16): 0
cudaMemset(nullptr, 0, 4): 1
cudaMemset(h, 0, 0): 0
cudaMemcpyToSymbol(g, h, 260): 1
cudaMemcpyToSymbol(g, h, 8, 252): 1
cudaMemcpyToSymbol(g, h, 8, 248): 0
cudaMemcpyToSymbol(g, h, 8, 0, to_host): 21
cudaMemcpyFromSymbol(h, g, 260): 1
cudaMemcpy2D(d, 8, h, 8, 16, 2, to_gpu): 12
cudaMemcpy2D(d, 16, h, 16, 16, 64, to_gpu): 0
cudaMemcpy2D(d, 16, h, 16, 16, 65, to_gpu): 1
cudaMemset2D(d, 8, 0, 16, 2): 1
cudaFree(h): 1
cudaFree(d + 1): 1
cudaFree(pinned): 1
cudaFreeHost(h): 1
cudaFreeHost(d): 1
cudaHostUnregister(h): 713
cudaSetDevice(3): 101
cudaMalloc(&x, 1ull << 50): 2
cudaFree(e): 0
cudaMemcpy(e, h, 4, to_gpu): 1
cudaFree(e): 1
"""
"""Recorded on an H200 (CUDA 13.0, 2026-11-24)."""


def test_copies_return_the_errors_of_a_gpu():
    said = program(PROGRAMS.parent / "copies.cu", "--on", "sim:h200").stdout
    assert said.partition("──")[0] == H200_REFUSES.lstrip()


def test_every_call_takes_the_arguments_that_cuda_takes():
    """calls.txt was recorded on an H100; where CUDA itself crashes there, the simulator refuses the argument."""
    said = program(PROGRAMS.parent / "calls.cu", "--on", "sim:h200").stdout.partition("──")[0]
    expected = (PROGRAMS.parent / "calls.txt").read_text()
    assert expected.count(": SIGSEGV") == 3
    assert without_comments(said) == without_comments(expected.replace(": SIGSEGV", ": cudaErrorInvalidValue"))
    assert len(without_comments(expected)) > 180


NULLS = """#include <hip/hip_runtime.h>
#include <cstdio>
#define TRY(call) printf("%s: %s\\n", #call, hipGetErrorName(call));
int main() {
    size_t bytes = 0;
    TRY(hipGetDeviceProperties(nullptr, 0))
    TRY(hipMemGetInfo(&bytes, nullptr))
    TRY(hipMalloc(static_cast<void **>(nullptr), 4))
    TRY(hipHostMalloc(static_cast<void **>(nullptr), 4))
    TRY(hipEventDestroy(nullptr))
    TRY(hipStreamDestroy(nullptr))
}
"""


def test_the_names_of_hip_take_null_pointers_too(tmp_path):
    (tmp_path / "nulls.hip").write_text(NULLS)
    said = program(tmp_path / "nulls.hip", "--on", "sim:mi300x").stdout
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
SAID_BY_FORMS = """
null 1 4
null 1 2
null 1 5
braces 1 2 1
typed 1 4
typed 1 5
defaults 1 2 3
defaults 1 5 6
spaced 3 1 97
typed 1 6
shared 7 0.5 8 9 20
null 1 8
null 1 8
null 1 8
typed 1 9
320, macros 432175
"""


@pytest.mark.parametrize("check", [(), ("--check",)])
def test_launches_of_any_form_and_macros_of_short_names(check):
    """The sum is 32 * (8 + 2 + 0): the last 8 of the second copy's bytes are 0."""
    said = program(PROGRAMS.parent / "forms.cu", "--on", "sim:h200", *MACROS, *check).stdout
    assert said.partition("──")[0] == SAID_BY_FORMS.lstrip()


EVERY = [marked(path) for path in sorted(PROGRAMS.glob("*.cu"))]


@pytest.mark.parametrize("path", EVERY)
def test_it_passes(path):
    said = program(path, "--on", "sim:h200").stdout
    assert "PASS\n" in said
    assert "exit status 0 after" in said


HIP = [pytest.param(path, id=path.stem) for path in sorted(PROGRAMS.glob("*.hip"))]


@pytest.mark.slow
@pytest.mark.parametrize("path", HIP)
def test_a_hip_program_passes_on_wavefronts_of_64_and_32_and_on_nvidia(path):
    said = program(path, "--on", "sim:mi300x,sim:rx7900xtx,sim:h200").stdout
    assert said.count("PASS\n") == said.count("exit status 0 after") == 3


@pytest.mark.night
@pytest.mark.parametrize("path", HIP)
def test_the_checker_finds_nothing_in_a_hip_program(path):
    assert "the checker found nothing" in program(path, "--on", "sim:mi300x", "--check", "--schedule", "1").stdout


@pytest.mark.night
@pytest.mark.parametrize("path", EVERY)
def test_the_checker_finds_nothing(path):
    assert "the checker found nothing" in program(path, "--on", "sim:rtx4090", "--check", "--schedule", "1").stdout


def test_the_page_lists_every_program():
    page = (Path(__file__).parents[3] / "docs/measurements/programs.md").read_text()
    assert {f"| `{path.stem}` |" for path in PROGRAMS.iterdir()} <= {
        line[: line.find("|", 2) + 1] for line in page.splitlines()
    }


DYNAMIC = """__global__ void inner() {}
__global__ void outer() {
    inner<<<1, 1>>>();
}
int main() {
    outer<<<1, 1>>>();
    return cudaDeviceSynchronize();
}
"""


WAVEFRONT = """#include <cstdio>
#include <hip/hip_runtime.h>
__global__ void lanes(unsigned long long *votes) {
    const unsigned long long mine = __ballot(threadIdx.x % 2);
    if (threadIdx.x == 0) {
        votes[0] = mine;
        votes[1] = __popcll(mine);
        votes[2] = warpSize;
    }
}
int main() {
    unsigned long long *device, votes[3];
    hipMalloc(&device, sizeof(votes));
    hipLaunchKernelGGL(lanes, dim3(1), dim3(128), 0, 0, device);
    hipMemcpy(votes, device, sizeof(votes), hipMemcpyDeviceToHost);
    hipDeviceProp_t properties;
    hipGetDeviceProperties(&properties, 0);
    printf("%s %llx %llu %llu\\n", properties.gcnArchName, votes[0], votes[1], votes[2]);
    printf("%s %s\\n", hipGetErrorName(hipErrorOutOfMemory), hipGetErrorName(hipErrorInvalidValue));
}
"""


def test_a_wavefront_has_64_lanes_or_32(written):
    path = written(WAVEFRONT, "lanes.hip")
    said = program(path, "--on", "sim:mi300x,sim:rx7900xtx").stdout
    assert "gfx942 aaaaaaaaaaaaaaaa 32 64" in said
    assert "gfx1100 aaaaaaaa 16 32" in said
    assert said.count("hipErrorOutOfMemory hipErrorInvalidValue\n") == 2


BRANCH = """#include <cstdio>
#include <hip/hip_runtime.h>
__global__ void votes(int *counts) {
    int some = 0;
    if (threadIdx.x % 4 == 1) {
        some = __popcll(__ballot(1));
    }
    const int all = __popcll(__ballot(1));
    const int left = __shfl_up(static_cast<int>(threadIdx.x), 1);
    counts[threadIdx.x] = 10000 * some + 100 * all + left;
}
int main() {
    int *counts;
    hipMallocManaged(reinterpret_cast<void **>(&counts), 64 * sizeof(int));
    votes<<<1, 64>>>(counts);
    hipDeviceSynchronize();
    printf("%d %d %d\\n", counts[0], counts[1], counts[63]);
}
"""


@pytest.mark.parametrize("schedule", [0, 3])
def test_lanes_of_a_branch_vote_before_those_behind_it(written, schedule):
    said = program(written(BRANCH, "branch.hip"), "--on", "sim:mi300x", "--schedule", schedule).stdout
    assert said.startswith("6400 166400 6462\n")


MASKS = """#include <cstdio>
__global__ void masks(int *wrong) {
    for (int round = 0; round < 31; round++) {
        const int partner = threadIdx.x ^ (round + 1);
        const unsigned mask = 1u << threadIdx.x | 1u << partner;
        const int other = __shfl_sync(mask, 100 * round + static_cast<int>(threadIdx.x), partner);
        if (other != 100 * round + partner) {
            atomicAdd(wrong, 1);
        }
    }
}
int main() {
    int *wrong;
    cudaMallocManaged(&wrong, sizeof(int));
    *wrong = 0;
    masks<<<1, 32>>>(wrong);
    cudaDeviceSynchronize();
    printf("%d wrong\\n", *wrong);
}
"""


@pytest.mark.parametrize("schedule", [0, 1])
def test_pairs_that_change_exchange_their_own_values(written, schedule):
    """As many masks in turn as there are lanes, each twice: a lane may still have to read what its last pair gave."""
    assert "0 wrong\n" in program(written(MASKS), "--on", "sim:h200", "--schedule", schedule).stdout


def test_amd_gpus_are_for_hip_programs(written):
    said = program(written(PRINTS), "--on", "sim:mi300x", code=2).stderr
    assert "is a CUDA program: AMD GPUs run HIP programs" in said


def test_a_kernel_that_launches_another_is_named(written):
    said = program(written(DYNAMIC), "--on", "sim:h200", code=5).stdout
    assert "unsupported: a kernel launches a kernel" in said
    assert "own.cu:3" in said


@pytest.fixture
def written(tmp_path):
    def write(text, name="own.cu"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


HALF_LOADED = """#include <cstdio>
__global__ void sum(const float *x, float *y, int n) {
    __shared__ float tile[64];
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= n) {
        return;
    }
    tile[threadIdx.x] = x[i];
    __syncthreads();
    float total = 0;
    for (int j = 0; j < 64; j++) {
        total += tile[j]; // half loaded
    }
    y[i] = total;
}
int main() {
    float *x, *y;
    cudaMalloc(&x, 400), cudaMalloc(&y, 400);
    cudaMemset(x, 0, 400);
    sum<<<2, 64>>>(x, y, 96);
    return cudaDeviceSynchronize();
}
"""


def test_an_early_return_that_leaves_a_tile_half_loaded_is_found(written):
    """96 values in blocks of 64: the last block has one warp left, which adds what the other has not loaded."""
    path = written(HALF_LOADED)
    made = json.loads(program(path, "--on", "sim:h200", "--check", "--json", code=5).stdout)
    (run,) = made["runs"]
    found = run["finding"]
    assert found["kind"] == "uninitialized-shared"
    assert (Path(found["file"]).name, found["line"]) == ("own.cu", 12)
    assert (found["block"], found["thread"]) == ([1, 0, 0], [0, 0, 0])
    assert run["exit_code"] == 86
    said = program(path, "--on", "sim:h200", "--check", code=5).stdout
    assert f"sumat{path}:12" in "".join(said.split())  # a long path breaks the line


HEAP = """#include <cstdio>
#include <cstdlib>
struct Pair { int a, b; };
__global__ void fill(Pair **pairs, int **rest) {
    pairs[threadIdx.x] = new Pair{1, 2};
    rest[threadIdx.x] = (int *) malloc(8);
    rest[threadIdx.x][1] = 3;
}
__global__ void sum(Pair **pairs, int **rest, int *y) {
    y[threadIdx.x] = pairs[threadIdx.x]->a + pairs[threadIdx.x]->b + rest[threadIdx.x][1];
    delete pairs[threadIdx.x];
    free(rest[threadIdx.x]);
}
int main() {
    Pair **pairs;
    int **rest, *y, said[32];
    cudaMalloc(&pairs, 256), cudaMalloc(&rest, 256), cudaMalloc(&y, 128);
    fill<<<1, 32>>>(pairs, rest);
    sum<<<1, 32>>>(pairs, rest, y);
    cudaMemcpy(said, y, 128, cudaMemcpyDeviceToHost);
    printf("%d\\n", said[31]);
}
"""


def test_a_kernel_may_access_what_kernels_allocate(written):
    said = program(written(HEAP), "--on", "sim:h200", "--check").stdout
    assert said.startswith("6\n")
    assert "the checker found nothing" in said


HEAP_FAULTS = """#include <cstdio>
#include <cstdlib>
struct Base { int a[4]; __device__ virtual ~Base() { a[0] = 7; } };
struct Row : Base { int b; __device__ ~Row() { b = 1; } };
__global__ void faulty(int what, int *out) {
    int *x = (int *) malloc(40), *y = new int[10];
    Base *row = new Row[3];
    Base *one = new Row;
    for (int i = 0; i < 10; i++) x[i] = y[i] = i;
    delete[] static_cast<Row *>(row);
    delete one;
    if (what == 0) out[0] = x[10];
    if (what == 1) y[-1] = 3;
    if (what == 2) { free(x); out[0] = x[1]; }
    if (what == 3) { delete[] y; y[2] = 1; }
    if (what == 4) { free(x); free(x); }
    if (what == 5) free(x + 1);
    if (what == 6) out[0] = reinterpret_cast<int *>(one)[2];
    out[0] = x[9] + y[9];
    free(x), delete[] y;
}
int main(int, char **words) {
    int *out, host;
    cudaMalloc(&out, 4);
    faulty<<<1, 1>>>(atoi(words[1]), out);
    cudaMemcpy(&host, out, 4, cudaMemcpyDeviceToHost);
    printf("%d\\n", host);
}
"""
SAID_OF_HEAP = [
    "out-of-bounds: global memory is accessed at byte 40 of a block of the device heap, which has 40 bytes",
    "out-of-bounds: global memory is accessed at byte -4 of a block of the device heap, which has 40 bytes",
    "use-after-free: global memory is accessed at byte 4 of a block of the device heap, which was freed",
    "use-after-free: global memory is accessed at byte 8 of a block of the device heap, which was freed",
    "use-after-free: a block of the device heap is freed twice",
    "out-of-bounds: what is freed is no block of the device heap",
    "use-after-free: global memory is accessed at byte 8 of a block of the device heap, which was freed",
]


def test_memory_of_the_device_heap_is_called_so(written):
    path = written(HEAP_FAULTS)
    for number, message in enumerate(SAID_OF_HEAP):
        assert message in " ".join(
            program(path, "--on", "sim:h200", "--check", "--", str(number), code=5).stdout.split()
        )
    said = program(path, "--on", "sim:h200", "--check", "--", "7").stdout
    assert said.startswith("18\n")
    assert "the checker found nothing" in said


PRINTS = """#include <cassert>
#include <cstdio>
__global__ void hello() {
    printf("first %d.%d\\n", blockIdx.x, threadIdx.x);
    if (threadIdx.x == 2) {
        printf("second %d\\n", blockIdx.x);
    }
    assert(blockIdx.x < 2 && "two blocks");
}
int main(int count, char **words) {
    printf("host\\n");
    hello<<<count, 3>>>();
    cudaDeviceSynchronize();
    printf("done\\n");
    return 7;
}
"""


def test_prints_come_in_order_and_the_exit_code_is_the_programs(written):
    said = program(written(PRINTS), "--on", "sim:h200", code=7).stdout
    assert said.startswith("host\nfirst 0.0\nfirst 0.1\nfirst 0.2\nsecond 0\ndone\n")


def test_an_exit_code_of_130_is_the_programs_own(written):
    done = program(written("int main() { return 130; }\n"), "--on", "sim:h200", code=130)
    assert "interrupted" not in done.stderr


def test_an_assertion_is_a_finding_with_its_place(written):
    path = written(PRINTS)
    said = program(path, "--on", "sim:h200", "--", "a", "b", code=5).stdout
    assert f'assertion: assert(blockIdx.x < 2 && "two blocks") in {path}:8 failed' in " ".join(said.split())
    assert "second 1" in said


OPTIONS = """#include "value.h"
#include <cstdio>
__global__ void divide(float a, float b, float *c) {
    *c = a / b;
}
int main() {
    float *c, value;
    cudaMalloc(&c, 4);
    divide<<<1, 1>>>(5.0f, VALUE * FACTOR, c);
    cudaMemcpy(&value, c, 4, cudaMemcpyDeviceToHost);
    printf("%.9g sm_%d\\n", value, WHERE);
    return value == 5.0f / (VALUE * FACTOR) ? 0 : 1;
}
#if __CUDA_ARCH__ != WHERE * 10
#error "another architecture"
#endif
"""


def test_macros_folders_and_architectures(written, tmp_path):
    (tmp_path / "include").mkdir()
    (tmp_path / "include/value.h").write_text("#define VALUE 7.0f\n")
    words = (written(OPTIONS), "-I", tmp_path / "include", "-D", "FACTOR=7")
    assert "0.10204082 sm_70" in program(*words, "-DWHERE=70", "--on", "sim:v100").stdout
    # With -use_fast_math a quotient is a product with the approximated reciprocal, one bit off for this divisor.
    assert "sm_90" in program(*words, "-D", "WHERE=90", "--use_fast_math", "--on", "sim:h200", code=1).stdout


EXACT = """#include <cmath>
#include <cstdio>
__global__ void functions(const float *x, float *y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[2 * i] = expf(x[i]);
        y[2 * i + 1] = logf(fabsf(x[i]));
    }
}
double ulps(double exact, float value) {
    return std::fabs(value - exact) / std::ldexp(1.0, std::ilogb(exact) - 23);
}
int main() {
    const int n = 100000;
    float *x, *y;
    cudaMallocManaged(&x, n * sizeof(float));
    cudaMallocManaged(&y, 2 * n * sizeof(float));
    for (int i = 0; i < n; i++) {
        x[i] = -80.0f + 0.0016f * i + 1e-3f;
    }
    functions<<<(n + 255) / 256, 256>>>(x, y, n);
    cudaDeviceSynchronize();
    double exp_error = 0, log_error = 0;
    for (int i = 0; i < n; i++) {
        exp_error = std::fmax(exp_error, ulps(std::exp(double(x[i])), y[2 * i]));
        log_error = std::fmax(log_error, ulps(std::log(std::fabs(double(x[i]))), y[2 * i + 1]));
    }
    printf("%.3f %.3f\\n", exp_error, log_error);
}
"""


def test_exact_functions_are_within_the_error_that_cuda_documents(written):
    """CUDA's guide: two ulp for expf, one for logf. With -use_fast_math, expf is far off for large arguments."""
    path = written(EXACT)
    exp_error, log_error = map(float, program(path, "--on", "sim:h200").stdout.splitlines()[0].split())
    assert 0.5 < exp_error < 2
    assert 0.5 < log_error < 1.1
    fast, _ = map(float, program(path, "--on", "sim:h200", "--use_fast_math").stdout.splitlines()[0].split())
    assert fast > 10


@pytest.mark.gdb
@pytest.mark.skipif(shutil.which("gdb") is None, reason="there is no gdb")
def test_gdb_stops_at_a_kernels_first_statement(written):
    path = written(HALF_LOADED)
    typed = "print n\nprint blockIdx.x\nshow environment HOME\nkill\nquit\n"
    said = program(path, "--on", "sim:h200", "--gdb", input=typed).stdout
    assert re.search(r"sum \(\.\.\.\) at \S+own\.cu:3\n", said)
    assert "$1 = 96" in said
    assert f"HOME = {os.environ['HOME']}" in said


def test_a_compiler_error_names_the_users_line(written):
    path = written("int main() {\n    undeclared();\n}\n")
    assert f"{path}:2:5: error:" in program(path, "--on", "sim:h200", code=3).stderr


def test_what_is_not_supported_is_named(written):
    path = written("#include <thrust/sort.h>\nint main() {}\n")
    assert f"{path}:1: <thrust/sort.h>: a library" in program(path, "--on", "sim:h200", code=2).stderr


def test_a_missing_file(tmp_path):
    assert "there is no such file" in program(tmp_path / "none.cu", "--on", "sim:h200", code=2).stderr


def test_two_gpus_and_their_json(written):
    made = json.loads(program(written(PRINTS), "--on", "sim:h200,sim:v100", "--json", code=7).stdout)
    assert [run["on"] for run in made["runs"]] == ["sim:h200", "sim:v100"]
    assert all(run["stdout"].startswith("host\nfirst 0.0") for run in made["runs"])
    assert made["runs"][0]["launches"][0]["kernel"] == "hello"


HOST_POINTERS = """#include <cstdlib>
__global__ void writes(float *o) {
    o[threadIdx.x] = 2;
}
static void launch(float *o) {
    writes<<<1, 32>>>(o);
}
int main(int count, char **) {
    float on_stack[32];
    launch(count == 1 ? static_cast<float *>(malloc(128)) : count == 2 ? new float[32] : on_stack);
}
"""


def test_a_kernel_that_gets_a_host_pointer_is_named(written):
    path = written(HOST_POINTERS)
    for words in ((), ("--", "a"), ("--", "a", "b")):
        said = program(path, "--on", "sim:h200", *words, code=5).stdout
        assert "host-memory: argument 1 of writes points into host memory" in said
        assert "in writes\n" in said
        assert f"launchat{path}:6mainat{path}:10stopped" in "".join(said.split())
    assert "in writes\n" in program(path, "--on", "sim:h200", "--check", code=5).stdout


REFUSED = """#include <cstdio>
__global__ void fill(float *o, long long turns) {
    __shared__ float tile[32];
    tile[threadIdx.x] = 1;
    for (volatile long long turn = 0; turn < turns; turn++) {
    }
    o[threadIdx.x] = tile[threadIdx.x];
}
int main(int count, char **) {
    float *o;
    cudaMalloc(&o, 128);
    printf("begun\\n");
    if (count == 1) {
        fill<<<1, 2048>>>(o, 0);
        fill<<<dim3(1, 70000), 32>>>(o, 0);
        fill<<<1, 32, 50000>>>(o, 0);
    } else {
        fill<<<1, 32>>>(o, count == 2 ? 0 : 1ll << 50);
    }
}
"""


def test_a_refused_launch_is_shown_though_the_program_does_not_look(written):
    path = written(REFUSED)
    said = "".join(program(path, "--on", "sim:h200", "--check").stdout.split())
    assert "0launches,launchesrefusedat3places" in said
    assert "launch-refused:ablockof2048threads,wheretheGPUallows1024(cudaErrorInvalidValue)infillmainat" in said
    assert "agridof1x70000x1blocks,wheretheGPUallows1x1x1to2147483647x65535x65535" in said
    assert "50000bytesofdynamicsharedmemory,whereakernelwithoutcudaFuncSetAttributemayhave49152" in said
    assert "foundnothing" not in said
    (run,) = json.loads(program(path, "--on", "sim:h200", "--check", "--json").stdout)["runs"]
    assert [(Path(one["file"]).name, one["line"]) for one in run["refused"]] == [("own.cu", n) for n in (14, 15, 16)]


def test_what_is_not_known_of_a_launch_is_null(written):
    path = written(REFUSED)
    (run,) = json.loads(program(path, "--on", "sim:h200", "--check", "--json", "--", "a").stdout)["runs"]
    (launch,) = run["launches"]
    assert (launch["regs"], launch["static_shared"], launch["origin"]) == (None, 128, "unknown")


def test_a_program_that_takes_too_long_is_named_with_its_launch_and_its_output_stays(written):
    words = (written(REFUSED), "--on", "sim:h200", "--check", "--timeout", "1")
    done = program(*words, "--", "a", "b", code=4)
    assert done.stdout == "begun\n"
    assert "own.cu timed out after 1 s; its last launch was number 1, fill, grid 1x1x1 of 32x1x1, 0 B" in done.stderr
    assert "begun" in json.loads(program(*words, "--json", "--", "a", "b", code=4).stdout)["error"]["message"]


def test_a_file_without_main_is_named(written):
    path = written("__global__ void k() {}\n")
    assert f"{path} has no main()" in program(path, "--on", "sim:h200", code=2).stderr


def test_an_error_in_a_rewritten_line_has_no_column(written):
    path = written("__global__ void k(float *o) { *o = missing; }\nint main() {}\n")
    assert f"{path}:1: error:" in program(path, "--on", "sim:h200", code=3).stderr


def test_a_kernel_for_compare_may_be_a_program(written, tmp_path):
    fattn_probe("kernel", "new", tmp_path / "my.cu")
    path = tmp_path / "my.cu"
    path.write_text(path.read_text() + "int main() { return my_attention<__half>({}) == nullptr ? 0 : 1; }\n")
    assert "0 launches, launches refused at 1 place" in program(path, "--on", "sim:h200").stdout


SYMBOLS = """#include <cstdlib>
__constant__ float c[4] = {1, 2, 3, 4};
static __device__ float g[4];
namespace inner {
__device__ double wide[8];
__device__ double more[16];
}
__device__ const int fixed[2] = {5, 6};
static int of_host[4];
__global__ void touch(int what, int i) {
    if (what == 0) {
        g[i] = c[i & 3];
    } else if (what == 1) {
        g[0] = c[i];
    } else if (what == 2) {
        inner::wide[i] = 1;
    } else if (what == 3) {
        inner::more[i] += 1;
    } else {
        *reinterpret_cast<double *>(reinterpret_cast<char *>(inner::wide) + i) = fixed[i & 1];
    }
}
int main(int, char **words) {
    touch<<<1, 1>>>(atoi(words[1]), atoi(words[2]));
    return cudaDeviceSynchronize() + of_host[0];
}
"""
BESIDE_SYMBOLS = [
    (0, 4, "byte 16 of g, which has 16 bytes"),
    (0, 4000, "byte 16000 of g, which has 16 bytes"),
    (0, -1, "byte -4 of g, which has 16 bytes"),
    (1, 4, "byte 16 of c, which has 16 bytes"),
    (1, 900, "byte 3600 of c, which has 16 bytes"),
    (2, 8, "byte 64 of wide, which has 64 bytes"),
    (2, -1, "byte -8 of wide, which has 64 bytes"),
    (3, 16, "byte 128 of more, which has 128 bytes"),
]


def test_an_access_beside_a_device_variable_is_found(written):
    path = written(SYMBOLS)
    for what, index, said in BESIDE_SYMBOLS:
        done = program(path, "--on", "sim:h200", "--check", "--", what, index, code=5)
        assert f"out-of-bounds: global memory is accessed at {said} in touch, block" in " ".join(done.stdout.split())
    for what, index in ((0, 3), (1, 0), (2, 7), (3, 15), (4, 56)):
        assert "the checker found nothing" in program(path, "--on", "sim:h200", "--check", "--", what, index).stdout
