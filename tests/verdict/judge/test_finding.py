"""What stopped a kernel, and where, from a fault or from ggml's abort."""

from fattn_probe.machine.run.outcome import Failed, Fault, Unsupported
from fattn_probe.verdict.judge.finding import Finding, finding_of

KERNEL = "void flash_attn_tile<64, 64, 2, 1, false>(char const*)"
FAULT = Fault("race", "byte 16 is read", KERNEL, (1, 2, 0), (3, 4, 0), ("f<1> at a.cuh:7",), "a.cuh", 7)


def test_a_fault_has_its_kernel_and_its_place():
    found = finding_of(FAULT)
    assert (found.kind, found.file, found.line, found.block, found.thread) == ("race", "a.cuh", 7, (1, 2, 0), (3, 4, 0))
    assert found.place == f"{found.kernel}, block (1, 2, 0), thread (3, 4, 0), a.cuh:7"
    assert found.kernel.startswith("flash_attn_tile<64")
    bare = finding_of(Fault("race", "somewhere"))
    assert (bare.kernel, bare.place) == ("", "") and bare == Finding("race", "race: somewhere")


def test_an_abort_has_the_place_in_its_message():
    found = finding_of(Failed("/x/ggml/src/ggml-cuda/fattn.cu:284: fatal error\nmore", ()))
    assert (found.kind, found.line) == ("abort", 284) and found.file.endswith("fattn.cu")
    assert found.message.endswith("fatal error")
    error = finding_of(Failed("CUDA error: invalid argument", ()))
    assert (error.kind, error.file, error.line) == ("CUDA error", "", 0)
    assert finding_of(Unsupported("no")) is None
