"""Case files and captures with a field of another type, size or value: read, or refused with its key; never a bug."""

import numpy as np
import pytest
from gguf import GGUFValueType

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op.case_file import case_fields, case_tensors, read_case
from fattn_probe.cases.op.gguf_file import Field, TensorData, array, f32, i32, string, u32, write_gguf
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.machine.run.capture import Capture, read_capture, write_capture

(CASE,) = expand(loads("version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_q: 3\nn_kv: 64\nmask: {kind: causal}\n", "a.yaml"))
INT = GGUFValueType.INT64
SHARED = {
    "fattn.shared.K.type": string("f16"),
    "fattn.shared.K.ne": array(INT, (64, 64, 2, 1)),
    "fattn.shared.K.blocks": array(GGUFValueType.UINT32, [0]),
}
WRONG = [
    None, string(""), string("x"), string("Q"), i32(-1), u32(0), f32(float("nan")), f32(float("inf")),
    Field(INT, 2**62), Field(GGUFValueType.BOOL, True), array(INT, [0]), array(INT, [-1] * 4), array(INT, [2**40] * 4),
    array(INT, [1] * 5), array(GGUFValueType.UINT64, [0] * 4), array(GGUFValueType.STRING, ["a"] * 4),
    array(GGUFValueType.FLOAT32, [1.5, 2.0, 3.0, float("nan")]),
]  # fmt: skip


@pytest.mark.parametrize("key", [*case_fields("a", "d", CASE.op), *SHARED, "fattn.root.K.ne"])
def test_a_case_file_with_a_wrong_field(key, tmp_path):
    fields, tensors = case_fields(CASE.name, CASE.digest, CASE.op), case_tensors(CASE.op, make_inputs(CASE))
    if key in SHARED:
        fields |= SHARED
        del tensors["K"]
        (tmp_path / "blocks").write_bytes(bytes(1 << 16))
    refused = 0
    for number, wrong in enumerate(WRONG):
        path = tmp_path / f"{number}.gguf"
        others = {name: field for name, field in fields.items() if name != key}
        write_gguf(path, others if wrong is None else others | {key: wrong}, tensors)
        try:
            read_case(path)
        except InputError as error:
            assert str(number) in str(error) or "op" in str(error), error
            refused += 1
    assert refused >= 9


def bytes_of(values):
    return values.reshape(-1).view(np.uint8)


@pytest.mark.parametrize("key", ["backend", "device", "clock", "seconds", "launches"])
def test_a_capture_with_a_wrong_field(key, tmp_path):
    path = tmp_path / "capture.gguf"
    dst = np.zeros((1, 3, 2, 64), np.float32)
    capture = Capture("a", CASE.digest, CASE.op, make_inputs(CASE), dst, (), "wall", (0.1,), "CPU", "CPU", {})
    write_capture(capture, path)
    name = "fattn.launches" if key == "launches" else f"fattn.run.{key}"
    fields = case_fields("a", CASE.digest, CASE.op) | {
        "fattn.run.backend": string("CPU"), "fattn.run.device": string("CPU"), "fattn.run.clock": string("wall"),
    }  # fmt: skip
    tensors = case_tensors(CASE.op, make_inputs(CASE)) | {"dst": TensorData("f32", (64, 2, 3, 1), bytes_of(dst))}
    write_gguf(path, fields | {name: i32(-1)}, tensors)
    with pytest.raises(InputError, match=rf"capture.gguf: {name} (has -1, expected text|is -1, expected an array)"):
        read_capture(path)
