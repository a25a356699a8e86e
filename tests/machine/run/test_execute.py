"""Starting a runner: the environment it gets, the files it leaves, time-outs, symbols of frames."""

import os
import shutil
import sys

import numpy as np
import pytest
from gguf import GGUFValueType

from fattn_probe.base.errors import BuildError
from fattn_probe.base.process import run
from fattn_probe.cases.op.gguf_file import TensorData, array, string, write_gguf
from fattn_probe.llama.build.stamp import NATIVE
from fattn_probe.machine.run.frames import kernel_frames, parse_addr2line, short_frame, symbolise
from fattn_probe.machine.run.outcome import Finding, Lost, Ran, Unsupported
from fattn_probe.machine.run.runner import Command, RunFiles
from tests.made import executable

LAUNCH = '{"order":0,"kernel":"void f<2>(int)","grid":[1,1,1],"block":[32,1,1],"shared":0}'
ADDR2LINE = """0x0000000000001234: load_tile<64> at /src/fattn-mma-f16.cuh:240
 (inlined by) flash_attn_ext_f16 at /src/fattn-mma-f16.cuh:900
0x0000000000009999: ?? ??:0
0x0000000000001300: main at /src/main.cpp:3
"""


@pytest.fixture
def fake(tmp_path):
    """A runner made of a Python program."""
    start = f"#!{sys.executable}\nimport os, shutil, sys\n"
    return lambda body: executable(tmp_path / "fattn-runner", f"{start}{body}\n")


def write_result(path, status="ok", reason=""):
    fields = {f"fattn.run.{key}": string(value) for key, value in {"backend": "CPU", "device": "x"}.items()}
    fields |= {"fattn.run.digest": string("d"), "fattn.run.status": string(status), "fattn.run.reason": string(reason)}
    fields["fattn.run.seconds"] = array(GGUFValueType.FLOAT64, [0.5])
    dst = TensorData("f32", (64, 4, 7, 1), np.zeros(64 * 4 * 7 * 4, np.uint8))
    write_gguf(path, fields, {"dst": dst} if status == "ok" else {})


def test_a_run_that_ends_well(fake, tmp_path):
    write_result(tmp_path / "result.gguf")
    (tmp_path / "out.gguf.launches").write_text("stale\n")
    runner = fake(
        f"shutil.copy({str(tmp_path / 'result.gguf')!r}, sys.argv[2])\n"
        f"open(os.environ['FATTN_PROBE_LAUNCHES'], 'a').write({LAUNCH!r} + '\\n')\n"
        "print(os.environ['EXTRA'], *sys.argv[3:], file=sys.stderr)"
    )
    files = RunFiles(tmp_path / "c.gguf", tmp_path / "out.gguf")
    outcome = Command(runner, ["--backend", "CPU"], {"EXTRA": "hi"}).run(files)
    assert isinstance(outcome, Ran)
    assert outcome.result.dst.shape == (1, 7, 4, 64)
    assert [launch.spelling for launch in outcome.launches] == ["f<2>"]
    assert outcome.warnings == "hi --backend CPU\n"


def test_an_op_that_is_not_supported(fake, tmp_path):
    write_result(tmp_path / "result.gguf", "unsupported", "this ggml has no sinks")
    runner = fake(f"shutil.copy({str(tmp_path / 'result.gguf')!r}, sys.argv[2])")
    assert Command(runner).run(RunFiles(tmp_path / "c", tmp_path / "out")) == Unsupported("this ggml has no sinks")


def test_a_time_out_is_lost(fake, tmp_path):
    outcome = Command(fake("import time; time.sleep(60)"), timeout=0.3).run(RunFiles(tmp_path / "c", tmp_path / "out"))
    assert isinstance(outcome, Lost)
    assert "timed out after" in outcome.message


CRASH = """#include "crash.h"
#include <cstdlib>
__attribute__((noinline)) void wounded(volatile int *p) {
    *p = 1;
}
int main(int argc, char **words) {
    report_crashes();
    if (atoi(words[3]) != 0) abort();
    wounded(nullptr);
    return argc;
}
"""


@pytest.mark.build
@pytest.mark.parametrize(
    ("word", "signal", "places"),
    [("0", "SIGSEGV", ["wounded at crash.cpp:4", "main at crash.cpp:9"]), ("1", "SIGABRT", ["main at crash.cpp:8"])],
)
def test_a_runner_killed_by_a_signal_says_where(tmp_path, word, signal, places):
    (tmp_path / "crash.cpp").write_text(CRASH)
    runner = tmp_path / "runner"
    run(["g++", "-g1", "-I", NATIVE / "runner", "-o", runner, "crash.cpp", "-ldl"], cwd=tmp_path)
    outcome = Command(runner, [word]).run(RunFiles(tmp_path / "c", tmp_path / "out"))
    assert isinstance(outcome, Lost)
    assert outcome.message == f"the runner was killed by {signal}"
    assert [short_frame(frame).replace(f"{tmp_path}/", "") for frame in outcome.stack] == places


def test_a_runner_that_is_not_there(tmp_path):
    with pytest.raises(BuildError):
        Command(tmp_path / "none").run(RunFiles(tmp_path / "c", tmp_path / "out"))


def test_addr2line_with_inlined_frames_and_an_unknown_place():
    assert parse_addr2line(["0x1234", "0x9999", "0x1300"], ADDR2LINE) == [
        ("0x1234", ("load_tile<64> at /src/fattn-mma-f16.cuh:240", "flash_attn_ext_f16 at /src/fattn-mma-f16.cuh:900")),
        ("0x1300", ("main at /src/main.cpp:3",)),
    ]


def test_frames_without_a_module_stay():
    assert symbolise(["/nowhere/lib.so+0x10", "0x1234"]) == ("/nowhere/lib.so+0x10", "0x1234")


def test_a_fault_s_frames_begin_and_end_in_the_kernel():
    machinery = [
        "__memcpy_avx512_unaligned_erms at ./sysdeps/x86_64/multiarch/memmove-vec-unaligned-erms.S:350",
        "simt::report(x) at /b/native/sim/finding.cpp:70",
        "std::min at /usr/include/c++/12/algo.h:3",
        "/b/x+0x1",
    ]
    machinery.append("_cvtss_sh(float, int) at /usr/lib/gcc/x86_64-linux-gnu/12/include/f16cintrin.h:61")
    machinery.append("memcpy at /usr/include/x86_64-linux-gnu/bits/string_fortified.h:29")  # inlined, on Ubuntu
    kernel = ["load_tile at /b/mma.cuh:240", "std::apply at /usr/include/c++/12/tuple:1", "fattn at /b/fattn.cuh:9"]
    assert kernel_frames([*machinery, *kernel, "fiber_main at native/sim/worker.cpp:7"]) == tuple(kernel)
    assert kernel_frames(machinery) == tuple(machinery)


@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("addr2line")), reason="needs g++ and addr2line")
def test_a_fault_s_frames_name_function_and_line(fake, tmp_path):
    source = tmp_path / "lib.cpp"
    source.write_text('extern "C" int\nfaulty(int x) {\n    return x + 1;\n}\n')
    library = tmp_path / "lib.so"
    run(["g++", "-g", "-shared", "-fPIC", source, "-o", library])
    address = next(line.split()[0] for line in run(["nm", library]).stdout.splitlines() if line.endswith(" faulty"))
    finding = f'{{"kind":"race","message":"m","frames":["{library}+0x{int(address, 16):x}"]}}'
    runner = fake(f"print('fattn-probe: finding: ' + {finding!r}, file=sys.stderr); sys.exit(86)")
    outcome = Command(runner).run(RunFiles(tmp_path / "c", tmp_path / "out"))
    assert isinstance(outcome, Finding)
    assert outcome.frames == (f"faulty at {os.fspath(source)}:2",)
    assert (outcome.file, outcome.line) == (os.fspath(source), 2)
