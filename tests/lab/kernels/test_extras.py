"""Other packages' kernels: what is missing, what they are given, what becomes of what they raise."""

import importlib.util
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.lab.kernels.contender import How, Question
from fattn_probe.lab.kernels.extras import Arrays, Attended, device_for, load, seconds_of, sizes_of
from fattn_probe.lab.kernels.names import Package, arrays_of, contenders_of
from fattn_probe.lab.kernels.torch_attention import attend, backends, visible
from fattn_probe.verdict.measure.verdict import Status
from tests.lab.kernels.attention_case import AttentionCase, case, needs
from tests.made import target

from .test_contenders import case_of, rows

HALF = np.zeros((1, 4, 7, 64), np.float16)


def test_a_missing_package_is_named_with_its_command_and_a_missing_module_of_our_own_is_a_bug():
    with pytest.raises(InputError, match=r"^no_such_package is not installed: `pip install 'fattn-probe\[some\]'`$"):
        load("no_such_package.part", "some")
    with pytest.raises(ModuleNotFoundError):
        load("fattn_probe.lab.kernels.no_such_module", "some")


def test_the_sizes_of_arrays():
    sizes = sizes_of(Arrays(HALF, np.zeros((1, 2, 9, 64), np.float16), np.zeros((1, 2, 9, 32), np.float16), 1.0))
    assert (sizes.n_head, sizes.n_head_kv, sizes.n_q, sizes.n_kv, sizes.hsk, sizes.hsv) == (4, 2, 7, 9, 64, 32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((HALF, HALF.astype(np.float32), HALF, None), "k is float32, but must be f16"),
        ((HALF, HALF[:, :3], HALF[:, :3], None), "4 heads are not a multiple of 3 K/V heads"),
        ((HALF, HALF, HALF, np.zeros((7, 8), np.float16)), r"mask is \(7, 8\), but must be \(n_q, n_kv\) = \(7, 7\)"),
    ],
)
def test_arrays_that_do_not_fit(arrays, message):
    q, k, v, mask = arrays
    with pytest.raises(InputError, match=message):
        sizes_of(Arrays(q, k, v, 1.0, mask=mask))


class Event:
    """A CUDA event of the stand-in, which records when it was."""

    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        self.at = self.gpu.clock

    def synchronize(self):
        self.gpu.waits += 1

    def elapsed_time(self, stop):
        return stop.at - self.at


class Gpu:
    """A stand-in for torch.cuda: a graph's nth replay takes n milliseconds, and calls outside of a graph 1,000."""

    def __init__(self, count=1):
        self.count, self.clock, self.waits, self.replays, self.recording = count, 0.0, 0, 0, False
        self.CUDAGraph = lambda: SimpleNamespace(replay=self.replay)
        self.Event = lambda enable_timing: Event(self)

    def device_count(self):
        return self.count

    def device(self, name):
        return nullcontext()

    def synchronize(self):
        self.waits += 1

    def graph(self, graph):
        self.recording = True
        return nullcontext()

    def compute(self):
        self.clock += 0 if self.recording else 1000

    def replay(self):
        self.replays += 1
        self.clock += self.replays


def stand_in(cuda) -> Any:
    """PyTorch, as far as it is asked here."""
    return SimpleNamespace(cuda=cuda)


@pytest.mark.parametrize(
    ("name", "device"), [("sim:h200", "cpu"), ("cpu", "cpu"), ("gpu", "cuda:0"), ("gpu:1", "cuda:1")]
)
def test_only_a_real_gpu_is_pytorchs(name, device):
    assert device_for(stand_in(Gpu(2)), target(name)) == device


def test_a_gpu_that_pytorch_does_not_see():
    with pytest.raises(InputError, match="PyTorch sees 2 GPUs, so it has no gpu:2"):
        device_for(stand_in(Gpu(2)), target("gpu:2"))


def test_replays_are_timed_after_those_that_warm_up():
    gpu = Gpu()
    assert seconds_of(stand_in(gpu), gpu.compute, (2, 3), "cuda:0") == pytest.approx((0.003, 0.004, 0.005))


@pytest.mark.parametrize(("timing", "device"), [((3, 20), "cpu"), ((0, 0), "cuda:0")])
def test_nothing_is_run_where_nothing_is_timed(timing, device):
    gpu = Gpu()
    assert seconds_of(stand_in(gpu), gpu.compute, timing, device) == ()
    assert gpu.clock == gpu.replays == 0


CPU = Target("cpu")
CASES = {
    "square": case(1, 2, 2, 64, 64, 64, 64, causal=True),
    "causal": case(1, 4, 2, 33, 77, 64, 64, causal=True),
    "mask": case(2, 4, 1, 40, 90, 128, 128, masked=True, causal=True),
}


def test_causal_and_mask_are_one_mask():
    mask = np.array([[1, 2, 3], [4, 5, 6]], np.float16)
    assert visible(mask, 2, 3, causal=True).tolist() == [[1, 2, -np.inf], [4, 5, 6]]
    assert visible(None, 2, 1, causal=True).tolist() == [[-np.inf], [0]]
    assert visible(None, 2, 3, causal=False) is None


def test_a_backend_that_pytorch_does_not_know():
    problem = CASES["square"]
    with pytest.raises(InputError, match="no backend 'maths'; allowed: math, flash, efficient, cudnn"):
        attend("maths", problem.arrays, target=CPU, how=How())


@needs("torch", extra="torch")
@pytest.mark.parametrize("problem", CASES.values(), ids=CASES)
def test_every_backend_that_is_there_is_within_the_rounding_of_its_output(problem):
    names = backends()
    assert "math" in names
    exact, lse = problem.exact()
    sees = np.isfinite(lse)
    for name in names:
        o = attend(name, problem.arrays, target=CPU, how=How()).o
        assert o.dtype == np.float16
        step = np.abs(exact).max() * 2.0**-10
        assert 0 < np.abs(o - exact)[sees].max() < step


@needs("torch", extra="torch")
def test_a_backend_that_does_not_take_an_op_says_why():
    problem = case(1, 1, 1, 16, 16, 64, 32)
    with pytest.raises(InputError, match=r"torch's backend flash does not accept this op on .*: .*dimension"):
        attend("flash", problem.arrays, target=CPU, how=How())


def exactly(asked, target, how):
    """float64: what a package would compute."""
    o, _ = AttentionCase(asked.q, asked.k, asked.v, asked.mask, asked.scale, asked.causal).exact()
    return Attended(o)


@pytest.mark.parametrize("mask", ["none", "causal", "random"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_the_arrays_say_what_the_case_says(mask, heads):
    case = case_of(n_head=heads[0], n_head_kv=heads[1], mask={"kind": mask}, n_seq=1)
    asked = arrays_of(Question(case, make_inputs(case)))
    assert asked.causal == (mask == "causal") and (asked.mask is not None) == (mask == "random")
    (row,) = rows([Package("exact", exactly)], case)
    assert row.judgement.status is Status.PASS and row.judgement.verdict.metrics.nmse < 1e-6


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("not today"), Status.UNSUPPORTED),
        (ComparisonError("a race"), Status.FAIL),
        (LostError("gone"), Status.LOST),
    ],
)
def test_an_error_is_an_outcome(error, status):
    def raising(asked, target, how):
        raise error

    (row,) = rows([Package("none", raising)], case_of())
    assert row.judgement.status is status and str(error) in row.judgement.reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"type_K": "bf16", "type_V": "bf16"}, "both must be f16"),
        ({"n_seq": 2, "mask": {"kind": "causal"}}, "a mask for each sequence"),
        ({"logit_softcap": 5.0}, "no softcap"),
    ],
)
def test_what_arrays_cannot_say_is_refused(fields, reason):
    (row,) = rows([Package("exact", exactly)], case_of(**fields))
    assert row.judgement.status is Status.UNSUPPORTED and reason in row.judgement.reason


def test_torch_is_its_backends():
    assert [one.name for one in contenders_of(["torch:flash"])] == ["torch:flash"]
    assert {one.name for one in contenders_of(["torch"])} >= {"torch:math"}


@pytest.mark.build
@pytest.mark.slow
@pytest.mark.parametrize("name", ["triton", "tilelang", "torch"])
def test_a_package_that_is_there_passes(name):
    if importlib.util.find_spec(name) is None:  # importing Triton here would be too early: it decides then
        pytest.skip(f"{name} is not installed")
    found = rows(contenders_of([name]), case_of(n_q=20, n_kv=100, mask={"kind": "causal"}))
    assert all(row.judgement.status is Status.PASS for row in found), [row.judgement.reason for row in found]
