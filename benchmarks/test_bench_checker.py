"""The cost of `--check` by kernel family: the CPU time of a simulated run with it, divided by that of one without."""

from dataclasses import replace

import pytest

from benchmarks.cpu_time import cpu_seconds_of_children
from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.machine.run.capture import Capture
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation

# The GPU, the op, and the number of its runs that take about a second. The tile kernel runs on Pascal, because with the
# head sizes for which newer GPUs use it, the checker stops at a read of unwritten memory (docs/findings.md).
RUNS = {
    "vec": ("h200", "hsk: 128\nn_head: 16\nn_q: 1\nn_kv: 8192\n", 8),
    "mma, gqa": ("h200", "hsk: 64\nn_head: 14\nn_head_kv: 2\nn_q: 7\nn_kv: 256\nmask: {kind: causal}\n", 120),
    "mma, 64 queries": ("h200", "hsk: 128\nn_head: 8\nn_q: 64\nn_kv: 4096\n", 4),
    "tile": ("gtx1060", "hsk: 128\nn_head: 8\nn_q: 64\nn_kv: 1024\n", 6),
}
ROUNDS = 3


def cpu_seconds(flavour, family):
    """CPU time of one of many runs in a runner, without the runner's start and the build; the lowest of several."""
    device, op, many = RUNS[family]
    (case,) = expand(loads(f"version: 1\nabout: speed\n{op}tolerance: {{nmse: 1e-3}}\n", "speed.yaml"))
    inputs, target = make_inputs(case), parse_target(f"sim:{device}", load_devices())
    session = Session(RunOptions(resolve(DEFAULT_SOURCE), flavour=flavour, simulation=Simulation(threads=1)))

    def seconds(repeat):
        session.options = replace(session.options, repeat=repeat)
        before = cpu_seconds_of_children()
        capture = session.capture(case, inputs, target)
        assert isinstance(capture, Capture), capture
        return cpu_seconds_of_children() - before

    seconds(1)  # compiles
    once, often = (min(seconds(repeat) for _ in range(ROUNDS)) for repeat in (1, 1 + many))
    return (often - once) / many


@pytest.mark.parametrize("family", RUNS)
def test_check(benchmark, family):
    def run():
        times = {flavour: cpu_seconds(flavour, family) for flavour in ("release", "check")}
        benchmark.extra_info["check"] = times["check"] / times["release"]

    benchmark.pedantic(run, rounds=1)
