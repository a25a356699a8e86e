"""Case files and captures, written and read back."""

from dataclasses import replace

import numpy as np
import pytest
from gguf import GGUFValueType

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op import Root, TensorView
from fattn_probe.cases.op.case_file import BLOCK, QuantBlocks, case_of, read_case, write_case
from fattn_probe.cases.op.gguf_file import TensorData, array, read_gguf, write_gguf
from fattn_probe.cases.scenario import expand, load
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.record import parse_launches
from fattn_probe.machine.run import capture as run_inputs
from fattn_probe.machine.run.capture import capture_of, inputs_of, make_case_file, read_capture, write_capture
from fattn_probe.machine.run.outcome import Ran, RunResult
from fattn_probe.machine.run.provenance import driver, versions
from tests.machine.run import toy
from tests.made import SCENARIOS, shipped

LAUNCH = '{"order":0,"kernel":"void f<(bool)1>(int)","grid":[1,2,3],"block":[32,1,1],"shared":16,"regs":40}'


@pytest.fixture
def case_and_inputs():
    gqa = toy.gqa(np.random.default_rng(0))
    return gqa.record(logit_softcap=0.5, n_kv_max=3), gqa.inputs


def make_capture(case, inputs, launches=LAUNCH):
    dst = np.arange(7 * 4 * 64, dtype=np.float32).reshape(1, 7, 4, 64)
    result = RunResult("CUDA0", "NVIDIA H200", case.digest, "", "gpu", (3e-3, 1e-3, 2e-3), dst)
    ran = Ran(result, parse_launches(launches), "", 0.5)
    return capture_of(case, inputs, ran, {"source": "pypi:x==1", "seed": "42"})


def test_a_case_survives_a_round_trip_and_a_write_that_fails(case_and_inputs, tmp_path):
    case, inputs = case_and_inputs
    write_case(case, inputs, tmp_path / "case.gguf")
    read = read_case(tmp_path / "case.gguf")
    assert (read.name, read.digest) == ("toy", case.digest)
    params = read.op.params
    assert (params.prec, params.n_kv_max, params.logit_softcap) == (10, 3, 0.5)
    assert (read.op.roots, read.op.tensors) == (case.op.roots, case.op.tensors)
    assert all(np.array_equal(read.inputs[name], inputs[name]) for name in inputs)
    assert [path.name for path in tmp_path.iterdir()] == ["case.gguf"]
    path = tmp_path / "case.gguf"
    write_case(case, inputs, path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="K: 2 bytes for a f16 tensor"):
        write_case(case, inputs | {"K": np.zeros(2, np.uint8)}, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_views_of_another_root_and_quantised_ones_survive_a_round_trip(tmp_path):
    gqa = toy.gqa(np.random.default_rng(0))
    K = gqa.roots["K"]
    del gqa.roots["V"]
    gqa.tensors["V"] = TensorView("V", "f16", "K", (32, *K.ne[1:]), K.nb, 64)
    gqa.roots["Q"] = Root("Q", "q8_0", (64, 1, 2, 3))
    gqa.inputs["Q"] = np.arange(6 * 68, dtype=np.uint8)
    gqa.tensors["Q"] = TensorView("Q", "q8_0", "Q", (64, 1, 2, 3), gqa.roots["Q"].nb, 0)
    write_case(gqa.record(), gqa.inputs, tmp_path / "case.gguf")
    read = read_case(tmp_path / "case.gguf")
    assert (read.op.roots, read.op.tensors) == (gqa.roots, gqa.tensors)
    assert np.array_equal(read.inputs["Q"], gqa.inputs["Q"])


def test_a_capture_survives_a_round_trip(case_and_inputs, tmp_path):
    capture = make_capture(*case_and_inputs)
    write_capture(capture, tmp_path / "capture.gguf")
    read = read_capture(tmp_path / "capture.gguf")
    assert np.array_equal(read.dst, capture.dst)
    assert (read.op.tensors, read.launches) == (capture.op.tensors, capture.launches)
    assert (read.launches[0].spelling, read.launches[0].regs) == ("f<true>", 40)
    assert (read.backend, read.device, read.clock, read.seconds) == ("CUDA0", "NVIDIA H200", "gpu", capture.seconds)
    assert read.median_seconds == 2e-3
    assert read.provenance == {"source": "pypi:x==1", "seed": "42"}
    assert all(np.array_equal(read.inputs[name], data) for name, data in capture.inputs.items())


def test_a_capture_with_shared_inputs_is_read_as_one_without(tmp_path):
    case = shipped("gqa")
    capture, blocks = make_capture(case, make_inputs(case)), QuantBlocks(tmp_path)
    for name, own in (("one", None), ("two", blocks), ("three", blocks)):
        write_capture(capture, tmp_path / name, own)
    one, two, three = (read_capture(tmp_path / name) for name in ("one", "two", "three"))
    for read in (two, three):
        assert (read.op, read.digest, read.launches) == (one.op, one.digest, one.launches)
        assert all(np.array_equal(read.inputs[name], data) for name, data in capture.inputs.items())
    shared = {name for name, data in capture.inputs.items() if data.size > BLOCK}
    assert shared >= {"K", "V"}
    assert blocks.nbytes == sum(-(-capture.inputs[name].size // BLOCK) * BLOCK for name in shared)
    assert (tmp_path / "two").stat().st_size < (tmp_path / "one").stat().st_size / 2
    write_capture(two, tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "one").read_bytes()


def test_an_unknown_type_a_case_file_and_a_result_of_another_case_are_no_capture(case_and_inputs, tmp_path):
    case, inputs = case_and_inputs
    write_case(case, inputs, tmp_path / "capture.gguf")
    file = read_gguf(tmp_path / "capture.gguf")
    other = replace(file, tensors={**file.tensors, "K": replace(file.tensors["K"], type="q4_K")})
    with pytest.raises(InputError, match=r"capture\.gguf: K has type q4_K, allowed: f32, f16, bf16, q4_0, .*iq4_nl"):
        case_of(other)
    write_capture(make_capture(case, inputs, launches=""), tmp_path / "capture.gguf")
    assert read_capture(tmp_path / "capture.gguf").launches == ()
    write_case(case, inputs, tmp_path / "case.gguf")
    with pytest.raises(InputError, match="there is no tensor dst"):
        read_capture(tmp_path / "case.gguf")
    result = RunResult("CPU", "x", "f" * 16, "", "wall", (1.0,), np.zeros((1, 1, 1, 1), np.float32))
    with pytest.raises(InputError, match="for case ffffffffffffffff"):
        capture_of(case, inputs, Ran(result, (), "", 0.1), {})


@pytest.mark.parametrize("kept", [0, 3, 100, 700, 0.5, 0.999])
def test_a_truncated_capture_is_one_clear_error(case_and_inputs, tmp_path, kept):
    whole, cut = tmp_path / "capture.gguf", tmp_path / "cut.gguf"
    write_capture(make_capture(*case_and_inputs), whole)
    data = whole.read_bytes()
    cut.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    with pytest.raises(InputError, match=r"cut\.gguf: (truncated, or not a GGUF file|not a fattn-probe case file)"):
        read_capture(cut)


def test_types_of_array_elements_are_as_requested(tmp_path):
    path = tmp_path / "file.gguf"
    fields = {"a": array(GGUFValueType.UINT64, [1, 2**40]), "empty": array(GGUFValueType.STRING, [])}
    write_gguf(path, fields, {"t": TensorData("q4_K", (256, 1, 1, 1), np.zeros(144, np.uint8))})
    file = read_gguf(path)
    assert (file.several("a", int), "empty" in file.fields, file.tensors["t"].type) == ((1, 2**40), False, "q4_K")


def test_inputs_made_in_their_file_are_those_made_in_memory(tmp_path):
    for path in sorted(SCENARIOS.glob("*.yaml")):
        case = min(expand(load(path)), key=lambda case: case.op.sizes.flop)
        made = make_case_file(case, tmp_path / f"{case.name}.gguf")
        assert made.file == tmp_path / f"{case.name}.gguf"
        for name, memory in make_inputs(case).items():
            np.testing.assert_array_equal(made[name], memory)
        write_case(case, make_inputs(case), tmp_path / "written.gguf")
        assert made.file.read_bytes() == (tmp_path / "written.gguf").read_bytes()
        made.file.unlink()


def test_small_inputs_stay_in_memory_and_large_ones_in_a_file(monkeypatch):
    case = shipped("gqa")
    with inputs_of(case) as inputs:
        assert not isinstance(inputs, run_inputs.FiledInputs)
    monkeypatch.setattr(run_inputs, "LARGE", 1)
    with inputs_of(case) as inputs:
        assert isinstance(inputs, run_inputs.FiledInputs)
        assert inputs.file.exists()
    assert not inputs.file.exists()


CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version: 12.2.0\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@x)\nGCC version:\n"
)


@pytest.mark.parametrize(("text", "version"), [(CLOSED, "535.183.01"), (OPEN, "580.65.06"), ("GCC version:\n", None)])
def test_the_driver_s_version(text, version, tmp_path):
    assert driver(tmp_path / "version") is None
    (tmp_path / "version").write_text(text)
    assert driver(tmp_path / "version") == version


def test_versions_include_the_packages_that_generate_inputs():
    assert versions()["numpy"] == np.__version__
