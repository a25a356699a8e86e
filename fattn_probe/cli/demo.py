"""The command line of `demo`, which runs three other commands."""

from fattn_probe.base.console import OUT
from fattn_probe.base.errors import BuildError
from fattn_probe.cli import run_command
from fattn_probe.daily.doctor.facts import probe
from fattn_probe.daily.doctor.report import diagnose

DEMO = ("run gqa --on sim:h200", "compare gqa --on sim:h200", "inspect gqa --on sim:h200")


def demo() -> None:
    """Run a scenario on a simulated H200, judge its output, and inspect the kernel with gdb."""
    report = diagnose(probe())
    if not report.sim_usable:
        raise BuildError(report.problem)
    for command in DEMO:
        OUT.print(f"\n$ fattn-probe {command}", style="bold")
        run_command(command.split())
