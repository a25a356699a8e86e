"""A thousand random cases of correct kernels, over six GPUs and all families: none is called wrong or suspicious."""

import pytest

from fattn_probe.cases.device import load_devices, parse_targets
from fattn_probe.lab.fuzz.run import Fuzzer
from fattn_probe.lab.fuzz.smallest import kind_of
from fattn_probe.llama.build.ninja import silent
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.machine.run.session import RunOptions
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.measure.verdict import FEW_BITS

pytestmark = [pytest.mark.build, pytest.mark.night, pytest.mark.network]

TARGETS = "sim:h200,sim:rtx4070,sim:rtx3090ti,sim:rtx2060,sim:v100,sim:gtx1060"
CASES = 1000


def test_no_correct_kernel_is_called_wrong():
    targets = parse_targets(TARGETS, load_devices())
    options = RunOptions(resolve(DEFAULT_SOURCE), timeout=120)
    found = list(Fuzzer(options, targets, 100, 0.2, Checks(model="always"), silent, cases=CASES).run())
    assert len(found) == CASES
    assert [
        f"{one.result.name} on {one.on}: {one.result.reason}"
        for one in found
        if (kind := kind_of(one.result)) and not kind.known
    ] == []
    passed = [one.result for one in found if one.result.status == "pass"]
    assert len(passed) > 0.8 * CASES
    assert [result.name for result in passed if FEW_BITS in result.warning] == []
    assert all(result.metrics["rmse_by_predicted"] is not None for result in passed)
    assert sum(result.metrics["equal_bits"] is not None for result in passed) > 0.9 * len(passed)
