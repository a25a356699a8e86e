"""Inputs that `compare` cannot judge: one clear error each, and exit 2."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.cases.op.gguf_file import TensorData, write_gguf
from fattn_probe.cli import exit_codes
from fattn_probe.cli.compare import compare_files
from fattn_probe.machine.run.capture import Capture, write_capture
from fattn_probe.machine.run.session import RunOptions
from fattn_probe.verdict.judge.cases import judge_cases
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.measure.verdict import Status
from tests.machine.run import toy
from tests.made import CPU, case_of, shape
from tests.stand_in import StandIn


def capture_of(seed=0, digest="0123456789abcdef", **inputs):
    gqa = toy.gqa(np.random.default_rng(seed))
    gqa.digest = digest
    for name, value in inputs.items():
        gqa.values(name).flat[5] = value
    dst = np.zeros((1, toy.N_Q, toy.HEADS, toy.D), np.float32)
    return Capture("toy", digest, gqa.record().op, gqa.inputs, dst, (), "wall", (), "CPU", "CPU", {})


def ending(paths, capsys):
    """The exit code and the stderr of comparing two files."""
    with pytest.raises(SystemExit) as end, exit_codes():
        compare_files(paths, as_json=False)
    said = capsys.readouterr()
    assert said.out == ""
    return end.value.code, said.err.strip()


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.gguf"
    write_capture(capture_of(), path)
    return path


def of_another_case(path):
    write_capture(capture_of(1, "fedcba9876543210"), path)


def with_nan(path):
    write_capture(capture_of(K=np.nan), path)


def of_another_shape(path):
    capture = capture_of()
    write_capture(replace(capture, dst=capture.dst[:, :3]), path)


def without_dst(path):
    write_gguf(path, {}, {"x": TensorData("f32", (4, 1, 1, 1), np.zeros(16, np.uint8))})


def of_another_type(path):
    """The same file with dst marked as f16, type 1, of twice the columns."""
    write_capture(capture_of(), path)
    data = bytearray(path.read_bytes())
    at = data.index(b"dst" + (4).to_bytes(4, "little")) + 7
    assert data[at : at + 8] == toy.D.to_bytes(8, "little")
    data[at : at + 8] = (2 * toy.D).to_bytes(8, "little")
    data[at + 32 : at + 36] = (1).to_bytes(4, "little")
    path.write_bytes(bytes(data))


BAD = {
    of_another_case: "good.gguf and bad.gguf have different ops or inputs: digests 0123456789abcdef and fedcba",
    with_nan: "case toy: K holds 1 values that are NaN or infinite",
    of_another_shape: "case toy: dst is (1, 3, 4, 64), but the op writes (1, 7, 4, 64)",
    without_dst: "bad.gguf: not a fattn-probe case file",
    of_another_type: "bad.gguf: dst is f16, but the op writes f32",
}


@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: spoil.__name__)
def test_a_bad_capture_is_one_error_and_exit_2(spoil, good, tmp_path, capsys):
    bad = tmp_path / "bad.gguf"
    spoil(bad)
    code, said = ending([good, bad], capsys)
    assert code == 2
    assert BAD[spoil] in " ".join(said.split())
    assert "Traceback" not in said


class Never(StandIn):
    """A session whose runs end with an output of zeros."""

    persistent_runner = staticmethod(nullcontext)
    options = RunOptions(None)

    def capture(self, case, inputs, target, part=None):
        shape = (case.op.sizes.n_seq, case.op.sizes.n_q, case.op.sizes.n_head, case.op.sizes.hsv)
        return Capture(
            case.name, case.digest, case.op, inputs, np.zeros(shape, np.float32), (), "wall", (), "CPU", "CPU", {}
        )


@pytest.mark.parametrize("sample", ["all", 3])
def test_data_that_leave_f16_cannot_be_judged(sample):
    case = case_of(shape(64, 2, 2, 4, 64, "data: {K: {kind: normal, scale: 1.0e+6}}"))
    (result,) = judge_cases(Never(), [(case, [CPU])], Checks(sample=sample))
    assert result.status is Status.UNJUDGED
