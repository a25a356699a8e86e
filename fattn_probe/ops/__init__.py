"""Run upstream's own test program, `test-backend-ops`, and parse its output."""

from fattn_probe.ops.drive import OnResult, Timeouts, drive
from fattn_probe.ops.options import Options, ask_options, plan_ops, probe_options
from fattn_probe.ops.parse import OpResult, Transcript, parse_line
from fattn_probe.ops.render import live, render
from fattn_probe.ops.report import OpsReport
from fattn_probe.ops.rounds import Complete, run_ops

__all__ = [
    "Complete",
    "OnResult",
    "OpResult",
    "OpsReport",
    "Options",
    "Timeouts",
    "Transcript",
    "ask_options",
    "drive",
    "live",
    "parse_line",
    "plan_ops",
    "probe_options",
    "render",
    "run_ops",
]
