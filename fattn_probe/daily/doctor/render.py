"""The report of `doctor` as tables."""

from rich.console import Group
from rich.text import Text

from fattn_probe.base.tables import Table
from fattn_probe.daily.doctor.report import Report

MARKS = {"ok": Text("ok", "green"), "missing": Text("missing", "bold red"), "optional": Text("optional", "yellow")}


def render(report: Report) -> Group:
    """Findings, then engines, then the commands to run, required ones first."""
    rows = (
        (MARKS[finding.status], finding.name, finding.found, Text(finding.needed_for, "dim"))
        for finding in report.findings
    )
    columns = ("", "name", "found", "needed for")
    findings = Table(columns, tuple(rows), prose=frozenset(columns[2:]), heading=columns[:2])
    works = (
        (
            Text("works", "green") if engine.usable else Text("no", "yellow"),
            engine.name,
            ", ".join(engine.on) or "; ".join(engine.why_not),
        )
        for engine in report.engines
    )
    engines = Table(("", "engine", "runs on"), tuple(works), prose=frozenset({"runs on"}), heading=("", "engine"))
    wanted = [finding for status in ("missing", "optional") for finding in report.findings if finding.status == status]
    names: dict[str, list[str]] = {}
    for finding in wanted:
        names.setdefault(finding.install, []).append(f"{finding.name} ({finding.status})")
    lines = [Text(f"  {line}   # {', '.join(what)}") for line, what in names.items()]
    to_install = [Text(""), Text("to install what is missing:"), *lines] if lines else []
    return Group(findings, Text(""), engines, *to_install)
