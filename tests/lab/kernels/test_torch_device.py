"""Where PyTorch and Triton compute, by a stand-in for PyTorch and its GPU."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import every_device, parse_targets
from fattn_probe.lab.kernels.contender import Timing
from fattn_probe.lab.kernels.extras import device_for, seconds_of


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
    (target,) = parse_targets(name, every_device(None))
    assert device_for(stand_in(Gpu(2)), target) == device


def test_a_gpu_that_pytorch_does_not_see():
    (target,) = parse_targets("gpu:2", every_device(None))
    with pytest.raises(InputError, match="PyTorch sees 2 GPUs, so it has no gpu:2"):
        device_for(stand_in(Gpu(2)), target)


def test_replays_are_timed_after_those_that_warm_up():
    gpu = Gpu()
    seconds = seconds_of(stand_in(gpu), gpu.compute, Timing(2, 3), "cuda:0")
    assert seconds == pytest.approx((0.003, 0.004, 0.005))


@pytest.mark.parametrize(("timing", "device"), [(Timing(), "cpu"), (Timing(0, 0), "cuda:0")])
def test_nothing_is_run_where_nothing_is_timed(timing, device):
    gpu = Gpu()
    assert seconds_of(stand_in(gpu), gpu.compute, timing, device) == ()
    assert gpu.clock == gpu.replays == 0
