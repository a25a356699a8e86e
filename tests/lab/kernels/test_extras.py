"""Packages that are missing, and arrays that do not fit."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import load_devices, parse_targets
from fattn_probe.lab.kernels.extras import Arrays, device_for, load, seconds_of, sizes_of

HALF = np.zeros((1, 4, 7, 64), np.float16)


def test_a_missing_package_is_named_with_its_command():
    with pytest.raises(InputError, match=r"^no_such_package is not installed: `pip install 'fattn-probe\[some\]'`$"):
        load("no_such_package.part", "some")


def test_a_missing_module_of_our_own_is_a_bug():
    with pytest.raises(ModuleNotFoundError):
        load("fattn_probe.lab.kernels.no_such_module", "some")


def test_the_sizes_of_arrays():
    sizes = sizes_of(Arrays(HALF, np.zeros((1, 2, 9, 64), np.float16), np.zeros((1, 2, 9, 32), np.float16), 1.0))
    assert (sizes.n_head, sizes.n_head_kv, sizes.n_q, sizes.n_kv, sizes.hsk, sizes.hsv) == (4, 2, 7, 9, 64, 32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((HALF, HALF.astype(np.float32), HALF, None), "k is float32, f16 is needed"),
        ((HALF, HALF[:, :3], HALF[:, :3], None), "4 heads are not a multiple of 3 K/V heads"),
        ((HALF, HALF, HALF, np.zeros((7, 8), np.float16)), r"the mask is \(7, 8\), \(n_q, n_kv\) = \(7, 7\) is needed"),
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
    (target,) = parse_targets(name, load_devices(None))
    assert device_for(stand_in(Gpu(2)), target) == device


def test_a_gpu_that_pytorch_does_not_see():
    (target,) = parse_targets("gpu:2", load_devices(None))
    with pytest.raises(InputError, match="PyTorch sees 2 GPUs, so it has no gpu:2"):
        device_for(stand_in(Gpu(2)), target)


def test_replays_are_timed_after_those_that_warm_up():
    gpu = Gpu()
    seconds = seconds_of(stand_in(gpu), gpu.compute, (2, 3), "cuda:0")
    assert seconds == pytest.approx((0.003, 0.004, 0.005))


@pytest.mark.parametrize(("timing", "device"), [((3, 20), "cpu"), ((0, 0), "cuda:0")])
def test_nothing_is_run_where_nothing_is_timed(timing, device):
    gpu = Gpu()
    assert seconds_of(stand_in(gpu), gpu.compute, timing, device) == ()
    assert gpu.clock == gpu.replays == 0
