"""The models against the simulator: other shapes, other generations, and faults planted in a kernel's sight."""

from pathlib import Path

import numpy as np
import pytest

from fattn_probe.cases.device import load_devices
from fattn_probe.cases.scenario import expand, load
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.verdict.measure.metrics import liken, nmse
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests.made import SCENARIOS, captured, shipped, target
from tests.verdict.truth.models import model_of

DEVICES = load_devices()

pytestmark = [pytest.mark.build, pytest.mark.network]


def assert_alike(session, case, on):
    inputs = make_inputs(case)
    capture = captured(session, case, target(on), inputs)
    found = model_of(case, inputs, capture.launches, arch_number(target(on).device.arch))
    assert found is not None
    like = liken(capture.dst, found)
    assert like.share >= 0.97  # 1.0 with g++ 12; another compiler may fuse other multiply-adds of the simulated kernel
    assert like.nmse <= 1e-12


AMD = ("rx9070xt", "rx7900xtx", "mi300x", "mi100", "mi210", "mi50", "rx6800xt")
SHAPES = [*((number, "h200") for number in range(12)), *((number, AMD[number % len(AMD)]) for number in range(12))]


@pytest.mark.night  # a kernel is compiled for each
@pytest.mark.parametrize(("number", "device"), [*SHAPES, (6, "rx7900xtx")])
def test_other_shapes(session, number, device):
    assert_alike(session, expand(load(Path(__file__).with_name("shapes.yaml")))[number], f"sim:{device}")


# "unaligned" is not for v100: the launch chooses a kernel for 16 columns, which traps there
NIGHT = [
    *((device, "gqa") for device in ("rtx2060", "rtx4070")),
    *((device, "unaligned") for device in ("t4", "rtx4070")),
    *(("rtx3060", name) for name in ("gqa", "unaligned")),
    *((device, name) for device in ("t4", "rtx3060", "v100", "gtx1060") for name in ("mla", "softcap", "sinks", "mha")),
    *((device, name) for device in ("rx7900xtx", "rx9060xt", "mi300x") for name in ("softcap", "sinks")),
]


@pytest.mark.night
@pytest.mark.parametrize(("device", "name"), NIGHT)
def test_other_generations(session, device, name):
    assert_alike(session, expand(load(SCENARIOS / f"{name}.yaml"))[-1], f"sim:{device}")


@pytest.fixture(scope="module")
def right(session):
    case = shipped("gqa")
    inputs = make_inputs(case)
    capture = captured(session, case, inputs=inputs)
    return case, inputs, capture, model_of(case, inputs, capture.launches, 90)


def values(case, inputs, name):
    """An input as floats that can be changed, (heads, rows, elements)."""
    n, m, k = case.op.tensors[name].ne[2], case.op.tensors[name].ne[1], case.op.tensors[name].ne[0]
    return inputs[name].view({"f32": np.float32, "f16": np.float16}[case.op.tensors[name].type]).reshape(n, m, k)


def last_key_dropped(case, inputs):
    mask = values(case, inputs, "mask")
    for query in range(case.op.sizes.n_q):
        mask[0, query, np.flatnonzero(mask[0, query] == 0)[-1]] = -np.inf


def first_key_dropped(case, inputs):
    values(case, inputs, "mask")[:, :, 0] = -np.inf


def one_key_too_many(case, inputs):
    mask = values(case, inputs, "mask")
    mask[0, 0, np.flatnonzero(np.isneginf(mask[0, 0]))[0]] = 0


def logits_off_by_two_percent(case, inputs):
    values(case, inputs, "Q")[...] *= 1.02


def two_values_swapped(case, inputs):
    V = values(case, inputs, "V")
    V[:, [100, 101]] = V[:, [101, 100]]


def one_value_off_by_an_ulp(case, inputs):
    V = values(case, inputs, "V")
    V[0, 100] = np.nextafter(V[0, 100], np.float16(np.inf))


def half_a_tile_rescaled(case, inputs):
    values(case, inputs, "V")[:, 64:96] *= np.float16(1.01)


def one_element_of_one_key_off(case, inputs):
    values(case, inputs, "K")[1, 7, 3] += np.float16(0.01)


FAULTS = {
    last_key_dropped: 0.5,
    first_key_dropped: 0.5,
    one_key_too_many: 0.1,
    logits_off_by_two_percent: 0.5,
    two_values_swapped: 0.5,
    one_value_off_by_an_ulp: 0.01,
    half_a_tile_rescaled: 0.5,
    one_element_of_one_key_off: 0.05,
}
"""What a kernel might get wrong, and the share of the output that it changes at least."""


def test_the_right_kernel_is_the_model(right):
    _, _, capture, model = right
    assert liken(capture.dst, model).share >= 0.97


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_far_below_the_kernel_s_noise_shows(session, right, fault):
    case, inputs, capture, model = right
    wrong = {name: data.copy() for name, data in inputs.items()}
    fault(case, wrong)
    faulty = captured(session, case, inputs=wrong)
    assert 1 - liken(faulty.dst, model).share >= FAULTS[fault]
    assert nmse(faulty.dst, model.astype(np.float64)) > 100 * nmse(capture.dst, model.astype(np.float64))


def test_an_ulp_of_a_value_hides_from_the_exact_answer_and_not_from_the_model(session, right):
    case, inputs, capture, model = right
    wrong = {name: data.copy() for name, data in inputs.items()}
    one_value_off_by_an_ulp(case, wrong)
    faulty, exact = captured(session, case, inputs=wrong), reference_of(case.op, inputs)
    assert nmse(faulty.dst, exact) == pytest.approx(nmse(capture.dst, exact), rel=0.05)
    assert liken(faulty.dst, model).share < 0.99
