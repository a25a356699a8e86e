"""Recorded outputs: what is kept, and that it can be judged again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.llama.launch.record import parse_launch
from fattn_probe.verdict.judge.bitwise import Check
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.verdict import Status, Verdict
from maintain.outputs import MOST, Keep, devices_of, diagnosed_again, read

SUITES = Path(__file__).parents[2] / "suites"
CASE = "version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_q: 4\nn_kv: 64\n"
LAUNCH = parse_launch(
    '{"order":0,"kernel":"void flash_attn_ext_f16<64, 64, 8, 1, false, false, false>(char)",'
    '"grid":[2,1,1],"block":[32,2,1],"shared":0}'
)


@pytest.fixture
def wrong():
    (case,) = expand(loads(CASE, "case.yaml"))
    dst = np.zeros(case.op.sizes.dst, np.float32)
    dst[0, 1, 1] = np.nan
    verdict = Verdict(Status.FAIL, "x")
    return case, Judgement(case.name, "sim:h200", case.tolerance, verdict, (LAUNCH,), digest=case.digest, dst=dst)


def test_a_recorded_output_is_judged_again(tmp_path, wrong):
    case, judgement = wrong
    Keep(tmp_path, "1-fault", "patch", "quick").add(judgement)
    (path,) = tmp_path.iterdir()
    found = read(path)
    assert (found.fault, found.suite, found.case, found.on) == ("1-fault", "quick", case.name, "sim:h200")
    np.testing.assert_array_equal(found.dst, judgement.dst)
    again = diagnosed_again(found, {case.digest: case})
    assert again.elements == judgement.dst.size
    assert again.worst[0].tile is not None
    assert [said.cause.kind for said in again.causes] == ["zero"]


@pytest.mark.parametrize("contents", [b"", b"PK\x03\x04 cut", b"text"])
def test_a_damaged_file_is_named(tmp_path, contents):
    path = tmp_path / "1-fault.npz"
    path.write_bytes(contents)
    with pytest.raises(InputError, match=r"1-fault\.npz: no recorded output"):
        read(path)


def test_an_output_of_a_gpu_that_a_suite_brings_along_is_judged_again(tmp_path, wrong):
    case, judgement = wrong
    Keep(tmp_path, "1-fault", "patch", "quick").add(replace(judgement, on="sim:h200-5"))
    (path,) = tmp_path.iterdir()
    devices = devices_of([SUITES / "quick.yaml"])
    assert diagnosed_again(read(path), {case.digest: case}, devices).elements == judgement.dst.size


def test_only_the_first_small_wrong_outputs_are_kept(tmp_path, wrong):
    keep = Keep(tmp_path, "1-fault", "patch", "quick")
    keep.add(replace(wrong[1], verdict=Verdict(Status.PASS, "")))
    roundings = Check("roundings", False, True, "0 % of the bits equal the model")
    keep.add(replace(wrong[1], verdict=Verdict(Status.PASS, ""), checks=(roundings,)))
    keep.add(replace(wrong[1], dst=None))
    keep.add(replace(wrong[1], dst=np.zeros((1, 1, 1, 200_000), np.float32)))
    assert list(tmp_path.iterdir()) == []
    for number in range(MOST + 2):
        keep.add(replace(wrong[1], digest=str(number)))
    assert len(list(tmp_path.iterdir())) == MOST
