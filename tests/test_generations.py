"""One small op on a GPU of every generation, and with a release of every era: the real dispatch, the right answer.

A build is made for each. CI has the one without tensor cores, and the oldest release in test_regress_cli.py; its other
tests have an H200, and those of tests/native the instructions of every generation.
"""

import pytest

from fattn_probe.cases.scenario import expand, load, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.measure.metrics import measure
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests.made import SCENARIOS, captured, target

SCENARIO = SCENARIOS / "gqa.yaml"
(GQA,) = expand(load(SCENARIO))
(LONGER,) = expand(loads(SCENARIO.read_text().replace("n_q: 7", "n_q: 40"), "longer.yaml"))

pytestmark = [pytest.mark.build, pytest.mark.network]
SLOW, NIGHT = pytest.mark.slow, pytest.mark.night


def kernel_and_error(source, device, case=GQA):
    inputs = make_inputs(case)
    capture = captured(Session(RunOptions(resolve(source))), case, target(f"sim:{device}"), inputs)
    kernel = next(
        launch for launch in capture.launches if launch.kernel.startswith(("flash_attn_ext", "flash_attn_tile"))
    )
    return kernel, measure(capture.dst, reference_of(case.op, inputs)).nmse


@pytest.mark.parametrize(
    ("device", "case", "spelling"),
    [
        pytest.param("gtx1060", GQA, "flash_attn_tile<64,64,", marks=SLOW),  # no tensor cores
        pytest.param("v100", LONGER, "flash_attn_ext_f16<64,64,", marks=NIGHT),  # mma.m8n8k4, only from 16 columns on
        # mma.m16n8k8, no cp.async, at most 32 columns
        pytest.param("rtx2060", GQA, "flash_attn_ext_f16<64,64,4,8,", marks=NIGHT),
        pytest.param("a100", GQA, "flash_attn_ext_f16<64,64,8,8,", marks=NIGHT),
        pytest.param("rtx4070", GQA, "flash_attn_ext_f16<64,64,8,8,", marks=NIGHT),
        pytest.param("rtx5090", GQA, "flash_attn_ext_f16<64,64,8,8,", marks=NIGHT),
    ],
)
def test_a_gpu_of_each_generation(device, case, spelling):
    kernel, nmse = kernel_and_error(DEFAULT_SOURCE, device, case)
    assert kernel.spelling.startswith(spelling)
    assert nmse < 2e-6


@NIGHT
@pytest.mark.parametrize("version", ["0.2.8", "0.2.12", "2026.4.8672"])
def test_a_release_of_each_era(version):
    kernel, nmse = kernel_and_error(f"pypi:xllamacpp=={version}", "rtx4070")
    assert kernel.kernel == "flash_attn_ext_f16"
    assert nmse < 2e-6
