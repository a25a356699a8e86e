"""The command line of `doctor`, and of `demo`, which runs three other commands."""

from fattn_probe.base.console import OUT, show
from fattn_probe.base.errors import BuildError
from fattn_probe.cli import flags, run_command
from fattn_probe.daily.doctor.facts import probe
from fattn_probe.daily.doctor.report import diagnose, render

DEMO = ("run gqa --on sim:h200", "compare gqa --on sim:h200", "inspect gqa --on sim:h200")


def doctor(as_json: flags.Json = False) -> None:
    """Check what works on this machine, and show how to install what is missing."""
    report = diagnose(probe())
    show(report.as_dict(), lambda: render(report), as_json)
    if not report.sim_usable:
        raise BuildError(report.problem)


def demo() -> None:
    """Run a scenario on a simulated H200, judge its output, and inspect the kernel with gdb."""
    report = diagnose(probe())
    if not report.sim_usable:
        raise BuildError(report.problem)
    for command in DEMO:
        OUT.print(f"\n$ fattn-probe {command}", style="bold")
        run_command(command.split())
