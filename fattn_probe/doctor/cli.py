"""The command line of `doctor`."""

from fattn_probe import flags
from fattn_probe.console import show
from fattn_probe.doctor import diagnose, probe, render
from fattn_probe.errors import BuildError


def doctor(as_json: flags.Json = False) -> None:
    """Check what works on this machine, and say how to install what is missing."""
    report = diagnose(probe())
    show(report.as_dict(), lambda: render(report), as_json)
    if not report.sim_usable:
        raise BuildError(report.problem)
