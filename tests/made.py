"""What tests of all rooms use: places, targets, cases, and what a terminal shows."""

import io
from pathlib import Path

from rich.console import Console

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario import expand, load, loads

ROOT = Path(__file__).resolve().parents[1]
SCENARIOS = ROOT / "scenarios"


def target(name):
    return parse_target(name, load_devices())


CPU, H200 = target("cpu"), target("sim:h200")


def case_of(text):
    """The only case of a scenario."""
    (case,) = expand(loads(text, "case.yaml"))
    return case


def shipped(name):
    """The only case of a shipped scenario."""
    (case,) = expand(load(SCENARIOS / f"{name}.yaml"))
    return case


def shown(renderable, width=200):
    """What a terminal without colours shows."""
    Console(file=(out := io.StringIO()), width=width).print(renderable)
    return out.getvalue()


def executable(path, text):
    """A program: a script, which names its interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path
