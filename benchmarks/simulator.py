"""Speed of the simulator by kernel family, as a separate process; prints one JSON document.

It measures the fattn_probe that PYTHONPATH names, which may be old, so it uses only functions that old versions have.
"""

import json
import resource
from dataclasses import replace

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario import Case, expand, loads
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.machine.run.capture import Capture
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation

try:
    from fattn_probe.cases.scenario.inputs import make_inputs
except ImportError:  # its place in the earlier commit of the comparison
    from fattn_probe.cases.scenario import make_inputs

OPS = {
    "mma": "hsk: 128\nn_head: 8\nn_q: 64\nn_kv: 4096\n",
    "vec": "hsk: 128\nn_head: 16\nn_q: 1\nn_kv: 8192\n",
    "tile": "hsk: 72\nn_head: 8\nn_q: 64\nn_kv: 1024\n",
}
ROUNDS, FEW, MANY = 3, 1, 4


def cpu_seconds(session: Session, case: Case, repeat: int) -> float:
    """User CPU time of a runner that runs a case `repeat` times."""
    session.options = replace(session.options, repeat=repeat)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    capture = session.capture(case, make_inputs(case), parse_target("sim:h200", load_devices()))
    if not isinstance(capture, Capture):
        raise SystemExit(f"{case.name}: {capture}")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main() -> None:
    """Print the GFLOP/s of one core by family, from user CPU time without the runner's start."""
    session = Session(RunOptions(resolve(DEFAULT_SOURCE), simulation=Simulation(threads=1)))
    speeds = {}
    for family, op in OPS.items():
        (case,) = expand(loads(f"version: 1\nabout: speed\n{op}tolerance: {{nmse: 1e-3}}\n", f"{family}.yaml"))
        cpu_seconds(session, case, FEW)  # compiles
        runs = [cpu_seconds(session, case, MANY) - cpu_seconds(session, case, FEW) for _ in range(ROUNDS)]
        speeds[family] = case.op.sizes.flop * (MANY - FEW) / min(runs) / 1e9
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
