"""The command line of `doctor`."""

from fattn_probe.base.console import show
from fattn_probe.base.errors import BuildError
from fattn_probe.cli import flags
from fattn_probe.daily.doctor.facts import probe
from fattn_probe.daily.doctor.report import diagnose, render


def doctor(as_json: flags.Json = False) -> None:
    """Check what works on this machine, and show how to install what is missing."""
    report = diagnose(probe())
    show(report.as_dict(), lambda: render(report), as_json)
    if not report.sim_usable:
        raise BuildError(report.problem)
