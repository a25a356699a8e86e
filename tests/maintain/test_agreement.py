import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.record import parse_launches
from fattn_probe.machine.run.capture import Capture
from fattn_probe.verdict.measure.metrics import POISON, digest_of, unequal
from maintain.agreement import agreement, exported, read_recording, stride_of, write_recording
from tests.made import case_of

(LAUNCH,) = parse_launches('{"order":0,"kernel":"void f<64, true>(int)","grid":[2,1,1],"block":[32,4,1],"shared":16}')
(OTHER,) = parse_launches('{"order":0,"kernel":"void f<64, true>(int)","grid":[3,1,1],"block":[32,4,1],"shared":16}')

NANS = (0x7FFFFFFF, 0xFFC00000, POISON)  # of a GPU's arithmetic, of a CPU's, of an element that is not written


@pytest.fixture
def capture():
    case = case_of("version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_head_kv: 1\nn_q: 100\nn_kv: 32\n")
    dst = np.random.default_rng(0).standard_normal((1, 100, 2, 64)).astype(np.float32)
    return Capture(
        case.name, case.digest, case.op, make_inputs(case), dst, (LAUNCH,), "gpu", (1.0,), "CUDA0", "NVIDIA H200", {}
    )


def kept(capture, tmp_path):
    write_recording([capture], tmp_path / "gpu", {"device": "NVIDIA H200"})
    about, cases = read_recording(tmp_path / "gpu", {}, {})
    assert about == {"device": "NVIDIA H200"}
    return cases[capture.name]


@pytest.fixture
def recorded(capture, tmp_path):
    return kept(capture, tmp_path)


def test_the_same_output_agrees(capture, recorded):
    found = agreement(recorded, capture.dst, capture.launches)
    assert (found.launches, found.all_bits, found.share, found.nmse) == (True, True, 1.0, 0.0)


def test_one_other_bit_anywhere_is_noticed(capture, recorded):
    capture.dst[0, 99, 1, 62] = np.nextafter(capture.dst[0, 99, 1, 62], np.float32(9))
    found = agreement(recorded, capture.dst, (OTHER,))
    assert not found.all_bits
    assert not found.launches


def test_share_and_nmse_are_those_of_the_sample(capture, recorded):
    capture.dst[:, :50] *= np.float32(1.5)
    found = agreement(recorded, capture.dst, capture.launches)
    assert found.share == pytest.approx(0.5, abs=0.01)
    assert found.nmse == pytest.approx(0.125, abs=0.01)


def test_nan_agrees_with_nan(capture, tmp_path):
    capture.dst[0, 3] = np.nan
    found = agreement(kept(capture, tmp_path), capture.dst, capture.launches)
    assert (found.all_bits, found.share, found.nmse) == (True, 1.0, 0.0)


def test_a_stride_is_the_least_odd_one_that_keeps_few_and_the_digest_is_of_the_bits():
    found = [stride_of(elements) for elements in (1, 4096, 4097, 3 * 4096, 3 * 4096 + 1, 5 * 4096, 5 * 4096 + 1)]
    assert found == [1, 1, 3, 3, 5, 5, 7]
    zero = np.zeros((1, 1, 1, 1), np.float32)
    assert digest_of(zero) != digest_of(-zero)
    undefined, payload, unwritten = (np.array([bits], np.uint32).view(np.float32) for bits in NANS)
    assert digest_of(undefined) == digest_of(payload) != digest_of(unwritten)
    assert not unequal(undefined, payload) and unequal(payload, unwritten)


def test_what_is_no_recording_or_of_another_size_is_refused(tmp_path, recorded):
    with pytest.raises(InputError, match="not a recording"):
        read_recording(tmp_path / "none", {}, {})
    with pytest.raises(InputError, match="a different size"):
        agreement(recorded, np.zeros((1, 1, 1, 64), np.float32), ())


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["case,digest,output", "a,b,c"], "it has no column 'launches'"),
        (["case,digest,launches,output", "a,b,c," + "x" * 200_000], "field larger than field limit"),
    ],
)
def test_another_csv_is_one_clear_error(lines, said):
    with pytest.raises(InputError, match=f"not the CSV of `fattn-probe history export`: {said}"):
        exported(lines)


def test_no_difference_from_a_recording_is_called_none(capture, tmp_path):
    """A recording of zeros has no power, and a NaN is in no sum."""
    here = capture.dst.copy()
    capture.dst[:] = 0.0
    zeros = kept(capture, tmp_path)
    assert agreement(zeros, capture.dst, ()).nmse == 0.0
    assert agreement(zeros, here, ()).nmse == np.inf
    capture.dst[:] = here
    recorded = kept(capture, tmp_path)
    for odd in (np.nan, np.inf):
        there = here.copy()
        there[0, :, 0] = odd
        assert np.isnan(agreement(recorded, there, ()).nmse)
    capture.dst[0, :, 0] = np.inf
    infinite = kept(capture, tmp_path)
    assert agreement(infinite, capture.dst, ()).nmse == 0.0
    assert np.isnan(agreement(infinite, -capture.dst, ()).nmse) and np.isnan(agreement(infinite, here, ()).nmse)
