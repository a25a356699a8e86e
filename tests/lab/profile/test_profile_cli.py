"""What `profile` makes of its words and flags."""

import pytest

from fattn_probe.base.errors import MachineError
from fattn_probe.cli.setup import require_matplotlib
from tests.as_user import fattn_probe

THREADS = """#include <cstdlib>
#include <cstring>
__global__ void nothing() {}
int main(int count, char **words) {
    nothing<<<1, 32>>>();
    const char *threads = getenv("FATTN_PROBE_SIM_THREADS");
    return count == 2 && threads != nullptr && strcmp(threads, words[1]) == 0 ? 0 : 1;
}
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "threads.cu"
    path.write_text(THREADS)
    return path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("PROGRAM --source git:master", "--source is for scenarios; PROGRAM is a program"),
        (
            "PROGRAM --patch fault-stream-k-seam --quants all",
            "--patch, --quants are for scenarios; PROGRAM is a program",
        ),
        ("gqa PROGRAM", "is a program: profile programs one at a time, without scenarios"),
        ("gqa decod", "decod: no such file"),
        ("gqa decod", "did you mean decode?"),
    ],
)
def test_words_are_scenarios_or_one_program_without_flags_of_a_build(program, words, message):
    command = words.replace("PROGRAM", str(program)).split()
    said = fattn_probe("profile", *command, "--on", "sim:h200", code=2).stderr
    assert message.replace("PROGRAM", str(program)) in " ".join(said.split())


@pytest.mark.build
def test_a_program_has_its_arguments_and_threads(program):
    fattn_probe("profile", program, "--on", "sim:h200", "--threads", "3", "--", "3")
    said = fattn_probe("profile", program, "--on", "sim:h200", "--threads", "2", "--", "3", code=4).stderr
    assert "exit status 1" in said


@pytest.mark.build
def test_all_scenarios_are_profiled():
    said = fattn_probe("profile", "gqa", "decode", "--on", "sim:h200").stdout
    assert "gqa: flash_attn_ext_f16<" in said and "decode: flash_attn_ext_vec<" in said


FAULTY = """#include <cstdio>
__global__ void write(float *x, int n) {
    x[n + threadIdx.x] = 1;
}
int main(int count, char **) {
    float *x;
    cudaMalloc(&x, 4 * 32);
    puts("hello");
    if (count > 1) {
        write<<<1, 32>>>(x, 1 << 20);
        return cudaDeviceSynchronize();
    }
    return 0;
}
"""


@pytest.mark.build
def test_a_finding_and_a_program_without_kernels_are_said(tmp_path):
    path = tmp_path / "faulty.cu"
    path.write_text(FAULTY)
    done = fattn_probe("profile", path, "--on", "sim:h200", "--", "fault", code=5)
    assert "out-of-bounds" in done.stderr and "faulty.cu:3" in done.stderr
    said = fattn_probe("profile", path, "--on", "sim:h200").stdout
    assert "hello" in said and "faulty.cu: no kernel was launched" in " ".join(said.split())


def test_a_picture_without_matplotlib_is_refused_before_the_run(program, monkeypatch):
    monkeypatch.setattr("fattn_probe.cli.setup.find_spec", lambda name: None)
    with pytest.raises(MachineError, match="--plot needs matplotlib"):
        require_matplotlib()
