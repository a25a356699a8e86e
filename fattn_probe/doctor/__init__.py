"""`doctor`: the tools of this machine, those that are missing, and the engines that work."""

from fattn_probe.doctor.facts import Facts, Gpu, Tool, probe
from fattn_probe.doctor.render import render
from fattn_probe.doctor.report import Engine, Finding, Report, diagnose

__all__ = ["Engine", "Facts", "Finding", "Gpu", "Report", "Tool", "diagnose", "probe", "render"]
