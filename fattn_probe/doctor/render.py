"""The report of `doctor` for people."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fattn_probe.doctor.report import Report

MARKS = {"ok": Text("ok", "green"), "missing": Text("missing", "bold red"), "optional": Text("optional", "yellow")}


def render(report: Report) -> Group:
    """Findings, then engines, then the lines to run, the necessary ones first."""
    return Group(_findings(report), Text(""), _engines(report), *_lines(report))


def _findings(report: Report) -> Table:
    table = Table("", "", "found", "needed for", box=None, show_edge=False)
    for finding in report.findings:
        table.add_row(MARKS[finding.status], Text(finding.name), Text(finding.found), Text(finding.needed_for, "dim"))
    return table


def _engines(report: Report) -> Table:
    table = Table("engine", "", "", box=None, show_edge=False)
    for engine in report.engines:
        mark = Text("works", "green") if engine.usable else Text("no", "yellow")
        table.add_row(Text(engine.name), mark, Text(", ".join(engine.on) or "; ".join(engine.why_not)))
    return table


def _lines(report: Report) -> list[Text]:
    wanted = [finding for status in ("missing", "optional") for finding in report.findings if finding.status == status]
    names: dict[str, list[str]] = {}
    for finding in wanted:
        names.setdefault(finding.install, []).append(f"{finding.name} ({finding.status})")
    lines = [Text(f"  {line}   # {', '.join(what)}") for line, what in names.items()]
    return [Text(""), Text("to install what is not there:"), *lines] if lines else []
