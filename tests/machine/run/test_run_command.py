"""The output of `run` and `plan`, as text and JSON, from made-up outcomes."""

import numpy as np
import pytest

from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.llama.launch.record import parse_launches
from fattn_probe.machine.run.capture import Capture
from fattn_probe.machine.run.command import Done, raise_if_failed, render_plan, render_run, run_json
from fattn_probe.machine.run.outcome import Failed, Finding, Lost, Unsupported
from fattn_probe.machine.run.prepare import device_of, kernel_key
from tests.made import H200, case_of, shown, target

CASE = case_of("version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_head_kv: 1\nn_q: 3\nn_kv: 32\n")
NAMES = {"flash_attn_ext_f16": ["DKQ", "DV", "ncols1", "ncols2", "softcap"]}
FRAMES = ("f<3>(int) at a.cu:7",)
MI50, RX = target("sim:mi50"), target("sim:rx7900xtx")
FAULT = Finding("race", "two warps write it", "void f<3>(int)", "a.cu", 7, (1, 2, 3), (4, 5, 6), FRAMES)


def launch(kernel="flash_attn_ext_f16<64, 64, 8, 2, false>"):
    line = f'{{"order":0,"kernel":"void {kernel}(int)","grid":[8,1,1],"block":[32,4,1],"shared":512,"regs":168}}'
    return parse_launches(line, names=NAMES)[0]


def captured(target=H200):
    dst = np.zeros((1, 3, 2, 64), np.float32)
    timed = ("wall", (0.004, 0.002, 0.003), "CUDA0", "H200")
    return Done(CASE, target, Capture(CASE.name, CASE.digest, CASE.op, {}, dst, (launch(),), *timed, {}))


def test_a_run_shows_kernel_geometry_and_median_and_a_plan_registers():
    text = shown(render_run([captured()]))
    for part in ("flash_attn_ext_f16<64,64,8,2,false>", "8x1x1", "32x4x1", "512 B", "3 ms"):
        assert part in text
    assert "168" in shown(render_plan([captured()]))


@pytest.mark.parametrize(
    ("targets", "unit"), [([H200], "SM"), ([MI50], "CU"), ([RX], "WGP"), ([MI50, H200, MI50], "CU/SM")]
)
def test_a_plan_names_a_multiprocessor_as_its_vendor_does(targets, unit):
    said = shown(render_plan([captured(target) for target in targets]))
    assert f"per {unit}\n" in said and ("VGPRs" in said) == ("SM" not in unit)


def test_a_fault_shows_where_and_its_stack():
    text = shown(render_run([Done(CASE, H200, FAULT)]))
    for part in ("two warps write it", "f<3>", "block (1, 2, 3)", "thread (4, 5, 6)", "f<3> at a.cu:7"):
        assert part in text


def test_json_has_template_arguments_by_name():
    (run,) = run_json([captured()])["runs"]
    assert (run["status"], run["seconds"]) == ("ran", [0.004, 0.002, 0.003])
    assert run["launches"][0]["template_args"]["ncols2"] == "2"
    (run,) = run_json([Done(CASE, H200, FAULT)])["runs"]
    assert (run["status"], run["launches"], run["frames"]) == ("fault", [], ["f<3>(int) at a.cu:7"])
    assert run["finding"] == {
        "earlier": (),
        "kind": "race",
        "message": "two warps write it",
        "kernel": "void f<3>(int)",
        "block": (1, 2, 3),
        "thread": (4, 5, 6),
        "file": "a.cu",
        "line": 7,
    }


@pytest.mark.parametrize(
    ("results", "error"),
    [
        ([FAULT, Lost("no end after 60 s")], ComparisonError),
        ([Failed("GGML_ASSERT(x) failed", ())], ComparisonError),
        ([Lost("no end after 60 s")], LostError),
    ],
)
def test_the_worst_case_decides_the_exit(results, error):
    with pytest.raises(error):
        raise_if_failed([captured(), *(Done(CASE, H200, result) for result in results)])


def test_unsupported_is_no_failure():
    raise_if_failed([Done(CASE, H200, Unsupported("no"))])


@pytest.mark.parametrize(
    ("kernel", "key"),
    [
        ("flash_attn_ext_f16<64, 64, 8, 2, false>", ("mma", ("64", "64", "8", "2"))),
        ("flash_attn_tile<40, 40, 8, 1, false>", ("tile", ("40", "40"))),
        (
            "flash_attn_ext_vec<128, 1, (ggml_type)8, (ggml_type)1, false>",
            ("vec", ("128", "GGML_TYPE_Q8_0", "GGML_TYPE_F16")),
        ),
        ("flash_attn_combine_results<128>", ("", ())),
    ],
)
def test_the_kernel_case_of_a_launch(kernel, key):
    assert kernel_key(launch(kernel)) == key


def test_an_arch_that_no_gpu_of_the_catalogue_has():
    assert device_of("90").arch == "90"
    assert device_of("120a").arch == "120"
    with pytest.raises(InputError, match="--kernel"):
        device_of("87")
