"""Speed of the simulator by kernel family, as a separate process; prints one JSON document.

Any fattn_probe that PYTHONPATH names can be measured, so it uses only what has long been there.
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
except ImportError:  # where it was at the commit that is compared with
    from fattn_probe.cases.scenario import make_inputs

OPS = {
    "mma": "hsk: 128\nn_head: 8\nn_q: 64\nn_kv: 4096\n",
    "vec": "hsk: 128\nn_head: 16\nn_q: 1\nn_kv: 8192\n",
    "tile": "hsk: 72\nn_head: 8\nn_q: 64\nn_kv: 1024\n",
}
ROUNDS, FEW, MANY = 3, 1, 4


def cpu_seconds(session: Session, case: Case, repeat: int) -> float:
    """User time of a runner that runs a case so many times."""
    session.options = replace(session.options, repeat=repeat)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    capture = session.capture(case, make_inputs(case), parse_target("sim:h200", load_devices()))
    if not isinstance(capture, Capture):
        raise SystemExit(f"{case.name}: {capture}")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main() -> None:
    """GFLOP/s of one core by family: user time, without a runner's start."""
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
