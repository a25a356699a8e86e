"""The report of `doctor` as tables."""

from rich.console import Group
from rich.text import Text

from fattn_probe.doctor.report import Report
from fattn_probe.tables import Table

MARKS = {"ok": Text("ok", "green"), "missing": Text("missing", "bold red"), "optional": Text("optional", "yellow")}


def render(report: Report) -> Group:
    """Findings, then engines, then the commands to run, required ones first."""
    return Group(_findings(report), Text(""), _engines(report), *_lines(report))


def _findings(report: Report) -> Table:
    rows = (
        (MARKS[finding.status], finding.name, finding.found, Text(finding.needed_for, "dim"))
        for finding in report.findings
    )
    columns = ("", "name", "found", "needed for")
    return Table(columns, tuple(rows), prose=frozenset(columns[2:]), heading=columns[:2])


def _engines(report: Report) -> Table:
    rows = (
        (
            Text("works", "green") if engine.usable else Text("no", "yellow"),
            engine.name,
            ", ".join(engine.on) or "; ".join(engine.why_not),
        )
        for engine in report.engines
    )
    return Table(("", "engine", "runs on"), tuple(rows), prose=frozenset({"runs on"}), heading=("", "engine"))


def _lines(report: Report) -> list[Text]:
    wanted = [finding for status in ("missing", "optional") for finding in report.findings if finding.status == status]
    names: dict[str, list[str]] = {}
    for finding in wanted:
        names.setdefault(finding.install, []).append(f"{finding.name} ({finding.status})")
    lines = [Text(f"  {line}   # {', '.join(what)}") for line, what in names.items()]
    return [Text(""), Text("to install what is missing:"), *lines] if lines else []
