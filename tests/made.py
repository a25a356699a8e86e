"""What tests of all rooms use: places, targets, cases, and what a terminal shows."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario import Scenario, expand, load, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.record import parse_launches
from fattn_probe.machine.run.capture import Capture

ROOT = Path(__file__).resolve().parents[1]
SCENARIOS = ROOT / "scenarios"


def target(name):
    return parse_target(name, load_devices())


CPU, GPU, H200 = map(target, ("cpu", "gpu", "sim:h200"))
CAUSAL = "mask: {kind: causal}"


def shape(hsk, n_head, n_head_kv, n_q, n_kv, *more):
    """A scenario of these sizes and further lines."""
    sizes = f"hsk: {hsk}\nn_head: {n_head}\nn_head_kv: {n_head_kv}\nn_q: {n_q}\nn_kv: {n_kv}"
    return "\n".join(("version: 1\nabout: x", sizes, *more)) + "\n"


def case_of(text):
    """The only case of a scenario."""
    (case,) = expand(loads(text, "case.yaml"))
    return case


def case_with(**fields):
    """The only case of a scenario with these fields."""
    (case,) = expand(Scenario.model_validate({"version": 1, "about": "x"} | fields).named("case"))
    return case


def shipped(name):
    """The only case of a shipped scenario."""
    (case,) = expand(load(SCENARIOS / f"{name}.yaml"))
    return case


def captured(session, case, on=H200, inputs=None):
    """The capture of a case's run on a target; its inputs are the case's own."""
    found = session.capture(case, make_inputs(case) if inputs is None else inputs, on)
    assert isinstance(found, Capture), found
    return found


def launch_of(kernel, grid=(1, 1, 1), block=(32, 4, 1), **more):
    """The launch of a kernel, which has its template arguments: `flash_attn_tile<64, 64, 2, 1, false>`."""
    line = {"order": 0, "kernel": f"void {kernel}(char)", "grid": grid, "block": block, "shared": 0}
    return parse_launches(json.dumps(line | more))[0]


def shown(renderable, width=200):
    """What a terminal without colours shows."""
    Console(file=(out := io.StringIO()), width=width).print(renderable)
    return out.getvalue()


def at_night(*values):
    """Parameters of a test that CI leaves out: `["gqa", *at_night("mha", "prefill")]`."""
    return [pytest.param(value, marks=pytest.mark.night) for value in values]


def executable(path, text):
    """A program: a script, which names its interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path
